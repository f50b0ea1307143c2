"""Trainings in processes whose memory is limited: without a cap they end well, or say what to do."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws import law
from tests.settle import HANG_S

# Child processes, because a limit cannot be taken back and the interpreter of the tests has mapped much already.
PROGRAM = """
import asyncio, json, os, resource, sys, tempfile

limits = json.loads(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # what BLAS and its threads take does not depend on the machine
for file in limits.get("groups", []):
    with open(file, "w") as procs:
        procs.write(str(os.getpid()))
for name, nbytes in limits.get("rlimits", {}).items():
    resource.setrlimit(getattr(resource, name), (nbytes, nbytes))

import numpy as np

from asynctile import Engine
from asynctile.errors import BudgetError
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

SMALL = GPT2Config(n_layer=1, n_head=2, n_embd=64, block_size=32, vocab_size=64)
LARGE = GPT2Config(n_layer=int(limits["layers"]), n_head=8, n_embd=512, block_size=32, vocab_size=64)
TOKENS = np.arange(64).reshape(2, 32)


async def losses(config, steps, **options):
    async with Engine(**options) as engine:
        trainer = Trainer(await GPT2.create(engine, config, seed=1), AdamW(lr=1e-3), update="device")
        found = [(await trainer.step(TOKENS, TOKENS)).loss for _ in range(steps)]
        return found, engine.statistics()


async def main():
    (cpu, _), (emulated, _) = await losses(SMALL, 2, device="cpu"), await losses(SMALL, 2, device="emulated")
    assert cpu == emulated
    found = {}
    for device in "cpu", "emulated":
        try:
            await losses(LARGE, 1, device=device)
            raise AssertionError("more than there is was promised")
        except BudgetError as error:
            found[device] = str(error)
    # What the message advises:
    _, statistics = await losses(LARGE, 1, device="cpu", spill=tempfile.mkdtemp())
    assert statistics.spill_written_bytes > 0
    print(json.dumps({**found, "cap": statistics.host_memory_bytes}))


asyncio.run(main())
"""


def train_under(**limits):
    """Train a small model and one that does not fit; return the message that the second got without a spill folder."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(limits)], capture_output=True, text=True, timeout=HANG_S)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    return json.loads(ran.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
@pytest.mark.parametrize(("name", "argument"), [("RLIMIT_AS", "ulimit -v"), law("RLIMIT_DATA", "ulimit -d")])
def test_a_limit_of_address_space_is_the_default_cap(name, argument):
    nbytes, layers = (1_200_000_000, 10) if name == "RLIMIT_AS" else (850_000_000, 7)
    said = train_under(rlimits={name: nbytes}, layers=layers)
    assert said["cap"] < nbytes
    for device in "cpu", "emulated":
        assert f"; {argument} of " in said[device]
        assert "raise that limit or give spill a folder" in said[device]


@contextlib.contextmanager
def memory_group(nbytes):
    """Return the file that takes the id of a process to limit to `nbytes` of RAM; skip where such a group cannot be made."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"asynctile-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(nbytes))
        except OSError:
            group.rmdir()
            continue
        try:
            yield str(group / "cgroup.procs")
        finally:
            group.rmdir()
        return
    pytest.skip("this machine lets nobody here make a memory cgroup")


@pytest.mark.laws
def test_a_memory_cgroup_is_the_default_cap():
    with memory_group(500_000_000) as procs:
        said = train_under(groups=[procs], layers=7)
    assert said["cap"] < 400_000_000
    assert "; memory cgroup /asynctile-test-" in said["cpu"]
