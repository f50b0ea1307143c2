"""A forked child of a process with an open engine: refused at once, harmless to its parent, free to open its own engine."""

import os
import subprocess
import sys

import pytest

from tests.laws import law
from tests.settle import HANG_S

# Each engine is opened, forked and used in an interpreter of its own, away from pytest's threads and warnings.
PROGRAM = """
import asyncio, multiprocessing, os, sys, tempfile, warnings

import numpy as np
from threadpoolctl import threadpool_info

warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of forking beside threads, which is the case here

from asynctile import Engine
from asynctile.errors import DeviceError
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=64, block_size=32, vocab_size=64)
TOKENS = np.arange(64).reshape(2, 32)
FOLDER = tempfile.mkdtemp()
THREADS = [library["num_threads"] for library in threadpool_info()]
OPTIONS = {
    "cpu": dict(device="cpu", host_memory="64MiB"),
    "emulated": dict(device="emulated", device_memory="2MiB", host_memory="64MiB"),
    "spill": dict(device="cpu", host_memory="1MiB", spill=FOLDER),
}[sys.argv[1]]


async def refused(what, work):
    # A wait that the timeout breaks off, or does not, is what this is about: an error of another kind.
    try:
        result = work()
        if hasattr(result, "__await__"):
            await asyncio.wait_for(result, 60)
    except DeviceError as error:
        assert "forked child" in str(error) and str(os.getppid()) in str(error), error
    else:
        raise AssertionError(f"{what} was not refused")


async def in_child(engine, model, trainer, run):
    await refused("step", lambda: trainer.step(TOKENS, TOKENS))
    await refused("run", lambda: anext(run))
    await refused("logits", lambda: model.logits(TOKENS))
    await refused("state_dict", model.state_dict)
    await refused("save", lambda: trainer.save(FOLDER + "/saved"))
    await refused("saved", trainer.saved)
    await refused("create", lambda: GPT2.create(engine, CONFIG))
    await refused("synchronize", model_state_of(model).runtime.synchronize)
    await refused("statistics", engine.statistics)
    await refused("runtime_of", lambda: runtime_of(engine))
    await refused("closing", lambda: engine.__aexit__(None, None, None))
    await engine.__aexit__(SystemExit, SystemExit(), None)  # who leaves the block by an exit leaves it
    return await train(dict(OPTIONS, spill=tempfile.mkdtemp()) if "spill" in OPTIONS else OPTIONS)


def child(engine, model, trainer, run, first, go_on, told):
    os.close(told)
    losses = asyncio.run(in_child(engine, model, trainer, run))
    assert losses[0] == first, losses
    assert [library["num_threads"] for library in threadpool_info()] == THREADS, "BLAS was limited by the parent's engine"
    os.read(go_on, 1)  # the parent closes its engine meanwhile
    sys.exit(17)


async def train(options):
    async with Engine(**options) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-3))
        return [(await trainer.step(TOKENS, TOKENS)).loss for _ in range(2)]


async def main():
    go_on, told = os.pipe()
    async with Engine(**OPTIONS) as engine:
        model = await GPT2.create(engine, CONFIG, seed=1)
        trainer = Trainer(model, AdamW(lr=1e-3))
        first = (await trainer.step(TOKENS, TOKENS)).loss
        await trainer.save(FOLDER + "/first", wait=False)
        run = trainer.run([(TOKENS, TOKENS)])
        arguments = engine, model, trainer, run, first, go_on, told
        process = multiprocessing.get_context("fork").Process(target=child, args=arguments, daemon=True)
        process.start()
        second = (await trainer.step(TOKENS, TOKENS)).loss
    assert not os.path.exists(FOLDER + "/saved")
    assert await train(OPTIONS) == [first, second], "and the folder is free, though the child has not ended"
    os.write(told, b".")
    process.join()
    assert process.exitcode == 17, process.exitcode
    print("parent and child are well")


asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["spill", law("cpu"), law("emulated")])
def test_a_forked_child_is_refused_at_once_and_may_open_an_engine_of_its_own(kind):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, timeout=HANG_S)
    assert (ran.returncode, ran.stdout) == (0, "parent and child are well\n"), ran.stderr
