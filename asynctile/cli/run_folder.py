"""The folder of a run: its files, and how they stay consistent.

    run.json          options, model, versions, rates tokenizer.json          in Hugging Face's format
    metrics.jsonl     a line per step and validation  tokens/, validation/    tokens of --data and --validation-data
    samples.jsonl     with --sample-tokens            checkpoints/            step-000200, ..., best
                                                      loss.png, sample.txt, summary.json    written at the end

Covers `RunFolder`. checkpoints.py covers saved models, journal.py files of JSON lines, precedence.py which option wins.
"""

from __future__ import annotations

import fcntl
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from asynctile.cli.checkpoints import NAME as CHECKPOINTS
from asynctile.cli.checkpoints import Checkpoints, step_of
from asynctile.cli.journal import Journal, ResumePoint
from asynctile.device import resolved
from asynctile.errors import CheckpointError
from asynctile.layers.config import TOKENS
from asynctile.layers.report import number_in
from asynctile.schedule.rates import Rates
from asynctile.storage.folder import encode_json, unreadable
from asynctile.storage.input import parse_json, read_file, shown
from asynctile.storage.inside import Folder

__all__ = ["RunFolder", "check_same_model", "existing_run", "recorded_rates", "told_rates"]

_FORMAT = 1
_RECORD, _METRICS, _SAMPLES = "run.json", "metrics.jsonl", "samples.jsonl"
_TOKENS, _VALIDATION = "tokens", "validation"
#: Files that a run writes, in its folder and in those of tokens. All other names belong to somebody else.
_FILES = (_RECORD, _METRICS, _SAMPLES, "tokenizer.json", "loss.png", "loss.svg", "sample.txt", "summary.json")
_TOKEN_FILES = ("tokens.bin", "tokens.json", "answers.bin", "starts.bin")


class RunFolder:
    """A run on disk. `create` makes one that this process may write; `open` finds one to read.

    `claim` lets this process write an opened run, from `begin` on. `close` ends the metrics file, `unclaim` everything.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = Journal(path, _METRICS)
        self.samples = Journal(path, _SAMPLES)
        self.checkpoints = Checkpoints(path)
        self.tokens, self.validation = path / _TOKENS, path / _VALIDATION
        self.tokenizer = path / "tokenizer.json"
        #: held open and locked once claimed; every write goes through it by name
        self._held: Folder | None = None
        #: rates that a resumed run plans with; None: those of this machine
        self.rates: Rates | None = None
        #: this process made the run
        self.is_new = False
        #: a step has left its line, or in a resumed run a validation: there is something to resume from
        self.begun = False
        #: folders that this process made, innermost first
        self._made: list[Path] = []
        #: of a resumed run: its new record, and its resume point
        self._next: tuple[Mapping[str, Any], ResumePoint] | None = None

    @classmethod
    def create(cls, path: Path, record: Mapping[str, Any]) -> RunFolder:
        """Create a new run in a folder that is empty or missing; ValueError if it holds anything."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; name an empty or new folder")
        if (path / _RECORD).exists():
            raise ValueError(f"--out {path} already holds a run; add --resume to continue it, or name another folder")
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"--out {path} holds other files; name an empty or new folder")
        folder = cls(path)
        folder._made = [made for made in (path, *path.parents) if not made.exists()]
        folder.is_new = True
        try:
            folder._make(record)
        except OSError as error:  # about a file that the user did not name
            raise OSError(error.errno, error.strerror, f"--out {path}") from error
        return folder

    def _make(self, record: Mapping[str, Any]) -> None:
        """Make the folder, claim it and write run.json; on an error leave nothing behind."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.claim()
        try:
            self.remember(record, ResumePoint())
        except BaseException:
            self.discard_unless_begun()
            self.unclaim()
            raise

    @staticmethod
    def holds_run(path: Path) -> bool:
        """Return whether there is a run in a folder."""
        return (path / _RECORD).is_file()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the run in a folder without changing it; ValueError if there is none."""
        if not cls.holds_run(path):
            raise ValueError(f"{path} holds no run (run.json is missing); leave --resume out to start one there")
        return cls(path)

    def claim(self) -> None:
        """Lock other processes out until `unclaim` or the end of this one.

        ValueError if another process holds the run. CheckpointError or OSError for a link, or anything else that is not a plain
        file or folder, where the run would write.
        """
        self._held = Folder.open(self.path)
        try:
            fcntl.flock(self._held.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_place(self._held)
        except BlockingIOError:
            self.unclaim()
            raise ValueError(f"the run {self.path} is in use by another process; wait for it, stop it, or name another "
                             "--out folder") from None
        except BaseException:
            self.unclaim()
            raise

    def unclaim(self) -> None:
        self.close()
        if self._held is not None:
            self._held.close()
            self._held = None

    def _check_place(self, held: Folder) -> None:
        held.check_plain(_FILES)
        for name in (_TOKENS, _VALIDATION, CHECKPOINTS):
            if held.stat(name) is not None:
                with held.inside(name) as folder:
                    if name == CHECKPOINTS:
                        self.checkpoints.check(folder)
                    else:
                        folder.check_plain(_TOKEN_FILES)

    @property
    def _folder(self) -> Folder:
        assert self._held is not None, "a run must be claimed before it is written"
        return self._held

    def write(self, name: str, content: bytes) -> None:
        """Write one of the run's small files as a whole."""
        self._folder.write(name, content)

    def remember(self, record: Mapping[str, Any], mark: ResumePoint) -> None:
        """Set the next run.json: a new run writes it at once, a resumed one at `begin`, which also rewinds to `mark`.

        ValueError if the run was begun with another model, OSError if its metrics cannot be read.
        """
        if (self.path / _RECORD).exists():
            check_same_model(self.read_record().get("model"), record.get("model"), f"--model of the run {self.path}")
        self._next = record, mark
        if self.is_new:
            self.begin()
        for journal in (self.metrics, self.samples):
            for _ in journal.lines():
                pass

    def begin(self) -> None:
        """Clean up after a kill, rewind the metrics and write the run.json of `remember`, because the first work has succeeded.
        """
        if self._next is None:
            return
        record, mark = self._next
        self.checkpoints.recover(self._folder)
        for journal in (self.metrics, self.samples):
            journal.rewind(self._folder, mark)
        self.write(_RECORD, encode_json({"format": _FORMAT, **record}))
        self._next = None

    def read_record(self) -> dict[str, Any]:
        """Return run.json; CheckpointError if it is damaged or of a later asynctile."""
        path = self.path / _RECORD
        try:
            record = parse_json(read_file(path))
        except OSError as error:
            raise unreadable(path, error) from error
        except ValueError as error:
            raise self._damaged(f"it is not JSON ({error})") from error
        if not isinstance(record, dict) or not isinstance(record.get("options"), dict):
            raise self._damaged("it holds no options")
        if record.get("format") != _FORMAT:
            raise CheckpointError(f"{path} has format {shown(record.get('format'))}, expected {_FORMAT}; "
                                  "use the asynctile that wrote it")
        if not isinstance(record.get("model"), dict | None):
            raise self._damaged(f"its model is {shown(record['model'])}, expected an object")
        return record

    def _damaged(self, why: str) -> CheckpointError:
        """Return the error for a run.json that cannot be used, with the way to train on."""
        weights = f" from its weights (--model {newest})" if (newest := self.newest) else ""
        return CheckpointError(f"{self.path / _RECORD} is damaged: {why}; put back a copy of that file, or start a new run"
                               f"{weights} with another --out")

    def discard_unless_begun(self) -> None:
        """Close the folder; of a new run without a step, remove everything that this process made: it leaves nothing behind."""
        self.close()
        if not self.is_new or self.begun or not self._folder.is_in_place():
            return
        for name in self._folder.names():
            found = self._folder.stat(name)
            is_folder = found is not None and stat.S_ISDIR(found.st_mode)
            self._folder.remove_tree(name) if is_folder else self._folder.remove(name)
        with suppress(OSError):  # somebody may have put another run beside this one
            for path in self._made:
                path.rmdir()

    def new_checkpoint(self, step: int) -> Path:
        """Return where to save a step; CheckpointError if a link is there."""
        self._check_in_place()
        return self.checkpoints.new(self._folder, step)

    def new_best(self) -> Path:
        """Return where to save the best model so far, in place of the previous one; CheckpointError if a link is there."""
        self._check_in_place()
        return self.checkpoints.new(self._folder, None)

    @property
    def newest(self) -> Path | None:
        """The checkpoint that the run resumes from, if there is one."""
        return next(reversed(self.checkpoints.all()), None)

    @property
    def before_newest(self) -> Path | None:
        """The checkpoint that the run would resume from without its newest, if there is one."""
        return next(reversed(self.checkpoints.all()[:-1]), None)

    def start(self, newest: Path | None) -> str:
        """Return a sentence that says where a run with this newest checkpoint starts."""
        if newest is None:
            return f"{self.path} has no checkpoint and starts at step 1"
        return f"{self.path} continues from {newest}, step {step_of(newest.name)}"

    def prune(self, keep: int) -> None:
        """Remove all but the `keep` newest checkpoints."""
        self.checkpoints.prune(self._folder, keep)

    def append_step(self, line: Mapping[str, Any]) -> None:
        """Append a step's line to the metrics.

        CheckpointError if the run's folder was moved, or the file replaced.
        """
        self._append(self.metrics, line)
        self.begun = True

    def append_validation(self, line: Mapping[str, Any]) -> None:
        """Append a validation's line to the metrics; errors as in `append_step`."""
        self._append(self.metrics, line)
        self.begun |= not self.is_new

    def append_sample(self, line: Mapping[str, Any]) -> None:
        """Append a line to the samples; errors as in `append_step`."""
        self._append(self.samples, line)

    def _append(self, journal: Journal, line: Mapping[str, Any]) -> None:
        self.begin()
        self._check_in_place()
        journal.append(self._folder, line)

    def _check_in_place(self) -> None:
        if not self._folder.is_in_place():
            raise CheckpointError(f"the folder of the run {self.path} was removed, renamed or replaced during the run; "
                                  "put it back and --resume, or start again")

    def validated(self, step: int) -> int:
        """Return the newest step up to `step` with a validation loss in the metrics, -1 if there is none."""
        found = (line["step"] for line in self.metrics.lines() if number_in(line, "validation_loss") is not None)
        return max((validated for validated in found if validated <= step), default=-1)

    def close(self) -> None:
        if self._held is not None:
            for journal in (self.metrics, self.samples):
                journal.close(self._held)


def check_same_model(begun: Any, found: Any, what: str) -> None:
    """Raise ValueError if `found`, the content of a config.json, is another model than `begun`; None: not known yet.

    The tokens that begin and end a text do not count: they change no computation.
    """
    if isinstance(begun, dict) and isinstance(found, dict):
        for name in begun.keys() & found.keys() - {*TOKENS}:
            if begun[name] != found[name]:
                raise ValueError(f"{what} is not the model that the run began with: {name} is {shown(found[name])} instead of "
                                 f"{shown(begun[name])}; put it back, or start a new run with another --out")


def existing_run(typed: Mapping[str, Any]) -> RunFolder:
    """Return the run that --resume means; ValueError if --out does not name one."""
    if "out" not in typed:
        raise ValueError("--resume needs the run to continue; name its folder with --out")
    return RunFolder.open(Path(typed["out"]))


def told_rates(rates: Rates, device: str, precision: str) -> dict[str, Any]:
    """Return the entry of run.json for the rates that a run plans with, with their device and precision."""
    return {"device": device, "precision": precision, **rates.to_json()}


def recorded_rates(record: Mapping[str, Any], device: str, precision: str, path: Path) -> Rates | None:
    """Return the recorded rates of a run, None if it has none for this device and precision; ValueError if damaged."""
    told = record.get("rates")
    if told is None:
        return None
    try:
        found = Rates.from_json({name: value for name, value in told.items() if name not in ("device", "precision")})
        return found if (told.get("device"), told.get("precision")) == (resolved(device), precision) else None
    except (AttributeError, ValueError) as error:
        why = error if isinstance(told, dict) else f"its rates are {shown(told)}"
        raise ValueError(f"{path / _RECORD} was damaged or edited: {why}; restore the file, or start a new run with another "
                         "--out") from error
