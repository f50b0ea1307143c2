"""Options that depend on each other, beyond the cases of tests/cli/test_refusals.py: the steps of epochs."""

from __future__ import annotations

from typing import Any

import pytest

from asynctile.cli.fitting import check_devices, check_fit, check_join, steps_of
from asynctile.cli.options import Options


def test_epochs_become_the_steps_that_take_the_tokens_that_often() -> None:
    assert steps_of(1, 1000, 100) == 10
    assert steps_of(1, 1001, 100) == 11
    assert steps_of(2.5, 1000, 100) == 25
    assert steps_of(0.001, 1000, 100) == 1


@pytest.mark.parametrize("epochs", [1e300, 1e18])
def test_infinite_epochs_are_refused(epochs: float) -> None:
    with pytest.raises(ValueError, match=r"--epochs 1e\+.* of this data are .* steps, expected at most 9.22e\+18"):
        steps_of(epochs, 1000, 100)


def test_options_that_depend_on_steps_are_checked_after_epochs_become_steps() -> None:
    assert check_fit(Options(epochs=9.0, steps=1, warmup=50)).warmup_steps == 50
    with pytest.raises(ValueError, match="--warmup 50 is above --steps 9"):
        check_fit(Options(steps=9, warmup=50))


def test_the_length_of_a_sample_is_limited() -> None:
    assert check_fit(Options(sample_tokens=1_000)).sample_tokens == 1_000
    with pytest.raises(ValueError, match="--sample-tokens 1001 makes every validation slow; choose at most 1,000"):
        check_fit(Options(sample_tokens=1_001))


def test_the_rate_ends_at_a_tenth_unless_an_end_was_given() -> None:
    assert Options(lr=0.5).last_lr == 0.05
    assert Options(lr=0.5, min_lr=0.0).last_lr == 0.0
    assert check_fit(Options(lr=0.5, min_lr=0.5)).last_lr == 0.5


@pytest.mark.parametrize(("given", "words"), [
    ({"node": 1}, "--node, --join and --secret-file are for several nodes"),
    ({"join": ("a", 1)}, "--node, --join and --secret-file are for several nodes"),
    ({"nodes": 2, "node": 2, "join": ("a", 1)}, "--node 2 is not one of --nodes 2; nodes count from 0"),
    ({"nodes": 2, "join": ("a", 1), "network": "rdma"}, "unknown --network rdma; expected tcp or nccl"),
    ({"network": "nccl"}, "--network is for several nodes; say how many with --nodes"),
    ({"nodes": 2, "join": ("a", 1), "network": "nccl", "device": "emulated*2", "replicas": 4},
     "--network nccl carries tiles between GPUs, and --device is emulated"),
])  # fmt: skip
def test_options_of_several_nodes_fit_together(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_fit(Options(**given))


def test_nodes_that_train_say_where_they_meet() -> None:
    assert check_fit(Options(nodes=2)).nodes == 2  # a plan needs no address
    with pytest.raises(ValueError, match="--nodes 2 without --join: name the address at which node 0 listens"):
        check_join(Options(nodes=2))


def test_there_are_at_least_as_many_replicas_as_devices_of_all_nodes() -> None:
    given = {"nodes": 2, "join": ("a", 1), "device": "emulated*2", "batch_size": 4}
    check_devices(Options(**given, replicas=4))
    with pytest.raises(ValueError, match="--nodes 2 have 4 devices in all, but --replicas is 2; choose"):
        check_devices(Options(**given, replicas=2))
