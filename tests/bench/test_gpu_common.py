"""Options of the parts, and the arithmetic beside their measurements."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from asynctile.layers import GPT2Config


def test_results_without_a_gpu_are_not_written_and_a_missing_gpu_is_not_measured(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = bench("gpu_common")
    monkeypatch.setattr(sys, "argv", ["gpu_link.py", "--device", "emulated", "--write"])
    with pytest.raises(SystemExit, match="--write is for results of a GPU"):
        common.options_of("", ({}, {}))
    monkeypatch.setattr(common, "no_gpu", lambda: "it is elsewhere")
    monkeypatch.setattr(sys, "argv", ["gpu_link.py"])
    with pytest.raises(SystemExit, match="no GPU to measure on: it is elsewhere"):
        common.options_of("", ({}, {}))


def test_the_flops_of_a_model_are_those_of_its_matrix_products(bench: Any) -> None:
    config = GPT2Config.named("gpt2")
    ours, products = bench("gpu_common").model_flops(config, 1024, 1024), bench("common").step_flops(config, 1024, 1024)
    assert ours == pytest.approx(products, rel=0.01)
