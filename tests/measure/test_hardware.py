"""Machine files: those that come with asynctile can be read, and a wrong one is refused by file and key."""

import re
from pathlib import Path

import pytest

from asynctile.measure.hardware import FOLDER, SPARE, hardware, names

GOOD = """
title = "a machine"
[devices]
kind = "cuda"
count = 2
memory = "8GiB"
memory_per_s = "1TB"
operation_s = 3e-6
flops_per_s = { fp32 = 1e13, bf16 = 1e14 }
[link]
up_per_s = "25GB"
down_per_s = "20GB"
[peers]
per_s = "100GB"
[ram]
memory = "100GB"
updated_per_s = "40GB"
copied_per_s = "12GB"
[disk]
memory = "1TB"
per_s = "3GB"
[verbs.512]
gelu = 5e11
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "machine.toml"


@pytest.mark.parametrize("name", names())
def test_every_machine_that_comes_with_asynctile_can_be_read_and_names_its_sources(name: str) -> None:
    found = hardware(name)
    assert found.rates("fp32").flops_per_s > 1e11 and found.title in (FOLDER / f"{name}.toml").read_text()
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    assert sum("#" in line for line in lines) >= 7


def test_a_file_gives_sizes_rates_and_verbs(written: Path) -> None:
    written.write_text(GOOD)
    found = hardware(str(written))
    assert (found.device, found.first(1), found.memory, found.ram) == ("cuda:0-1", "cuda:0", 8 << 30, int(SPARE * 100e9))
    assert (found.passed_per_s, found.disk, found.verbs) == (1e11, 10**12, {512: {"gelu": 5e11}})
    rates = found.rates("bf16")
    assert (rates.flops_per_s, rates.up_per_s, rates.down_per_s, rates.disk_per_s) == (1e14, 2.5e10, 2e10, 3e9)
    with pytest.raises(ValueError, match=r"a machine has no rate of products in tf32; its file has fp32, bf16"):
        found.rates("tf32")


@pytest.mark.parametrize(("old", "new", "said"), [
    ("count = 2", "count = 0", "[devices] count: '0' is not a whole number from 1 to 1024"),
    ("count = 2", "count = true", "[devices] count: 'True' is not"),
    ("count = 2", "", "[devices] count: missing"),
    ('"8GiB"', '"-8GiB"', "[devices] memory: '-8GiB' is not a size such as"),
    ('"8GiB"', "0", "[devices] memory: '0' is not a size"),
    ('"cuda"', '"tpu"', "[devices] kind: 'tpu' is not known; expected cuda or cpu"),
    ('"cuda"', '"cpu"', "[link] and [peers]: cores that compute in RAM have none"),
    ("3e-6", "nan", "[devices] operation_s: 'nan' is not a number from"),
    ("fp32 = 1e13", "fp64 = 1e13", "[devices] flops_per_s:"),
    ("fp32 = 1e13", "fp32 = -1", "[devices.flops_per_s] fp32: '-1.0'"),
    ('up_per_s = "25GB"', 'upp = "25GB"', "[link] up_per_s: missing"),
    ('up_per_s = "25GB"', 'up_per_s = "25GB"\nx = 1', "[link] 'x': unknown; expected down_per_s, up_per_s"),
    ("[peers]", "[fast]", "a table ['fast']"),
    ("[ram]", "[ram2]", "has no table [ram]"),
    ("gelu = 5e11", 'gelu = "fast"', "[verbs.512] gelu: 'fast' is not a number"),
    ("[verbs.512]", "[verbs]", "[verbs] gelu: 'gelu' is not the edge of tiles"),
    ("[verbs.512]\ngelu", "[verbs]\n512", "[verbs] 512: '500000000000.0' is not a table of rates"),
    ('title = "a machine"', 'title = ""', "title: '' is not a line of text"),
    ('title = "a machine"', "", "title: missing"),
    ("[link]", "[link", "is not TOML"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_its_name_and_the_key(written: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    written.write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(f"--machine {written}")) as refused:
        hardware(str(written))
    assert said.replace("'-1.0'", "'-1") in str(refused.value) and "\n" not in str(refused.value)


def test_a_gpu_without_memory_or_link_is_refused(written: Path) -> None:
    written.write_text(GOOD.replace('memory = "8GiB"\n', ""))
    with pytest.raises(ValueError, match=r"\[devices\]: a GPU needs its memory, and a table \[link\]"):
        hardware(str(written))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'h300' is neither a file nor one of a100-40gb, .*rtx-5090"):
        hardware("h300")
