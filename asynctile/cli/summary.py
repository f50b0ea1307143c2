"""The end of a run: validation loss against a bigram model, a picture, a sample, totals.

Covers `finish`, which reads metrics.jsonl, so that several sessions of a run add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asynctile.cli.run_folder import RunFolder
from asynctile.cli.session import Session
from asynctile.layers.report import number_in
from asynctile.share import runtime_of
from asynctile.storage.counts import counted
from asynctile.storage.folder import encode_json
from asynctile.storage.sizes import format_size

__all__ = ["Sums", "finish"]

_SAMPLE_TOKENS = 160

_SUMMED = (
    "tokens", "step_s", "stall_s", "uploaded_bytes", "downloaded_bytes", "passed_bytes", "spill_read_bytes",
    "spill_written_bytes",
)  # fmt: skip
_LOSS = "validation_loss"
_VALIDATED = (_LOSS, "validation_perplexity", "validation_bits_per_byte", "validation_tokens")
_PEAKS = ("device_peak_bytes", "host_peak_bytes", "spill_peak_bytes")


@dataclass
class Sums:
    """Totals over all steps of a run, in counts, seconds and bytes. A peak is the highest of any session."""

    steps: int = 0
    tokens: int = 0
    positions: float = 0.0
    """Positions that tokens_per_s of each step counts: targets that are trained on and all others."""
    step_s: float = 0.0
    stall_s: float = 0.0
    measured_s: float = 0.0
    """Seconds of the steps whose stall_s is known."""
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    passed_bytes: int = 0
    device_peak_bytes: int = 0
    host_peak_bytes: int = 0
    spill_read_bytes: int = 0
    spill_written_bytes: int = 0
    spill_peak_bytes: int = 0
    validation: Mapping[str, Any] = field(default_factory=dict)
    """The newest line with a validation loss."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """The line with the lowest validation loss, the first if several have it."""

    @classmethod
    def of(cls, folder: RunFolder) -> Sums:
        sums = cls()
        for line in folder.metrics.lines():
            sums.steps = max(sums.steps, line["step"])
            for name in _SUMMED:
                setattr(sums, name, getattr(sums, name) + (number_in(line, name) or 0))
            sums.positions += (number_in(line, "tokens_per_s") or 0) * (number_in(line, "step_s") or 0)
            if number_in(line, "stall_s") is not None:
                sums.measured_s += number_in(line, "step_s") or 0
            for name in _PEAKS:
                setattr(sums, name, max(getattr(sums, name), number_in(line, name) or 0))
            if (loss := number_in(line, _LOSS)) is not None:
                sums.validation = line
                if not sums.best or loss < sums.best[_LOSS]:
                    sums.best = line
        return sums

    @property
    def validation_loss(self) -> float | None:
        return self.validation.get(_LOSS)

    @property
    def tokens_per_s(self) -> float:
        return self.positions / max(self.step_s, 1e-9)

    @property
    def stalled(self) -> float | None:
        return self.stall_s / self.measured_s if self.measured_s else None


async def finish(session: Session) -> bool:
    """Write loss.png, sample.txt and summary.json and report what they hold; False if a signal came first."""
    folder, note = session.folder, session.display.note
    folder.begin()  # a run with no step left has not begun yet
    sums = Sums.of(folder)
    picture, bigrams = await session.picture.last()
    session.display.stage("writing a sample")
    sample = await session.sample(_SAMPLE_TOKENS)
    if sample is None:
        return False
    folder.write("sample.txt", sample.text.encode())
    folder.write("summary.json", encode_json(_as_json(sums, bigrams)))
    note(f"{sample}\n")
    # Metrics older than best models may hold a lower loss, measured on other windows.
    is_kept = folder.has_best and sums.best.get("step") == session.validations.best_step
    for line in _sentences(sums, bigrams, is_kept, devices=runtime_of(session.engine).devices):
        note(line)
    note(f"wrote {picture.name}, sample.txt, metrics.jsonl and checkpoints to {folder.path}")
    if picture.suffix == ".svg":
        note("for a PNG picture install matplotlib: pip install 'asynctile[plot]'")
    note(f"to use the model: asynctile generate {folder.path} --prompt TEXT")
    note(f"Hugging Face transformers can load {folder.checkpoints()[-1]} as it is")
    return True


def _sentences(sums: Sums, bigrams: float, is_kept: bool, devices: int) -> list[str]:
    lines = []
    there, on_one = ("the devices", "each device") if devices > 1 else ("the device", "the device")
    if sums.validation_loss is not None:
        difference = bigrams - sums.validation_loss
        side = "below" if difference >= 0 else "above"
        lines.append(f"validation loss {sums.validation_loss:.4f} nats per token, {abs(difference):.4f} {side} the "
                     f"{bigrams:.4f} of a bigram model")
        lines += _of_validation(sums, is_kept)
    stalled = "" if sums.stalled is None else f"; stalled {sums.stalled:.1%} of the time"
    lines.append(f"{counted(sums.steps, 'step')}, {sums.tokens:,} tokens, {sums.tokens_per_s:,.0f} tokens/s{stalled}")
    peaks = f"{format_size(sums.host_peak_bytes)} in RAM"
    if sums.device_peak_bytes:
        moved = f"moved {format_size(sums.uploaded_bytes)} to {there} and {format_size(sums.downloaded_bytes)} back"
        lines.append(moved + (f", {format_size(sums.passed_bytes)} between them" if devices > 1 else ""))
        peaks = f"{format_size(sums.device_peak_bytes)} on {on_one}, {peaks}"
    lines.append(f"peak {peaks}")
    if sums.spill_peak_bytes:
        read, written = format_size(sums.spill_read_bytes), format_size(sums.spill_written_bytes)
        lines.append(f"read {read} from the spill folder and wrote {written}; peak {format_size(sums.spill_peak_bytes)} there")
    return lines


def _of_validation(sums: Sums, is_kept: bool) -> list[str]:
    """Return a line on the newest validation beside its loss, and on the best one; empty for runs that measured neither.

    is_kept: whether the best model is where it was saved.
    """
    found = []
    if (perplexity := number_in(sums.validation, "validation_perplexity")) is not None:
        found.append(f"perplexity {perplexity:,.2f}")
    if (bits := number_in(sums.validation, "validation_bits_per_byte")) is not None:
        found.append(f"{bits:.4f} bits per byte")
    if sums.best["step"] != sums.validation["step"]:
        kept = ", whose model is in checkpoints/best" if is_kept else ""
        found.append(f"the best loss was {sums.best[_LOSS]:.4f}, at step {sums.best['step']}{kept}")
    return [", ".join(found)] if found else []


def _as_json(sums: Sums, bigrams: float) -> dict[str, Any]:
    return {
        "steps": sums.steps, "tokens": sums.tokens, "tokens_per_s": sums.tokens_per_s, "stalled": sums.stalled,
        **{name: number_in(sums.validation, name) for name in _VALIDATED}, "bigram_loss": bigrams,
        "best_validation_loss": number_in(sums.best, _LOSS), "best_step": sums.best.get("step"),
        **{name: getattr(sums, name) for name in (*_SUMMED[3:], *_PEAKS)},
    }  # fmt: skip
