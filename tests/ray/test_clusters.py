"""Runs on clusters of Ray: the bits of a single process on any number of workers, also when workers and machines are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli import main
from tests.cli.test_nodes import digests
from tests.ray import clusters
from tests.ray.clusters import LOSSES, STEPS, alone, fit, fit_with_a_loss, prepare, words

pytest.importorskip("ray", reason="needs the extra `ray` (make ray)")

# Ray itself warns of what it will change. On two cores a cluster and its workers take half a minute to start.
pytestmark = [
    pytest.mark.ray, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"), pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The digests of the run in a single process."""
    return alone(tmp_path_factory.mktemp("alone"))


@pytest.fixture
def cluster() -> Iterator[Any]:
    with clusters.cluster(workers_each=2) as made:
        yield made


def test_a_run_has_the_bits_of_one_process_on_any_number_of_workers(
    cluster: Any, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    for count in (1, 2, 3, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        result = fit(folder, count)
        assert digests(folder / "run") == undisturbed, f"on {count} workers"
        assert result.metrics["step"] == STEPS and Path(result.checkpoint.path).is_relative_to(folder / "ray")


@pytest.mark.parametrize("lost", LOSSES)
def test_a_run_that_loses_a_worker_or_a_machine_goes_on_with_the_same_bits(
    cluster: Any, undisturbed: dict[str, bytes], tmp_path: Path, lost: str
) -> None:
    recovery = fit_with_a_loss(cluster, tmp_path, (1, 4), lost, which=1, step=3, after_s=0.0)
    assert recovery.result.metrics["step"] == STEPS and digests(tmp_path / "run") == undisturbed
    assert recovery.noticed_s < recovery.went_on_s


def test_the_command_runs_on_a_cluster_of_this_machine(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert main(["train", "--ray", "local", "--nodes", "2", *words(prepare(tmp_path))]) == 0
    assert digests(tmp_path / "run") == undisturbed
    assert main(["train", "--ray", "local", "--nodes", "2", "--resume", "--steps", "8", "--out", str(tmp_path / "run")]) == 0
    assert max((tmp_path / "run" / "checkpoints").glob("step-*")).name == "step-000008"


def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        assert main(["train", "--ray", address, *words(prepare(tmp_path))]) == 2
        assert f"no cluster of Ray can be reached at --ray {address}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
