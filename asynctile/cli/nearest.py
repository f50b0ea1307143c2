"""The option, command or key that somebody most likely meant by an unknown name, or why there is no such thing.

Covers `nearest`, which arguments.py and config_file.py share. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]

#: Names of options in nanoGPT and transformers, where the spelling alone would suggest the wrong option or none.
_ELSEWHERE = {
    "learning_rate": "lr", "min_learning_rate": "min_lr", "lr_scheduler_type": "schedule", "warmup_iters": "warmup",
    "warmup_steps": "warmup", "betas": "beta1", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_epsilon": "eps",
    "grad_clip": "clip_norm", "max_grad_norm": "clip_norm", "max_iters": "steps", "max_steps": "steps",
    "num_train_epochs": "epochs", "block_size": "seq_len", "context_length": "seq_len",
    "per_device_train_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation",
    "lora_rank": "lora", "lora_r": "lora", "lora_alpha": "lora", "lora_target_modules": "lora", "target_modules": "lora",
    "peft": "lora", "use_peft": "lora", "adapters": "lora", "frozen": "freeze",
    "dataset": "data", "init_from": "model", "model_name_or_path": "model", "dtype": "precision",
    "eval_interval": "validate_every", "eval_steps": "validate_every", "eval_iters": "validation_tokens",
    "early_stopping_patience": "stop_after", "patience": "stop_after", "out_dir": "out", "output_dir": "out",
    "save_steps": "save_every", "save_interval": "save_every", "save_total_limit": "keep",
    "max_seq_length": "seq_len", "max_length": "seq_len", "n_positions": "seq_len", "gradient_checkpointing": "recompute",
    "fp16": "precision", "bf16": "precision", "tf32": "precision", "amp": "precision", "gpu": "device",
}  # fmt: skip
#: Words in names of missing features, and what to say about them.
_ABSENT = {
    ("dropout", "pdrop"): "dropout is not supported; use --weight-decay and --stop-after against overfitting",
    ("qlora", "dora", "rslora"): "of adapters only LoRA is supported, on weights as they are stored; see --lora",
    ("quantize", "quantization", "load_in_8bit", "load_in_4bit"):
        "quantized weights are not supported; use --device-memory, --host-memory and --spill to limit memory",
    ("optimizer", "optim", "sgd", "lion", "muon"): "AdamW is the only optimizer; set it with --lr, --beta1 and --weight-decay",
    ("gpus", "n_gpu", "world_size", "local_rank", "ddp", "fsdp", "deepspeed"):
        "name several GPUs with --device, such as cuda:0-3, and let them share --replicas",
    ("n_layer", "num_layers", "n_head", "num_heads", "n_embd", "hidden_size"):
        "set the shape of a new model with --model: a name or a config.json",
    ("wandb", "mlflow"): "use --callback MODULE:CLASS to report every step to a tracker; see examples/tracker.py",
}  # fmt: skip
#: A prefix that more names than this share is too vague to suggest them.
_MOST = 4
#: difflib's similarity above which one name may be the other mistyped. Two swapped letters of four reach it.
_NEAR = 0.75


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the nearest `known` names, why a feature is missing, or "" if no name is near.

    Leading dashes do not count, and inner dashes equal "_". Candidates in order: the name's counterpart in other programs,
    names that begin with it, the name with the most similar spelling, and names that it contains as a whole.
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
    """Return whether `name` is one or several of the words of `other`."""
    return f"_{name}_" in f"_{other}_"
