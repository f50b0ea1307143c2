"""The examples of embedding run as they stand, a step leaves the caller's loop alone, documents name files that exist."""

import asyncio
import re
import time
from pathlib import Path

import numpy as np

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "CONTRIBUTING.md", ROOT / "bench" / "results" / "README.md")
FOLDERS = ("asynctile", "layers", "storage", "tests", "bench", "examples")
SERVICE = ROOT / "docs" / "tutorials" / "embed-in-a-service.md"


def run_blocks(document, folder):
    """Run the Python blocks of a document as one script with warnings as errors, and return the lines that it prints."""
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    (folder / "service.py").write_text("".join(blocks))
    command = [sys.executable, "-W", "error", "service.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_of_the_readme_runs_as_printed(tmp_path):
    (line,) = run_blocks(README, tmp_path)
    assert re.fullmatch(r"step 20, loss \d\.\d{3}, after \d+ turns of this loop", line)


def test_the_tutorial_on_services_runs_as_printed(tmp_path):
    shape, step, before, trained, first, second, *rest = run_blocks(SERVICE, tmp_path)
    assert shape == "(4, 64) b'trains; a service an'"
    assert re.fullmatch(r"step 20, loss \d\.\d+ after \d+ answers", step)
    assert before.startswith("before ") and re.fullmatch(r"step 120, loss 0\.\d{3}", trained)
    assert (first, second) == ("after  (' answers while it trains', 'stop')", "after  (' it trains', 'stop')")
    *saved, opened, told = rest
    assert saved == ["stopped between two steps: True", "the next step is one further: True"]
    assert opened == "open: True, steps: 1" and re.fullmatch(r"step 1, loss \d\.\d{3}", told)


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
