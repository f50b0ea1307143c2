"""Rates of a machine: measured once, kept, the same for every engine and plan; damaged or foreign files are replaced.

test_cores.py and test_rates.py test the measurements of a probe.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asynctile import DeviceError, Engine
from asynctile.device import open_device
from asynctile.measure import known
from asynctile.schedule.rates import CORES, Rates, assumed
from asynctile.share import runtime_of
from tests.cuda.idle import IdleDriver

MEASURED = replace(CORES, flops_per_s=3e11, updated_per_s=1e10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which no rates are known yet."""
    monkeypatch.setattr(known, "cache_folder", lambda: tmp_path)
    return tmp_path / known.FOLDER


@pytest.fixture
def probes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of the probes that run, in order."""
    found: list[str] = []

    def of_cores() -> Rates:
        found.append("cores")
        return MEASURED

    async def of_gpu(device: Any, dtype: Any, cap: int | None, cores: Rates) -> Rates | None:
        assert cores == MEASURED.rounded()
        found.append(f"GPU {dtype}")
        return None if cap is not None and cap < 1 << 20 else replace(assumed("cuda:0"), memory_per_s=1e12)

    monkeypatch.setattr(known, "measure_cores", of_cores)
    monkeypatch.setattr(known, "measure_gpu", of_gpu)
    monkeypatch.setattr("asynctile.device.open_driver", lambda name: IdleDriver())
    return found


async def rates_on(device: str, **options: Any) -> tuple[Rates, Rates]:
    """Return the rates of an engine's machine, and those by which its tiers decide."""
    async with Engine(device, **options) as engine:
        return engine.rates, runtime_of(engine).tiers.rates


async def test_only_the_first_engine_measures_the_cores_and_rates_are_rounded(probes: list[str]) -> None:
    assert known.known("cpu", "fp32") is None
    for device in ("cpu", "emulated", "cpu"):
        assert await rates_on(device) == (MEASURED.rounded(), MEASURED.rounded())
    assert known.known("cpu", "fp32") == known.known("emulated", "fp32") == MEASURED.rounded()
    assert probes == ["cores"]


async def test_a_limited_link_changes_the_rates_for_decisions_and_not_the_known_rates(probes: list[str]) -> None:
    machine, tiers = await rates_on("emulated", link_rate="5MB")
    assert machine == MEASURED.rounded() == known.known("emulated", "fp32")
    assert tiers == machine.limited(5_000_000)


async def test_a_share_decides_as_its_engine_does(probes: list[str]) -> None:
    async with Engine("cpu", host_memory="64MiB") as engine, engine.share(host_memory="16MiB") as share:
        assert share.rates == engine.rates == runtime_of(share).tiers.rates == MEASURED.rounded()


async def test_given_rates_are_used_and_nothing_is_measured(probes: list[str]) -> None:
    assert await rates_on("emulated", rates=CORES, link_rate="1MB") == (CORES, CORES.limited(1_000_000))
    with pytest.raises(TypeError, match="rates is 5: expected the rates of another engine"):
        Engine("cpu", rates=5)  # type: ignore[arg-type]
    assert probes == []


async def test_a_gpu_is_measured_once_for_each_precision(probes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in ("fp32", "bf16", "fp32"):
        machine, tiers = await rates_on("cuda:0", precision=precision, device_memory="64MiB")
        assert machine == tiers == replace(assumed("cuda:0"), memory_per_s=1e12).rounded()
    assert probes == ["cores", "GPU float32", "GPU uint16"]
    assert known.known("cuda:0", "bf16") is None, "nobody knows here which GPU that is"
    monkeypatch.setattr(known, "gpu_title", {"cuda:0": "cuda:0"}.get)
    assert known.known("cuda:0", "bf16") == known.known("cuda:0-1", "bf16") == machine


async def test_a_cap_too_small_for_a_gpu_probe_leaves_the_probe_to_a_later_engine(probes: list[str]) -> None:
    assert await rates_on("cuda:0", device_memory="512KiB") == (assumed("cuda:0"), assumed("cuda:0"))
    assert (await rates_on("cuda:0", device_memory="64MiB"))[0].memory_per_s == 2.0**40
    assert probes == ["cores", "GPU float32", "GPU float32"]


async def test_a_failing_gpu_probe_does_not_keep_an_engine_from_opening(
    probes: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*args: object) -> None:
        raise DeviceError("no memory is left")

    monkeypatch.setattr(known, "measure_gpu", fails)
    assert (await rates_on("cuda:0", device_memory="64MiB"))[0] == assumed("cuda:0")
    assert "cuda:0 was not measured (no memory is left)" in caplog.text


@pytest.mark.parametrize("content", [
    b"", b"{", b"[" * 9999, b"null", b'{"about": [], "rates": {}}', b'"rates"', b"\xff\xfe", b"0" * 9999,
])  # fmt: skip
async def test_a_damaged_file_is_replaced(probes: list[str], folder: Path, content: bytes) -> None:
    known.keep(known.ON_CORES, "fp32", CORES)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert (await rates_on("cpu"))[0] == known.known("cpu", "fp32") == MEASURED.rounded()
    assert probes == ["cores"]


@pytest.mark.parametrize("change", [
    {"flops_per_s": 0}, {"flops_per_s": -1.0}, {"flops_per_s": float("nan")}, {"flops_per_s": float("inf")},
    {"flops_per_s": "fast"}, {"flops_per_s": True}, {"flops_per_s": 10**400}, {"more": 1.0},
])  # fmt: skip
async def test_invalid_rates_are_measured_again(probes: list[str], folder: Path, change: dict[str, Any]) -> None:
    known.keep(known.ON_CORES, "fp32", CORES)
    (file,) = folder.iterdir()
    found = json.loads(file.read_bytes())
    found["rates"] |= change
    file.write_text(json.dumps(found))
    assert (await rates_on("cpu"))[0] == MEASURED.rounded()
    assert probes == ["cores"]


async def test_rates_of_another_machine_are_not_used(probes: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known.keep(known.ON_CORES, "fp32", CORES)
    (file,) = folder.iterdir()
    monkeypatch.setattr(known, "processor", lambda: "another")
    assert known.known("cpu", "fp32") is None
    foreign = file.read_bytes()
    assert (await rates_on("cpu"))[0] == MEASURED.rounded()
    (mine,) = set(folder.iterdir()) - {file}
    mine.write_bytes(foreign)  # under another name
    assert known.known("cpu", "fp32") is None


async def test_rates_are_assumed_where_nothing_can_be_kept_or_measured(
    probes: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "measure_cores", lambda: None)
    assert (await rates_on("cpu"))[0] == CORES
    assert (await rates_on("cuda:0", device_memory="64MiB"))[0] == assumed("cuda:0")
    monkeypatch.undo()
    monkeypatch.setattr(known, "cache_folder", lambda: None)
    monkeypatch.setattr(known, "measure_cores", lambda: pytest.fail("it would be measured by each process anew"))
    assert (await rates_on("cpu"))[0] == CORES
    assert known.known("cpu", "fp32") is None


def test_of_several_engines_without_rates_only_one_measures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.joinpath(known.FOLDER).mkdir()
    count: list[Rates] = []
    together = threading.Barrier(8)

    def measured() -> Rates:
        time.sleep(0.05)  # the others come to the lock meanwhile
        count.append(replace(CORES, flops_per_s=float(2 ** (30 + len(count)))))
        return count[-1]

    monkeypatch.setattr(known, "measure_cores", measured)
    found: list[Rates] = []
    device = open_device("cpu")

    def ask() -> None:
        together.wait()
        found.append(known.machine_rates(device, "fp32", None, lambda work: pytest.fail("there is no GPU")))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.close()
    assert len(count) == 1
    assert found == [count[0].rounded()] * 8
