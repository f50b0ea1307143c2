"""The README's example of embedding runs as it stands, a step leaves the caller's loop alone, documents name what is there."""

import ast
import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "CONTRIBUTING.md", ROOT / "bench" / "results" / "README.md")
FOLDERS = ("asynctile", "layers", "storage", "tests", "bench", "examples")
MARK = r"<!-- tests/test_readme\.py runs the next block(?: behind the one above)? -->"


def test_the_examples_of_a_service_run_as_printed(tmp_path):
    blocks = re.findall(MARK + r"\s*```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 5
    (tmp_path / "service.py").write_text("".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", "service.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    step, side_by_side, served, beside_steps, *watched = done.stdout.splitlines()
    assert re.fullmatch(r"step 20, loss \d\.\d+ after \d+ answers", step)
    assert re.match(r"\(\d\.\d+, b['\"]", side_by_side)
    assert [reason for _, reason in ast.literal_eval(served)] == ["length", "length"]
    assert [len(ids) for ids in ast.literal_eval(beside_steps)] == [20, 20]
    assert watched[0] == "True 1"
    assert re.fullmatch(r"gpt2-\d+ 1 \d\.\d{3}", watched[1]) and len(watched) == 2


async def test_the_callers_loop_keeps_ticking_while_steps_run():
    """A step leaves it nothing to wait for, and little of its Python: by this thread's share of what the process computes."""
    config = GPT2Config(n_layer=2, n_head=4, n_embd=256, block_size=128, vocab_size=512)
    tokens = np.random.default_rng(0).integers(0, 512, (4, 128))
    lags = []

    async def tick():
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - start - 0.005)

    async with Engine("emulated", device_memory="6MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, config, tile=128))
        await trainer.step(tokens, tokens)
        ticker = asyncio.create_task(tick())
        here_s, all_s = time.thread_time(), time.process_time()
        for _ in range(4):
            await trainer.step(tokens, tokens)
        share = (time.thread_time() - here_s) / (time.process_time() - all_s)
        ticks, gemm, asked = len(lags), engine.kernels["gemm"], []

        def until_the_next_tick(*args):
            if not asked:
                asked.append(len(lags))
                while len(lags) == asked[0]:
                    time.sleep(0.001)
            gemm(*args)

        engine.kernels["gemm"] = until_the_next_tick
        async with asyncio.timeout(60):
            await trainer.step(tokens, tokens)
        ticker.cancel()
    p99 = sorted(lags[:ticks])[int(0.99 * ticks)]
    print(f"\n5 ms ticker beside training: p99 lag {p99 * 1e3:.1f} ms over {ticks} ticks, {share:.1%} of the CPU in its thread")
    assert asked
    assert share < 0.1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    text = document.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (document.parent / path).exists(), target
        assert not anchor or anchor in headings, target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_the_text_are_there(document):
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", document.read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
