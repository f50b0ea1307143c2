"""The end of a run: validation loss against a bigram model, a picture, a sample, totals.

Covers `finish`. totals.py adds up metrics.jsonl, so that several sessions of a run count.
"""

from __future__ import annotations

from typing import Any

from asynctile.cli.session import Session
from asynctile.cli.totals import LOSS, Sums
from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.report import MOVED, PEAKS, number_in
from asynctile.share import runtime_of
from asynctile.storage.counts import counted
from asynctile.storage.folder import encode_json
from asynctile.storage.sizes import format_size

__all__ = ["finish"]

#: Tokens of the sample that a run writes at its end.
SAMPLE_TOKENS = 160

_VALIDATED = (LOSS, "validation_perplexity", "validation_bits_per_byte", "validation_tokens")


async def finish(session: Session) -> bool:
    """Write loss.png, sample.txt and summary.json and report what they hold; False if a signal came first."""
    folder, note = session.folder, session.display.note
    folder.begin()  # a run with no step left has not begun yet
    sums = Sums.of(folder.metrics.lines())
    picture, bigrams = await session.picture.last()
    session.display.stage("writing a sample")
    sample = await session.sample(SAMPLE_TOKENS)
    if sample is None:
        return False
    folder.write("sample.txt", sample.text.encode())
    folder.write("summary.json", encode_json(_as_json(sums, bigrams)))
    note(f"{sample}\n")
    # Metrics older than best models may hold a lower loss, measured on other windows.
    is_kept = folder.checkpoints.has_best and sums.best.get("step") == session.validations.best_step
    for line in _sentences(sums, bigrams, is_kept, devices=runtime_of(session.engine).devices):
        note(line)
    note(f"wrote {picture.name}, sample.txt, metrics.jsonl and checkpoints to {folder.path}")
    if picture.suffix == ".svg":
        note("for a PNG picture install matplotlib: pip install 'asynctile[plot]'")
    newest = folder.checkpoints.all()[-1]
    talks = session.corpus.has_chats and ChatFormat.of(read_chat_files(newest), str(newest)).has_template
    note(f"to use the model: asynctile generate {folder.path} {'--chat' if talks else '--prompt TEXT'}")
    if session.trainer.model.adapter is None:
        note(f"Hugging Face transformers can load {newest} as it is")
    else:
        note(f"PEFT can load {newest} onto its base as it is; asynctile merge BASE {newest} OUT makes one model of both")
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
    if sums.sent_bytes or sums.received_bytes:
        lines.append(f"sent {format_size(sums.sent_bytes)} to other nodes and received {format_size(sums.received_bytes)}")
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
        found.append(f"the best loss was {sums.best[LOSS]:.4f}, at step {sums.best['step']}{kept}")
    return [", ".join(found)] if found else []


def _as_json(sums: Sums, bigrams: float) -> dict[str, Any]:
    return {
        "steps": sums.steps, "tokens": sums.tokens, "tokens_per_s": sums.tokens_per_s, "stalled": sums.stalled,
        **{name: number_in(sums.validation, name) for name in _VALIDATED}, "bigram_loss": bigrams,
        "best_validation_loss": number_in(sums.best, LOSS), "best_step": sums.best.get("step"),
        **{name: getattr(sums, name) for name in (*MOVED, *PEAKS)},
    }  # fmt: skip
