"""What somebody meant who wrote a name that there is not: an option, a command, a key of a file.

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
}  # fmt: skip
#: A beginning that more names share says too little.
_MOST = 4


def nearest(word: str, known: Iterable[str]) -> str:
    """"; did you mean X?", of the nearest of those that are `known`, or nothing where none is near.

    Dashes in front do not count, and those within are as good as "_". What is called otherwise elsewhere comes first, then
    what begins so, then what is spelled nearly so.
    """
    names = {_plain(name): name for name in known}
    plain = _plain(word)
    meant = _ELSEWHERE.get(plain)
    found = [meant] if meant in names else [name for name in names if len(plain) > 1 and name.startswith(plain)]
    if not 0 < len(found) <= _MOST:
        found = get_close_matches(plain, list(names), 1)
    return f"; did you mean {' or '.join(names[name] for name in found)}?" if found else ""


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")
