"""Helpful errors for common wrong names, which other libraries use, and for a plain `for` over an async iterator.

A wrong attribute or argument still fails, but its error says what to use instead. Covers the tables, `answering`, which
makes a class raise these errors, `by_async_for`, and `Continuation`, an async generator that raises such an error itself.
All of this exists only at runtime: type checkers do not see the wrong names. asynctile/cli/nearest.py does the same for the
command line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

C = TypeVar("C", bound=type)
T = TypeVar("T")

_TRAIN = "trainer.run(batches), or trainer.step(tokens, targets) for one step"
#: By class: attributes that it does not have, and what to use instead.
ATTRIBUTES = {
    "Trainer": {
        "train": _TRAIN, "fit": _TRAIN, "evaluate": "asynctile.layers.evaluate(trainer.model, batches)",
        "save_model": "trainer.model.save_pretrained(path)", "save_checkpoint": "trainer.save(path)",
    },
    "Model": {
        "train": "Trainer(model).run(batches)", "parameters": "await model.state_dict()",
        "save": "model.save_pretrained(path), or trainer.save(path) to resume from it", "forward": "model.logits(tokens)",
        "load": "Model.from_pretrained(engine, path)", "fit": "Trainer(model).run(batches)",
    },
}  # fmt: skip
_SIZES = {
    "n_positions": "block_size", "n_ctx": "block_size", "max_position_embeddings": "block_size", "num_layers": "n_layer",
    "num_hidden_layers": "n_layer",
}  # fmt: skip
_ROTARY = {"__init__": {
    **_SIZES, "n_embd": "hidden_size", "d_model": "hidden_size", "n_inner": "intermediate_size",
    "n_head": "num_attention_heads", "num_heads": "num_attention_heads", "n_kv_head": "num_key_value_heads",
    "num_kv_heads": "num_key_value_heads", "rope_parameters": "rope_theta and rope_scaling",
}}  # fmt: skip
_TEXT = {"max_tokens": "max_new_tokens", "max_length": "max_new_tokens"}
#: By class and method: arguments that it does not have, and the name to use instead.
ARGUMENTS = {
    "Trainer": {"__init__": {
        "max_grad_norm": "clip_norm", "grad_clip": "clip_norm", "lr": "optimizer=AdamW(lr=...)", "lora": "adapters=LoRA(...)",
    }},
    "LoRA": {"__init__": {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets"}},
    "AdamW": {"__init__": {
        "learning_rate": "lr", "beta1": "betas", "beta2": "betas", "epsilon": "eps", "warmup_steps": "warmup",
    }},
    "GPT2Config": {"__init__": {
        **_SIZES, "hidden_size": "n_embd", "d_model": "n_embd", "num_heads": "n_head", "num_attention_heads": "n_head",
    }},
    **dict.fromkeys(("LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"), _ROTARY),
    "Model": {"generate": _TEXT},
    "Server": {"generate": _TEXT},
}  # fmt: skip


def answering(cls: C) -> C:
    """Make a class answer the wrong names that the tables list for it.

    The AttributeError or TypeError then says which name to use instead.
    """
    if cls.__name__ in ATTRIBUTES:
        setattr(cls, "__getattr__", _answering_attributes(ATTRIBUTES[cls.__name__]))  # noqa: B010 - hidden from type checkers
    for method, names in ARGUMENTS.get(cls.__name__, {}).items():
        setattr(cls, method, _answering_arguments(getattr(cls, method), names))
    return cls


def by_async_for(self: object) -> NoReturn:
    """Raise TypeError, which says to use `async for`: the `__iter__` of an async iterator."""
    raise TypeError(f"'{type(self).__name__}' object cannot be iterated by a plain for; use 'async for' in a coroutine")


class Continuation(AsyncGenerator[T]):
    """The async generator `tokens`, plus a helpful error for a plain `for`, which Python's own generator cannot give."""

    def __init__(self, tokens: AsyncGenerator[T]) -> None:
        self._tokens = tokens

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self._tokens.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, T]:
        return self._tokens.asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, T]:
        return self._tokens.athrow(*error)

    def aclose(self) -> Coroutine[Any, Any, None]:
        return self._tokens.aclose()

    if not TYPE_CHECKING:
        __iter__ = by_async_for

        def __getattr__(self, name: str) -> Any:
            """Return another attribute of an async generator, such as ag_frame or ag_running."""
            return getattr(self._tokens, name)


def _answering_attributes(names: dict[str, str]) -> Callable[[Any, str], Any]:
    def get(self: Any, name: str) -> Any:
        """Raise AttributeError with the right name. Python calls this once the normal lookup has failed."""
        if name in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; use {names[name]}")
        return object.__getattribute__(self, name)  # raises the original error, even one from a property

    return get


def _answering_arguments(function: Callable[..., Any], names: dict[str, str]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        for name in names.keys() & more.keys():
            raise TypeError(f"{function.__qualname__}() has no argument {name!r}; use {names[name]}")
        return function(*args, **more)

    return call
