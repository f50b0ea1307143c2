"""An engine's numbers as Prometheus reads them: names, labels and values at each scrape, from a separate registry."""

import asyncio
import math
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.metrics import EngineCollector, registry
from tests.matmul import Matmul

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=32)
TOKENS = np.arange(16).reshape(2, 8)


def scraped(found):
    """Return every sample of a scrape as Prometheus parses it, by name and labels."""
    families = text_string_to_metric_families(generate_latest(found).decode())
    return {(sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}


def labelled(name, **labels):
    return (name, *sorted(labels.items()))


async def test_an_engine_is_reported_as_closed_before_it_opens_and_after_it_closes():
    engine = Engine("cpu")
    found = registry(engine)
    assert scraped(found) == {("asynctile_open",): 0}
    async with engine:
        assert scraped(found)["asynctile_open",] == 1
    assert scraped(found) == {("asynctile_open",): 0}


async def test_a_scrape_gives_the_statistics_of_that_moment(tmp_path):
    work = Matmul()
    places = {"device_memory": 6 * work.nbytes, "host_memory": "64MiB", "spill": tmp_path, "spill_limit": "1MiB"}
    async with Engine("emulated", **places) as engine:
        found = registry(engine)
        assert scraped(found)[labelled("asynctile_moved_bytes_total", share="engine", way="upload")] == 0
        await work.prepare(engine)
        await work.run(engine)
        statistics, got = engine.statistics(), scraped(found)
    for name, value in {
        "operations_total": statistics.operations, "spill_retries_total": 0, "stall_seconds_total": statistics.stall_s,
        "waited_seconds_total": statistics.waited_s, "turn_seconds_total": statistics.turn_s, "turn_waited_seconds_total": 0,
        "skipped_steps_total": 0, "step_tokens_total": 0, "waiting_jobs": 0,
        "step_seconds_count": 0, "step_seconds_sum": 0,
    }.items():  # fmt: skip
        assert got[labelled(f"asynctile_{name}", share="engine")] == value, name
    for way, value in {
        "upload": statistics.uploaded_bytes, "download": statistics.downloaded_bytes, "spill_read": statistics.spill_read_bytes,
        "spill_write": statistics.spill_written_bytes,
    }.items():  # fmt: skip
        assert got[labelled("asynctile_moved_bytes_total", share="engine", way=way)] == value, way
    tiers = {
        "device": (statistics.device_used_bytes, statistics.device_peak_bytes, 6 * work.nbytes),
        "host": (statistics.host_used_bytes, statistics.host_peak_bytes, 64 << 20), "spill": (0, 0, 1 << 20),
    }  # fmt: skip
    for tier, values in tiers.items():
        names = ("used", "peak", "limit")
        found_of = [got[labelled(f"asynctile_memory_{name}_bytes", share="engine", tier=tier)] for name in names]
        assert found_of == list(values), tier
    for queue in statistics.queues:
        assert got[labelled("asynctile_queue_running", share="engine", queue=queue.name)] == 0
    assert statistics.uploaded_bytes > 0 and statistics.operations > 0


async def test_steps_are_counted_with_seconds_and_tokens_under_their_share():
    async with Engine("cpu", host_memory="64MiB") as engine:
        found = registry(engine)
        async with engine.share(host_memory="16MiB", name="night") as night:
            trainer = Trainer(await GPT2.create(night, CONFIG))
            reports = [await trainer.step(TOKENS, TOKENS) for _ in range(4)]
            assert reports[-1].played
            got = await asyncio.to_thread(scraped, found)
        after = scraped(found)
    assert got[labelled("asynctile_step_seconds_count", share="night")] == 4
    assert got[labelled("asynctile_step_seconds_sum", share="night")] == pytest.approx(sum(item.step_s for item in reports))
    assert got[labelled("asynctile_step_tokens_total", share="night")] == 4 * TOKENS.size
    assert got[labelled("asynctile_step_seconds_count", share="engine")] == 0
    assert {name[1:] for name in got if name[0] == "asynctile_queue_running" and ("share", "night") in name} == {
        (("queue", "player"), ("share", "night"))
    }
    assert not any(("share", "night") in name for name in after)


async def test_a_stall_that_is_not_measured_has_no_sample(soft_gpu):
    name = labelled("asynctile_stall_seconds_total", share="engine")
    async with Engine("cuda:0") as engine:
        found = registry(engine)
        assert name not in scraped(found) and math.isnan(engine.statistics().stall_s)
        engine.start_trace()
        assert scraped(found)[name] == engine.statistics().stall_s == 0


async def test_no_sample_appears_twice_while_several_shares_are_played():
    async with Engine("cpu", host_memory="64MiB") as engine, engine.share(host_memory="16MiB", name="night") as night:
        for share in (engine, night):
            trainer = Trainer(await GPT2.create(share, CONFIG))
            assert [(await trainer.step(TOKENS, TOKENS)).played for _ in range(3)][-1]
            assert [queue.name for queue in share.statistics().queues].count("player") == 1
        samples = [sample for metric in registry(engine).collect() for sample in metric.samples]
    found = [labelled(sample.name, **sample.labels) for sample in samples]
    assert sorted(found) == sorted(set(found))
    assert labelled("asynctile_queue_running", share="engine", queue="player") in found


async def test_nothing_is_registered_or_started_outside_the_registry():
    before = generate_latest(REGISTRY), threading.active_count()
    first, second = registry(Engine("cpu")), registry(Engine("cpu"))
    assert scraped(first) == scraped(second)
    assert (generate_latest(REGISTRY).count(b"asynctile"), threading.active_count()) == (0, before[1])
    theirs = CollectorRegistry(auto_describe=True)
    theirs.register(EngineCollector(Engine("cpu")))
    assert scraped(theirs) == scraped(first)


def test_without_the_extra_asynctile_works_and_its_metrics_name_the_missing_package():
    program = """
import sys
sys.modules["prometheus_client"] = None
import asynctile, asynctile.layers
assert not any(name.startswith("prometheus_client.") for name in sys.modules)
import asynctile.metrics
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: asynctile.metrics needs prometheus-client, which is not installed: pip install 'asynctile[metrics]' "
        "brings it"
    )
    assert done.stderr.count("Traceback") == 1
