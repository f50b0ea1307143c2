"""The progress bar of a run: in a notebook's kernel that has tqdm, and nowhere else. Notebook and tqdm are stand-ins."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.layers.feed import Steps

Kernel = type("ZMQInteractiveShell", (), {})
OfColab = type("Shell", (Kernel,), {})
OfATerminal = type("TerminalInteractiveShell", (), {})


class Tqdm:
    """The part of tqdm's bar that is used. made: all bars of a test."""

    made: list[Tqdm]

    def __init__(self, *, total: int | None, unit: str) -> None:
        self.total, self.count, self.words, self.is_closed = total, 0, "", False
        Tqdm.made.append(self)

    def set_postfix_str(self, words: str, *, refresh: bool) -> None:
        self.words = words

    def update(self) -> None:
        self.count += 1

    def close(self) -> None:
        self.is_closed = True


class WithoutWidgets(Tqdm):
    def __init__(self, **options: Any) -> None:
        raise ImportError("IProgress not found")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes this process look like a notebook with that shell and that tqdm."""
    Tqdm.made = []

    def of(shell: type | None, tqdm: type | None = Tqdm) -> None:
        found = None if shell is None else SimpleNamespace(get_ipython=lambda: shell())
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        monkeypatch.setitem(sys.modules, "IPython", found)
        monkeypatch.setitem(sys.modules, "tqdm.notebook", None if tqdm is None else SimpleNamespace(tqdm=tqdm))

    return of


def steps_of(batches: Any, steps: int | None, losses: list[Any]) -> Steps:
    """Return a run whose steps have these losses; an error among them is raised."""
    life: Any = SimpleNamespace(dependents=set(), check_process=lambda: None)

    async def step(counted: Callable[[], None], *_: Any) -> Any:
        loss = losses.pop(0)
        if isinstance(loss, BaseException):
            raise loss
        counted()
        return SimpleNamespace(loss=loss, skipped=False)

    return Steps(life, step, batches, steps, lambda *_: None)


async def endless() -> AsyncIterator[tuple[int, int]]:
    while True:
        yield 0, 0


@pytest.mark.parametrize("shell", [Kernel, OfColab])
async def test_a_notebook_shows_a_bar_with_the_loss_from_the_first_step_to_the_last(
    notebook: Callable[..., None], shell: type
) -> None:
    notebook(shell)
    run = steps_of(endless(), 3, [2.0, 1.5, 1.25])
    assert not Tqdm.made, "nothing was asked for yet"
    assert [report.loss async for report in run] == [2.0, 1.5, 1.25]
    (bar,) = Tqdm.made
    assert (bar.total, bar.count, bar.words, bar.is_closed) == (3, 3, "loss 1.2500", True)


async def test_the_bar_ends_with_the_batches_and_continues_after_a_cancelled_run(notebook: Callable[..., None]) -> None:
    notebook(Kernel)
    run = steps_of([(0, 0)] * 2, None, [2.0, asyncio.CancelledError(), 1.0])
    await anext(run)
    with pytest.raises(asyncio.CancelledError):
        await anext(run)
    (bar,) = Tqdm.made
    assert (bar.total, bar.count, bar.is_closed) == (None, 1, False)
    assert [report.loss async for report in run] == [1.0]
    assert Tqdm.made == [bar] and (bar.count, bar.is_closed) == (2, True)


@pytest.mark.parametrize(("shell", "tqdm"), [(None, Tqdm), (OfATerminal, Tqdm), (Kernel, None), (Kernel, WithoutWidgets)])
async def test_outside_a_notebook_there_is_no_bar(notebook: Callable[..., None], shell: type | None, tqdm: type | None) -> None:
    notebook(shell, tqdm)
    assert [report.loss async for report in steps_of(endless(), 2, [2.0, 1.5])] == [2.0, 1.5]
    assert not Tqdm.made


async def test_tqdm_disable_hides_the_bar(notebook: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    notebook(Kernel)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert [report.loss async for report in steps_of(endless(), 1, [2.0])] == [2.0] and not Tqdm.made
