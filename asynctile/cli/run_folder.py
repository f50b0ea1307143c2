"""The folder of a run: what is in it, and how it stays whole.

    run.json          options, model, versions        tokenizer.json    as Hugging Face has it
    metrics.jsonl     one line a step                 tokens/           the data as tokens
    checkpoints/      step-000200, ...                loss.png, sample.txt, summary.json    written at the end

Covers `RunFolder`. What a checkpoint holds is the trainer's; what options mean is options.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from asynctile.errors import CheckpointError
from asynctile.layers.config import TOKENS
from asynctile.storage.beside import recover_folders, remove_folder
from asynctile.storage.folder import read_json, write_file, write_json

__all__ = ["RunFolder", "check_same_model", "existing_run"]

_FORMAT = 1
_CHECKPOINT = re.compile(r"step-(\d{6,})")


class RunFolder:
    """Make one by `create` or `open`; `close` ends the metrics file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.tokens = path / "tokens"
        self.tokenizer = path / "tokenizer.json"
        self._file: IO[str] | None = None
        #: a descriptor that holds the lock on the folder
        self._claim: int | None = None
        #: this process made the run, and no step has left its line yet
        self._fresh = False
        #: folders that this process made, the innermost first
        self._made: list[Path] = []

    @classmethod
    def create(cls, path: Path, record: Mapping[str, Any]) -> RunFolder:
        """A new run in a folder that is empty or not there yet; ValueError if it holds anything."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; name a folder that is empty or not there yet")
        if (path / "run.json").exists():
            raise ValueError(f"--out {path} holds another run; add --resume to go on with it, or name another folder")
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"--out {path} holds files that are no run; name a folder that is empty or not there yet")
        folder = cls(path)
        folder._made = [made for made in (path, *path.parents) if not made.exists()]
        folder._fresh = True
        path.mkdir(parents=True, exist_ok=True)
        folder.write_record(record)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that exists; ValueError if there is none. What a kill left of a save is mended or cleared away."""
        if not (path / "run.json").is_file():
            raise ValueError(f"{path} holds no run (it has no run.json); leave --resume out to start one there")
        recover_folders(path / "checkpoints")
        return cls(path)

    def claim(self) -> None:
        """Keep other processes out until `unclaim`, or until this one ends; ValueError if one is in."""
        self._claim = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unclaim()
            raise ValueError(f"the run {self.path} is in use by another process; wait for it, stop it, or name another "
                             "folder with --out") from None

    def unclaim(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write run.json; ValueError, and the older one stays, if the run was begun with another model."""
        if (self.path / "run.json").exists():
            check_same_model(self.read_record().get("model"), record.get("model"), f"--model of the run {self.path}")
        write_json(self.path / "run.json", {"format": _FORMAT, **record})

    def read_record(self) -> dict[str, Any]:
        """run.json; CheckpointError if it is damaged or of a later asynctile."""
        record = read_json(self.path / "run.json")
        if not isinstance(record, dict) or not isinstance(record.get("options"), dict):
            raise CheckpointError(f"{self.path / 'run.json'} is damaged: it has no options; start another run")
        if record.get("format") != _FORMAT:
            raise CheckpointError(f"{self.path / 'run.json'} has format {record.get('format')!r}, expected {_FORMAT}; "
                                  "use the asynctile that wrote it")
        return record

    def discard_unless_begun(self) -> None:
        """Remove what this process made, if no step has left its line: a refused run leaves nothing behind."""
        self.close()
        if not self._fresh:
            return
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for path in self._made:
            path.rmdir()

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        return sorted(filter(_step_of, self.path.glob("checkpoints/step-*")), key=_step_of)

    def prune(self, keep: int) -> None:
        """Remove all but the newest checkpoints."""
        for path in self.checkpoints()[:-keep]:
            remove_folder(path)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the metrics, in one write: whoever reads along sees whole lines."""
        if self._file is None:
            self._file = open(self.metrics, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:  # a write does not say where
            raise OSError(error.errno, error.strerror, str(self.metrics)) from error
        self._fresh = False

    def lines(self) -> Iterator[dict[str, Any]]:
        """The metrics, line by line; one that was cut short by a kill is left out."""
        if not self.metrics.exists():
            return
        with open(self.metrics, encoding="utf-8") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue
                if isinstance(line, dict) and isinstance(line.get("step"), int):
                    yield line

    def trim(self, step: int) -> None:
        """Drop the metrics of steps after `step`: they will be done again."""
        self.close()
        kept = [json.dumps(line) + "\n" for line in self.lines() if line["step"] <= step]
        write_file(self.metrics, "".join(kept).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def check_same_model(begun: Any, found: Any, what: str) -> None:
    """ValueError if `found` (a config.json's content) is another model than `begun`; None: not known yet.

    Which tokens begin and end a text is no part of what is computed.
    """
    if isinstance(begun, dict) and isinstance(found, dict):
        for name in begun.keys() & found.keys() - {*TOKENS}:
            if begun[name] != found[name]:
                raise ValueError(f"{what} is another model than the run was begun with: {name} is {found[name]}, it was "
                                 f"{begun[name]}; put it back, or start another run with another --out")


def existing_run(typed: Mapping[str, Any]) -> RunFolder:
    """The run that --resume means; ValueError if --out does not name one."""
    if "out" not in typed:
        raise ValueError("--resume needs to know which run goes on; name its folder with --out")
    return RunFolder.open(Path(typed["out"]))


def _step_of(checkpoint: Path) -> int:
    """The step of a checkpoint's folder, 0 if it has another name (one being written begins with a dot)."""
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    return int(match[1]) if match else 0
