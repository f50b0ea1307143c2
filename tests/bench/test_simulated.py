"""Steps of machines that are not here, and what the comparison of policies makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asynctile.layers import GPT2Config
from asynctile.measure.hardware import hardware
from asynctile.measure.virtual import Resource
from asynctile.schedule.schedule import Kind

CONFIG = GPT2Config(n_layer=3, n_head=2, n_embd=256, block_size=64, vocab_size=256)


@pytest.fixture(scope="module")
def step(bench: Any) -> Any:
    simulated = bench("simulated")
    return simulated.Step(simulated.Setting(CONFIG, replace(hardware("a100-node"), count=2), 4, tile=128, cap=16 << 20))


@pytest.mark.parametrize("policy", ["planned", "LRU", "dmdasd", "layer by layer"])
def test_each_policy_runs_the_step_of_two_gpus(step: Any, policy: str) -> None:
    run = step.under(policy)
    tokens = 4 * 64
    flops = tokens * (72 * 3 * 256**2 + 12 * 3 * 64 * 256 + 6 * 256 * 256)
    assert run.tflops == pytest.approx(flops / run.clock.seconds / 1e12)
    assert run.moved(Kind.UPLOAD, Kind.DOWNLOAD) >= 0 and run.clock.shares()[Resource.COMPUTE] > 0.01


def test_two_layers_that_do_not_fit_are_no_speed(step: Any) -> None:
    small = replace(step, setting=step.setting._replace(cap=4 << 20))
    assert small.under("layer by layer") is None and small.under("planned").tflops > 0


def test_the_course_of_a_step_has_all_the_seconds_in_which_gpus_compute(bench: Any, step: Any) -> None:
    run, parts = step.under("planned"), bench("bench_policies").computing
    shares, clock = parts(run, 2), run.clock
    computed = sum(busy for unit, busy in clock.busy.items() if unit.resource is Resource.COMPUTE)
    assert sum(shares) / len(shares) * clock.seconds * 2 == pytest.approx(computed)
    assert 0 <= min(shares) <= max(shares) <= 1 + 1e-9


def test_the_models_have_the_sizes_that_the_axes_of_the_figures_name(bench: Any) -> None:
    paper = bench("nntile_paper")
    sizes = {4: {5120: 1.5, 14336: 10.6, 21504: 23.3, 31744: 50.0, 32768: 53.2}, 8: {5120: 2.8, 10240: 10.6, 22528: 49.9}}
    for layers, widths in sizes.items():
        assert set(widths) <= set(paper.NNTILE[layers])
        assert all(round(paper.model(layers, width).parameter_count / 1e9, 1) == size for width, size in widths.items())
    assert paper.VOCABULARY + paper.LENGTH == 51_200


def test_the_fall_with_depth_is_that_of_the_slowest(bench: Any) -> None:
    policies, paper = bench("bench_policies"), bench("nntile_paper")
    table = bench("common").Table("speeds", ())
    for layers, widths in paper.MODELS.items():
        rates = (1000.0 - layers, 500.0, 800.0 - 20 * layers, None, None, None)
        table.rows += [(layers, width, 0.0, 0.0, True, *rates) for width in widths]
    found = {row[0]: row[1:] for row in policies.held(table).rows}
    value, verdict = found["planned, about 23 B: slowest depth below the fastest"]
    assert value == pytest.approx(28 / 996) and verdict.endswith("met")
    assert "layer by layer, about 23 B: slowest depth below the fastest" not in found
    value, verdict = found["dmdasd at 10.6 B, simulated: 8 layers over 4"]
    assert value == pytest.approx(640 / 720) and verdict.endswith("MISSED")


def test_the_bounds_by_formula_are_products_link_or_disk(bench: Any) -> None:
    verdicts, there = bench("bench_verdicts"), hardware("rtx-4090")
    xl, large = verdicts.models()["gpt2-xl"], verdicts.models()["40 x 5,120"]
    products = bench("common").step_flops(xl, 32 * 1024, 1024) * 4 / 3 / there.flops_per_s["bf16"]
    assert verdicts.bound_s(xl, 32, verdicts.FSDP, there, disk=False) == pytest.approx(products)
    assert verdicts.bound_s(xl, 1, verdicts.FSDP, there, disk=False) == pytest.approx(8 * xl.parameter_count / 25e9)
    assert verdicts.bound_s(large, 1, verdicts.FSDP, there, disk=False) is None
    assert verdicts.bound_s(large, 1, verdicts.INFINITY, there, disk=True) == pytest.approx(40 * large.parameter_count / 3e9)


def test_a_verdict_says_that_gpt2_xl_fits(bench: Any) -> None:
    verdicts = bench("bench_verdicts")
    found = verdicts.verdict(verdicts.models()["gpt2-xl"], 1)
    assert found["fits"] and found["step_s"] > 0 and not found["spill"]


@pytest.mark.laws
def test_the_widest_model_is_found_from_below_and_from_above(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = bench("bench_largest")
    monkeypatch.setattr(largest, "RAM", 12e9)
    found = [largest.widest(16, 8, width).setting.config.n_embd for width in (512, 1536)]
    assert found[0] == found[1] and 512 < found[0] < 1536
