"""The model that a run trains: the shape that --model names, its weights, and the trainer of a new run.

Covers `choose_shape`, `open_model`, `new_trainer` and the files beside the weights. asynctile/layers/gpt2/config.py checks
shapes, asynctile/layers/model.py reads weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asynctile import Engine
from asynctile.cli.options import CONSTANT, Options
from asynctile.cli.values import adapter_settings
from asynctile.layers import AdamW, GPT2Config, LoRA, Model, Trainer
from asynctile.layers.architectures import ARCHITECTURES, config_from_hf
from asynctile.layers.companions import CARD, GENERATION, TOKENIZER, Companions
from asynctile.layers.config import Config
from asynctile.layers.foreign import of_folder
from asynctile.layers.gpt2.config import STANDARD
from asynctile.layers.model_state import check_room
from asynctile.layers.special_tokens import of_tokenizer
from asynctile.layers.tiling import Tiling
from asynctile.layers.tokenizer import Tokenizer, tokenizer_of
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.layers.weight_dtype import FLOAT32, STORED
from asynctile.share import runtime_of
from asynctile.storage.input import parse_json, read_file

__all__ = [
    "adapters_of", "check_base", "choose_shape", "companions_with", "kept_weights", "length_of", "model_folder", "new_trainer",
    "open_model", "tuning_of",
]  # fmt: skip

#: The model without --model: two CPU cores train it to readable text in a few minutes.
SMALL = GPT2Config(n_layer=4, n_head=4, n_embd=128, block_size=64)
#: The longest sequence without --seq-len. Some models take 131,072 tokens, and a batch of such sequences fits few machines.
LONGEST = 2048


def model_folder(options: Options) -> Path | None:
    """Return the folder of the initial weights, if --model names one; ValueError for weights of another format."""
    if options.model is None or options.model in STANDARD:
        return None
    path = Path(options.model)
    if (other := of_folder(path)) is not None:
        raise ValueError(f"--model {options.model}: {other}")
    return path if path.is_dir() else None


def choose_shape(options: Options, vocab_size: int, tokens: Mapping[str, Any] | None = None) -> Config:
    """Return the shape that --model names, with the tokenizer's `vocab_size`; a new model's config keeps its `tokens`.

    ValueError if there is no such model, its vocabulary is smaller than the tokenizer's, or --seq-len is too long for it.
    """
    shape = _named_shape(options.model, vocab_size)
    if vocab_size > shape.vocab_size:
        raise ValueError(f"the tokenizer has {vocab_size} tokens, but the model {options.model} only "
                         f"{shape.vocab_size}; use a smaller tokenizer or another model")
    if tokens is not None and (options.model is None or options.model in STANDARD):
        shape = replace(shape, **tokens)
    if options.seq_len is not None and options.seq_len > shape.block_size:
        raise ValueError(f"--seq-len {options.seq_len} is above the {shape.block_size} tokens that the model "
                         f"takes; choose at most {shape.block_size}, or another model")
    return shape


def adapters_of(options: Options) -> LoRA | None:
    """Return the adapters that --lora asks for; None without it. The seed is that of the run."""
    if options.lora is None:
        return None
    settings = adapter_settings(options.lora)
    names = {"r": "rank", "alpha": "alpha", "targets": "targets"}
    return LoRA(seed=options.seed, **{names[key]: value for key, value in settings.items()})


def tuning_of(options: Options, shape: Config) -> Tuning:
    """Return the trained part of a model of this shape; ValueError, which names the option, if it does not fit the model."""
    tuning = Tuning(adapters_of(options), options.freeze)
    if tuning == WHOLE:
        return tuning
    Tiling(shape, options.tile)  # refuses more blocks than can be listed
    try:
        tuning.check(shape)
    except ValueError as error:
        raise ValueError(f"--{error}" if str(error).startswith("freeze") else f"--lora {options.lora}: {error}") from error
    return tuning


def kept_weights(options: Options) -> str:
    """Return how a run keeps the weights of its model, by what config.json says of the file: frozen ones in bf16 stay so."""
    if options.lora is None or options.model is None or options.model in STANDARD:
        return FLOAT32
    values = _config_values(options.model)
    return STORED if values.get("dtype", values.get("torch_dtype")) == "bfloat16" else FLOAT32


def check_base(options: Options) -> None:
    """Raise ValueError for --lora without the folder of a model."""
    if options.lora is not None and model_folder(options) is None:
        found = "no --model names one" if options.model is None else f"--model {options.model} makes a new one"
        raise ValueError(f"--lora trains an adapter on the weights of a model, and {found}; name the folder of a model with "
                         "--model, or leave --lora out")


def length_of(seq_len: int | None, shape: Config) -> int:
    """Return --seq-len, or without it the most tokens that the model takes, at most LONGEST."""
    return seq_len or min(shape.block_size, LONGEST)


async def open_model(engine: Engine, options: Options, shape: Config) -> Model:
    """Return a new model of this shape, or the one in the folder that --model names."""
    folder, tiling = model_folder(options), Tiling(shape, options.tile, runtime_of(engine).device.grain)
    # Fail before hours of reading or drawing the weights.
    tiling.rows(options.sequences, length_of(options.seq_len, shape), options.parts, options.replicas)
    if folder is not None:
        weights = FLOAT32 if options.lora is None else STORED
        return await Model.from_pretrained(engine, folder, tile=options.tile, weights=weights)
    check_room(runtime_of(engine), tiling, shape.states_nbytes)
    return await Model.create(engine, shape, seed=options.seed, tile=options.tile)


def new_trainer(options: Options, model: Model) -> Trainer:
    """Return a trainer of `model` at its first step."""
    optimizer = AdamW(betas=(options.beta1, options.beta2), eps=options.eps, weight_decay=options.weight_decay,
                      **_schedule(options))  # fmt: skip
    return Trainer(model, optimizer, adapters=adapters_of(options), freeze=options.freeze, clip_norm=options.clip_norm,
                   micro_batches=options.parts, replicas=options.replicas, recompute=options.recomputing,
                   update=options.update)  # fmt: skip


def follow(trainer: Trainer, options: Options) -> tuple[Options, str]:
    """Give a resumed trainer the learning rates of the options.

    Returns the options, with the end of the schedule if an old checkpoint alone knew it, and a sentence on the rates that
    differ from the checkpoint's ("" if none).
    """
    before, step = trainer.optimizer, trainer.step_count + 1
    if options.decay_steps is None:
        options = replace(options, decay_steps=before.decay_steps)
    trainer.optimizer = replace(before, **_schedule(options))
    was, now = _named(before), _named(trainer.optimizer)
    changes = [f"{name} {value} (was {was.get(name, 'none')})" for name, value in now.items() if value != was.get(name)]
    return options, f"from step {step} on: {', '.join(changes)}" if changes else ""


def _schedule(options: Options) -> dict[str, Any]:
    """Return the learning-rate schedule as arguments of AdamW."""
    found: dict[str, Any] = {"lr": options.lr, "warmup": options.warmup_steps}
    if options.schedule == CONSTANT:
        return {**found, "decay_steps": None, "min_lr": 0.0}
    return {**found, "decay_steps": options.last_decay_step, "min_lr": options.last_lr, "decay": options.schedule}


def _named(optimizer: AdamW) -> dict[str, str]:
    """Return a schedule by the names of its options."""
    found = {"lr": f"{optimizer.lr:g}", "warmup": f"{optimizer.warmup}"}
    if optimizer.decay_steps is None:
        return {**found, "schedule": CONSTANT}
    return {**found, "schedule": optimizer.decay, "min-lr": f"{optimizer.min_lr:g}", "decay-steps": f"{optimizer.decay_steps}"}


def companions_with(tokenizer: Tokenizer, model: Model, chat: Companions) -> dict[str, bytes]:
    """Return the files beside the weights of a model that learns with this tokenizer.

    These are the tokenizer's files; those that the model brought are kept if they are of this tokenizer. chat: the files that
    say how the chats are written that the model learns; empty if it learns none.
    """
    own, made = model.companions, of_tokenizer(tokenizer, model.config.block_size)
    if _is_of(own, tokenizer):
        return {**made, **own, **chat}
    return {**made, **{name: own[name] for name in (GENERATION, CARD) if name in own}, **chat}


def _is_of(files: Companions, tokenizer: Tokenizer) -> bool:
    """Return whether these files beside a model give every text the same ids as the tokenizer."""
    try:
        return files.get(TOKENIZER) == tokenizer.to_json() or tokenizer_of(files, ".").fingerprint == tokenizer.fingerprint
    except ValueError:
        return False


def _named_shape(name: str | None, vocab_size: int) -> Config:
    if name is None:
        return replace(SMALL, vocab_size=vocab_size)
    if name in STANDARD:
        return GPT2Config.named(name)
    values = _config_values(name)
    try:
        return config_from_hf(values)
    except ValueError as error:
        raise ValueError(f"--model {name}: {error}") from error


def _config_values(name: str) -> dict[str, Any]:
    """Return the content of the config.json that --model names, itself or by its folder; ValueError if it cannot be read."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        values = parse_json(read_file(path))
    except OSError as error:
        raise ValueError(f"--model {name} cannot be read ({path}: {error.strerror}); expected a model folder, a "
                         f"config.json or one of {', '.join(STANDARD)}; supported model families: "
                         f"{', '.join(ARCHITECTURES)}") from error
    except ValueError as error:
        raise ValueError(f"--model {name}: {path} is not JSON ({error}); expected a model's config.json") from error
    if not isinstance(values, dict):
        raise ValueError(f"--model {name}: {path} is JSON, but not an object; expected a model's config.json")
    return values
