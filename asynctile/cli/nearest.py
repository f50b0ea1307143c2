"""What somebody meant who wrote a name that there is not, or that it is not there on purpose: an option, a command, a key.

Covers `nearest`, for arguments.py and config_file.py alike. Nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]

#: Names that nanoGPT and transformers have for what is an option here, where letters alone would lead elsewhere or nowhere.
_ELSEWHERE = {
    "learning_rate": "lr", "min_learning_rate": "min_lr", "lr_scheduler_type": "schedule", "warmup_iters": "warmup",
    "warmup_steps": "warmup", "betas": "beta1", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_epsilon": "eps",
    "grad_clip": "clip_norm", "max_grad_norm": "clip_norm", "max_iters": "steps", "max_steps": "steps",
    "num_train_epochs": "epochs", "block_size": "seq_len", "context_length": "seq_len",
    "per_device_train_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation",
    "dataset": "data", "init_from": "model", "model_name_or_path": "model", "dtype": "precision",
    "eval_interval": "validate_every", "eval_steps": "validate_every", "eval_iters": "validation_tokens",
    "early_stopping_patience": "stop_after", "patience": "stop_after", "out_dir": "out", "output_dir": "out",
    "save_steps": "save_every", "save_interval": "save_every", "save_total_limit": "keep",
    "max_seq_length": "seq_len", "max_length": "seq_len", "n_positions": "seq_len", "gradient_checkpointing": "recompute",
    "fp16": "precision", "bf16": "precision", "tf32": "precision", "amp": "precision", "gpu": "device",
}  # fmt: skip
#: What there is not: words of such names, and what to say of all of them.
_ABSENT = {
    ("dropout", "pdrop"): "there is no dropout here; --weight-decay and --stop-after work against overfitting",
    ("lora", "qlora", "peft", "adapter", "adapters"): "LoRA and other adapters are not there yet; all weights are trained",
    ("quantize", "quantization", "load_in_8bit", "load_in_4bit"):
        "weights are not quantized; --device-memory, --host-memory and --spill bound what they take",
    ("optimizer", "optim", "sgd", "lion", "muon"): "AdamW is the only optimizer; --lr, --beta1 and --weight-decay set it",
    ("gpus", "n_gpu", "world_size", "local_rank", "ddp", "fsdp", "deepspeed"):
        "a run is on one device; several are not there yet",
    ("n_layer", "num_layers", "n_head", "num_heads", "n_embd", "hidden_size"):
        "the shape of a new model is that of --model, a name or a config.json",
    ("wandb", "mlflow"): "--callback MODULE:CLASS tells a tracker of every step; examples/tracker.py is one",
}  # fmt: skip
#: A beginning that more names share says too little.
_MOST = 4
#: difflib's measure of two names above which one may be the other mistyped; two of four letters that changed places have it.
_NEAR = 0.75


def nearest(word: str, known: Iterable[str]) -> str:
    """"; did you mean X?", of the nearest of those that are `known`; for what is not there why; nothing where none is near.

    Dashes in front do not count, and those within are as good as "_". What is called otherwise elsewhere comes first, then
    what begins so, then what is spelled nearly so, then a name that stands in it whole.
    """
    names = {_plain(name): name for name in known}
    plain = _plain(word)
    for words, why in _ABSENT.items():
        if any(_stands_in(absent, plain) for absent in words):
            return f"; {why}"
    meant = _ELSEWHERE.get(plain)
    found = [meant] if meant in names else [name for name in names if len(plain) > 1 and name.startswith(plain)]
    if not 0 < len(found) <= _MOST:
        found = get_close_matches(plain, list(names), 1, _NEAR) or [name for name in names if _stands_in(name, plain)]
    return f"; did you mean {' or '.join(names[name] for name in found)}?" if found else ""


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _stands_in(name: str, other: str) -> bool:
    """Whether it is some of the words of the other."""
    return f"_{name}_" in f"_{other}_"
