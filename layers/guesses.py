"""Usual guesses, answered with the right name: attributes and arguments as others call them, a plain `for` over `async for`'s.

Covers the tables, `answering`, which gives a class its answers, `by_async_for` and `Continuation`. All of it shows at runtime
alone: to type checkers such names are not there. What is typed on a command line is asynctile/cli/nearest.py's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

C = TypeVar("C", bound=type)
T = TypeVar("T")

_TRAIN = "trainer.run(batches), or trainer.step(tokens, targets) for one step"
#: By class, what is no attribute of it, and what to use.
ATTRIBUTES = {
    "Trainer": {
        "train": _TRAIN, "fit": _TRAIN, "evaluate": "asynctile.layers.evaluate(trainer.model, batches)",
        "save_model": "trainer.model.save_pretrained(path)", "save_checkpoint": "trainer.save(path)",
    },
    "Model": {
        "save": "model.save_pretrained(path), or trainer.save(path) to go on from there", "forward": "model.logits(tokens)",
        "load": "GPT2.from_pretrained(engine, path)", "fit": "Trainer(model).run(batches)",
    },
}  # fmt: skip
_TEXT = {"max_tokens": "max_new_tokens", "max_length": "max_new_tokens"}
#: By class and method, what is no argument of it, and which one it is here.
ARGUMENTS = {
    "Trainer": {"__init__": {"max_grad_norm": "clip_norm", "grad_clip": "clip_norm", "lr": "optimizer=AdamW(lr=...)"}},
    "AdamW": {"__init__": {
        "learning_rate": "lr", "beta1": "betas", "beta2": "betas", "epsilon": "eps", "warmup_steps": "warmup",
    }},
    "GPT2Config": {"__init__": {
        "n_positions": "block_size", "n_ctx": "block_size", "max_position_embeddings": "block_size", "hidden_size": "n_embd",
        "d_model": "n_embd", "num_layers": "n_layer", "num_hidden_layers": "n_layer", "num_heads": "n_head",
        "num_attention_heads": "n_head",
    }},
    "Model": {"generate": _TEXT},
    "Server": {"generate": _TEXT},
}  # fmt: skip


def answering(cls: C) -> C:
    """Give a class the answers that the tables have under its name. A guess is AttributeError or TypeError as before."""
    if cls.__name__ in ATTRIBUTES:
        setattr(cls, "__getattr__", _answering_attributes(ATTRIBUTES[cls.__name__]))  # noqa: B010 - hidden from type checkers
    for method, names in ARGUMENTS.get(cls.__name__, {}).items():
        setattr(cls, method, _answering_arguments(getattr(cls, method), names))
    return cls


def by_async_for(self: object) -> NoReturn:
    """`__iter__` of what comes by `async for`: TypeError, which says so."""
    raise TypeError(f"'{type(self).__name__}' object is not iterable by a plain for; write 'async for', in a coroutine")


class Continuation(AsyncGenerator[T]):
    """The async generator `tokens`, which a plain `for` is told about: Python's own cannot be."""

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
            """What else an async generator has: ag_frame, ag_running."""
            return getattr(self._tokens, name)


def _answering_attributes(names: dict[str, str]) -> Callable[[Any, str], Any]:
    def get(self: Any, name: str) -> Any:
        """Called once an attribute was not found."""
        if name in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; use {names[name]}")
        return object.__getattribute__(self, name)  # raises what it raised before, be it by a property

    return get


def _answering_arguments(function: Callable[..., Any], names: dict[str, str]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        for name in names.keys() & more.keys():
            raise TypeError(f"{function.__qualname__}() has no argument {name!r}; it is {names[name]} here")
        return function(*args, **more)

    return call
