"""The measurement of two GPUs: where it runs, and what its digest sees."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.layers.training import OPTIMIZER, SMALL, batches_of, lively


@pytest.mark.parametrize(("device", "names"), [("soft", ("cuda:0", "cuda:0-1")), ("cuda:3", ("cuda:3", "cuda:3-4"))])
def test_one_gpu_is_compared_with_it_and_the_next(bench: Any, device: str, names: tuple[str, str]) -> None:
    assert bench("gpu_two").names_of_both(argparse.Namespace(device=device)) == names


@pytest.mark.parametrize("count", [0, 1])
async def test_a_machine_with_one_gpu_says_so_and_measures_two_engines_on_it(
    bench: Any, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two, done = bench("gpu_two"), []

    async def side_by_side(section: Any, options: Any, name: str) -> None:
        done.append(name)

    monkeypatch.setattr(two, "gpu_count", lambda: count)
    monkeypatch.setattr(two, "side_by_side", side_by_side)
    monkeypatch.setattr(two, "Section", lambda *_: argparse.Namespace(end=lambda: done.append("end")))
    await two.main(argparse.Namespace(device="cuda:0", models=["tiny"]))
    assert capsys.readouterr().out == f"two GPUs are needed for most of this, and this machine has {count}\n"
    assert done == ["tiny", "end"]


async def test_the_digest_changes_with_a_loss_and_with_a_bit_of_a_moment(bench: Any) -> None:
    digest_of = bench("gpu_two").digest_of
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER)
        await trainer.step(*batches_of(SMALL, 1)[0])
        found = [await digest_of(trainer, [1.0]), await digest_of(trainer, [1.0]), await digest_of(trainer, [1.5])]
        parameter = model_state_of(trainer.model).parameters["transformer.ln_f.bias"]
        tile = parameter.exp_avg_sq[0, 0]
        kept = await model_state_of(trainer.model).gather(parameter, parameter.exp_avg_sq)
        changed = kept[parameter.index(0, 0)].copy()
        changed.view(np.uint32)[0] ^= 1
        await runtime_of(engine).store([(tile, changed)])
        found.append(await digest_of(trainer, [1.0]))
    assert found[0] == found[1] and len(set(found)) == 3
