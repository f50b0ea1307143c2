"""The results of GPU benchmarks: a `Section` for each part of bench/gpu.sh, all in one pair of files.

bench/results/cuda_<gpu>_<yyyymm>.json and .md. A section is saved after every row, so a part that is stopped leaves its rows.
The section of an earlier run stays until the new one has its first row. gpu_<part>.py measures a part, gpu_common.py is their
shared code.
"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Table, commit, machine, show, target

#: The folder for rehearsals, which are not results.
REHEARSED = ROOT / "runs" / "rehearsal"
#: The parts of bench/gpu.sh, in order.
PARTS = ("smoke", "tests", "race", "replay", "link", "kernels", "capped", "memory", "largest", "depth", "two")
THEME = "cuda"
HEADLINES = ("what", "measured", "wanted")


class Section:
    """The results of one part: its tables, and headlines for the short table that comes last.

    text: the part's docstring, with its question and command. configuration: how it was measured; callers add to it. options:
    have the device, the precision and whether to write.
    """

    def __init__(self, part: str, text: str | None, options: Namespace) -> None:
        self.part = part
        self.text = (text or "").strip()
        command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        self.configuration: dict[str, Any] = {
            "command": command, "device": options.device, "precision": options.precision}
        self.tables: list[Table] = []
        self._ways: dict[str, list[str]] = {}
        self.headlines = Table(f"{part}: what was wanted", HEADLINES)
        self._folder = folder_of(options.device) if options.write else None
        self._where = {**machine(), **gpu_facts(options.device)}

    def table(self, title: str, *columns: str) -> Table:
        """Add a table to this section, to be filled with `add`."""
        self.tables.append(Table(title, columns))
        return self.tables[-1]

    def add(self, table: Table, *row: Any) -> None:
        """Add a row, filled up with blanks, and print and save it at once."""
        table.rows.append((*row, *[None] * (len(table.columns) - len(row))))
        cells = zip(table.columns, row, strict=False)
        print(f"{table.title}: " + ", ".join(f"{name} {show(value)}" for name, value in cells if value not in (None, "")),
              flush=True)  # fmt: skip
        self.save()

    def put(self, table: Table, values: Mapping[str, Any]) -> None:
        """Add a row by the names of its columns; the others stay blank."""
        unknown = values.keys() - set(table.columns)
        assert not unknown, f"{table.title} has no column {unknown}"
        self.add(table, *(values.get(column) for column in table.columns))

    @contextmanager
    def row(self, table: Table, *row: Any) -> Iterator[None]:
        """Measure a row inside the block. If that fails, a row says why in the column note, and the part goes on."""
        try:
            yield
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            note = f"failed: {type(error).__name__}: {said[:200]}"
            self.put(table, {**dict(zip(table.columns, row, strict=False)), "note": note})
        finally:
            gc.collect()  # a model in a reference cycle would keep memory that the next one needs

    def headline(self, what: str, value: Any, bound: float | None = None, *, above: bool = True) -> None:
        """Add a number with its target to the short table. It replaces an earlier one of the same name."""
        row = what, value, None if bound is None else target(value, bound, above=above)
        names = [before[0] for before in self.headlines.rows]
        if what in names:
            self.headlines.rows[names.index(what)] = row
        else:
            self.headlines.rows.append(row)
        self.save()

    def went_by(self, driver: Any, precision: str) -> None:
        """Record what computed attention and added biases on `driver`; None stands for the kernels of a CPU.

        If the answer changes, all answers are listed.
        """
        own = "the CPU's kernels" if driver is None else f"asynctile's kernels in {precision}"
        ways = {"attention": own if driver is None or precision != "bf16" else driver.attention,
                "bias": own if driver is None else driver.epilogues}  # fmt: skip
        for what, words in ways.items():
            said = self._ways.setdefault(what, [])
            if words not in said:
                said[:] = [*(old for old in said if not words.startswith(old)), words]
            self.configuration[what] = "; ".join(said)
        self.save()

    def content(self) -> dict[str, Any]:
        """Return the content for the results: question, configuration, machine, tables; the headlines are the last table."""
        tables = [{"title": t.title, "columns": list(t.columns), "rows": t.rows} for t in (*self.tables, self.headlines)]
        return {"question": self.text, "configuration": self.configuration, "machine": self._where, "tables": tables}

    def save(self) -> None:
        """With --write, save the content in the results of this GPU and month, as soon as a table has a row."""
        if self._folder is not None and any(table.rows for table in (*self.tables, self.headlines)):
            merge(self._folder, self.part, self.content())

    def end(self) -> None:
        """Print all tables once more, and save."""
        print("\n" + "\n\n".join(table.text() for table in (*self.tables, self.headlines)), flush=True)
        self.save()


def folder_of(device: str) -> Path:
    """Return the results folder of a device."""
    return RESULTS if device.startswith("cuda") else REHEARSED


def no_gpu() -> str | None:
    """Return why there is no GPU here, in one line; None if there is one."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"CuPy finds no device ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return None if count else "CuPy finds no device"


def gpu_facts(device: str) -> dict[str, Any]:
    """Return day and commit, and for a GPU its name, memory, driver and libraries."""
    facts: dict[str, Any] = {"commit": commit(), "day": time.strftime("%Y-%m-%d"), "began": time.strftime("%H:%M:%S")}
    if device == "soft":
        return {**facts, "gpu": "rehearsal"}
    if not device.startswith("cuda"):
        return facts
    import cupy

    runtime, number = cupy.cuda.runtime, int(device.partition(":")[2] or 0)
    properties = runtime.getDeviceProperties(number)
    return {
        **facts,
        "gpu": properties["name"].decode(),
        "gpu_memory": f"{properties['totalGlobalMem'] / 2**30:.1f} GiB",
        "multiprocessors": properties["multiProcessorCount"],
        "driver": driver_version(),
        "cuda": f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}",
        "cupy": cupy.__version__,
    }


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def slug(name: str) -> str:
    """Return a GPU's name as part of a file name: "NVIDIA H200" becomes "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-") or "gpu"


def results_name(gpu: str, day: str) -> str:
    """Return <theme>_<gpu>_<yyyymm>. day: YYYY-MM-DD."""
    return f"{THEME}_{slug(gpu)}_{day[:4]}{day[5:7]}"


def merge(folder: Path, part: str, content: dict[str, Any]) -> Path:
    """Save the section of a part in the results of its GPU and month, beside those of other parts. Returns the JSON file."""
    where = content["machine"]
    path = folder / f"{results_name(where['gpu'], where['day'])}.json"
    whole = read(path) or {"name": path.stem, "gpu": where["gpu"], "parts": {}}
    parts = {**whole["parts"], part: content}
    whole["parts"] = {name: parts[name] for name in PARTS if name in parts}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in ((path, json.dumps(whole, indent=1) + "\n"), (path.with_suffix(".md"), markdown(whole))):
        beside = file.with_name(f".{file.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)  # atomic, so a process that is stopped leaves a whole file
    return path


def read(path: Path) -> dict[str, Any] | None:
    """Return earlier results; None if there are none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def markdown(whole: dict[str, Any]) -> str:
    """Return the results as markdown."""
    body = [f"# {whole['name']}", f"Measured on one {whole['gpu']} by `bench/gpu.sh`."]
    for part, content in whole["parts"].items():
        facts = {**content["configuration"], **content["machine"]}
        body += [f"## {part}", content["question"], "\n".join(f"- {key}: {value}" for key, value in facts.items())]
        body += [Table(t["title"], t["columns"], t["rows"]).markdown() for t in content["tables"] if t["rows"]]
    return "\n\n".join(body) + "\n"
