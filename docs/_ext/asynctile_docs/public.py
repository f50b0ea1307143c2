"""The public names of the API page: which members of each class it shows, and which classes a program makes by calling them.

Fields of dataclasses are shown without being listed. What `asynctile.__all__` and `asynctile.layers.__all__` name, and is no
class listed here, is shown with every member whose name has no underscore in front.
"""

from __future__ import annotations

__all__ = ["CONSTRUCTED", "INTERNAL", "MODULES", "SHOWN"]

#: Modules whose public names the API page shows, in its order, with the names that other pages show.
MODULES = {
    "asynctile": ("Engine", "Share", "Events", "Statistics"),
    "asynctile.layers": (
        "Model", "GPT2", "GPT2Config", "LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config", "Trainer", "AdamW",
        "LoRA", "StepReport", "evaluate", "Evaluation", "Server", "Sampling", "Token", "Tokenizer", "ByteTokenizer",
        "open_tokenizer", "Chats",
    ),
    "asynctile.nodes": ("TcpExchange",),
    "asynctile.nccl": ("NcclExchange",),
    "asynctile.ray": ("RayTrainer",),
    "asynctile.callbacks": ("Callback", "Run"),
    "asynctile.metrics": ("registry", "EngineCollector"),
}  # fmt: skip

#: The configurations of families with rotary positions, and their members that a program uses, and those that it does not.
_ROTARY = tuple(f"asynctile.layers.{family}Config" for family in ("Llama", "Mistral", "Qwen2", "Qwen3"))
_USED = ("from_hf", "to_hf", "parameter_count", "states_nbytes", "flops_per_token", "summary")
_INSIDE = (
    "attention_norms", "axes", "block_tensors", "check_variant", "class_name", "first_tensors", "has_bias", "has_dropout",
    "head_size", "head_tensor", "key_heads", "last_tensors", "lora_targets", "model_type", "norm_epsilon", "only", "prefix",
    "published", "rotation", "tensors", "total",
)  # fmt: skip

#: Members of a class that a program uses, in the order of the page: methods, properties and attributes of instances. The
#: docstring of the class describes what only an instance has.
SHOWN = {
    "asynctile.Engine": (
        "open", "aclose", "share", "shares", "events", "start_trace", "stop_trace", "write_trace", "is_traced",
    ),
    "asynctile.Share": (
        "statistics", "is_open", "name", "device", "link_rate", "rates", "precision", "prefetch", "plays", "weight",
        "interactive",
    ),
    "asynctile.Events": ("aclose",),
    "asynctile.Statistics": (),
    "asynctile.layers.Model": (
        "create", "from_pretrained", "save_pretrained", "load_adapter", "save_adapter", "generate", "serve", "logits", "loss",
        "state_dict", "release", "companions", "adapter", "name", "config", "engine", "step_count", "torn", "last_checkpoint",
    ),
    "asynctile.layers.GPT2": (),
    "asynctile.layers.GPT2Config": (
        "named", "from_hf", "to_hf", "parameter_count", "states_nbytes", "flops_per_token", "summary",
    ),
    **dict.fromkeys(_ROTARY, _USED),
    "asynctile.layers.Trainer": (
        "step", "run", "gradients", "save", "saved", "saving", "load", "gemm_rate", "model", "optimizer", "clip_norm",
        "micro_batches", "replicas", "recompute", "update", "freeze", "step_count", "skipped_count", "last_report",
        "data_state",
    ),
    "asynctile.layers.AdamW": ("rate",),
    "asynctile.layers.LoRA": ("scaling",),
    "asynctile.layers.StepReport": ("as_dict",),
    "asynctile.layers.Server": ("generate", "publish", "aclose"),
    "asynctile.layers.Chats": ("batch", "prompt", "close"),
    # Its vocab_size and fingerprint are those of Tokenizer.
    "asynctile.layers.ByteTokenizer": ("encode", "decode", "save", "special", "to_json"),
    "asynctile.nodes.TcpExchange": ("meet", "close", "node", "nodes", "failure"),
    "asynctile.nccl.NcclExchange": ("meet", "close", "node", "nodes", "failure"),
    "asynctile.ray.RayTrainer": ("fit",),
    "asynctile.metrics.EngineCollector": ("collect",),
}  # fmt: skip

#: Members without an underscore that other modules of asynctile use and no program needs; the page does not show them.
INTERNAL = {
    "asynctile.layers.GPT2Config": (
        "axes", "block_tensors", "first_tensors", "has_dropout", "head_size", "head_tensor", "inner", "last_tensors",
        "lora_targets", "model_type", "norm_epsilon", "prefix", "tensors", "total",
    ),
    **dict.fromkeys(_ROTARY, _INSIDE),
    "asynctile.layers.AdamW": ("hyper",),
    "asynctile.layers.LoRA": ("excess", "layers", "tensors"),
    "asynctile.layers.StepReport": ("between",),
    "asynctile.nodes.TcpExchange": ("abort", "begin", "receive", "send", "share"),
    "asynctile.nccl.NcclExchange": ("abort", "begin", "receive", "send", "share"),
}  # fmt: skip

#: Classes that a program makes by calling them; the page shows no arguments for the others.
CONSTRUCTED = {
    "asynctile.Engine", "asynctile.layers.GPT2Config", "asynctile.layers.Trainer", "asynctile.layers.AdamW",
    "asynctile.layers.LoRA", "asynctile.layers.Sampling", "asynctile.layers.ByteTokenizer", "asynctile.layers.Chats",
    "asynctile.ray.RayTrainer", "asynctile.metrics.EngineCollector",
    *_ROTARY,
}  # fmt: skip
