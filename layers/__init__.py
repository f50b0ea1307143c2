"""The meaning of the tiles: model layers, optimizer, trainer, data, generation. Imported as `asynctile.layers`."""

if __name__ != "asynctile.layers":
    raise ImportError(f"this folder was imported as {__name__!r}, which would make a second copy of every class in it; "
                      "write `import asynctile.layers` instead")

from typing import TYPE_CHECKING

from asynctile.on_demand import on_demand as _on_demand

if TYPE_CHECKING:
    from asynctile.layers.conversations import Chats
    from asynctile.layers.evaluation import Evaluation, evaluate
    from asynctile.layers.gpt2.config import GPT2Config
    from asynctile.layers.llama.config import LlamaConfig
    from asynctile.layers.lora import LoRA
    from asynctile.layers.mistral.config import MistralConfig
    from asynctile.layers.model import Model
    from asynctile.layers.optimizer import AdamW
    from asynctile.layers.qwen2.config import Qwen2Config
    from asynctile.layers.qwen3.config import Qwen3Config
    from asynctile.layers.report import StepReport
    from asynctile.layers.requests import Token
    from asynctile.layers.sampling import Sampling
    from asynctile.layers.server import Server
    from asynctile.layers.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer
    from asynctile.layers.trainer import Trainer

    # At runtime a class below Model (gpt2/model.py). For type checkers the two are one, because Trainer.model is declared as a
    # Model, and programs have long passed it on as a GPT2.
    GPT2 = Model
else:
    __getattr__, __dir__ = _on_demand(__name__, {
        "GPT2": "asynctile.layers.gpt2.model:GPT2",
        "AdamW": "asynctile.layers.optimizer:AdamW",
        "ByteTokenizer": "asynctile.layers.tokenizer:ByteTokenizer",
        "Chats": "asynctile.layers.conversations:Chats",
        "Evaluation": "asynctile.layers.evaluation:Evaluation",
        "GPT2Config": "asynctile.layers.gpt2.config:GPT2Config",
        "LlamaConfig": "asynctile.layers.llama.config:LlamaConfig",
        "LoRA": "asynctile.layers.lora:LoRA",
        "MistralConfig": "asynctile.layers.mistral.config:MistralConfig",
        "Model": "asynctile.layers.model:Model",
        "Qwen2Config": "asynctile.layers.qwen2.config:Qwen2Config",
        "Qwen3Config": "asynctile.layers.qwen3.config:Qwen3Config",
        "Sampling": "asynctile.layers.sampling:Sampling",
        "Server": "asynctile.layers.server:Server",
        "StepReport": "asynctile.layers.report:StepReport",
        "Token": "asynctile.layers.requests:Token",
        "Tokenizer": "asynctile.layers.tokenizer:Tokenizer",
        "Trainer": "asynctile.layers.trainer:Trainer",
        "evaluate": "asynctile.layers.evaluation:evaluate",
        "open_tokenizer": "asynctile.layers.tokenizer:open_tokenizer",
    })  # fmt: skip

__all__ = [
    "GPT2",
    "AdamW",
    "ByteTokenizer",
    "Chats",
    "Evaluation",
    "GPT2Config",
    "LlamaConfig",
    "LoRA",
    "MistralConfig",
    "Model",
    "Qwen2Config",
    "Qwen3Config",
    "Sampling",
    "Server",
    "StepReport",
    "Token",
    "Tokenizer",
    "Trainer",
    "evaluate",
    "open_tokenizer",
]
