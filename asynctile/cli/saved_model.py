"""A saved model, named by the folder of a run, of a checkpoint, of any model, or of an adapter.

Covers `find_model`, `weights_in`, `adapter_in` and `run_of`. An adapter's folder names its base. The model's `from_pretrained`
reads the weights; model.py finds those that a run starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asynctile import Engine
from asynctile.cli.run_folder import RunFolder
from asynctile.errors import CheckpointError
from asynctile.layers import Model
from asynctile.layers.adapter_files import ADAPTER_CONFIG, base_named_in, is_adapter
from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.foreign import of_folder
from asynctile.layers.tokenizer import Tokenizer, has_tokenizer, load_tokenizer, open_tokenizer
from asynctile.layers.weight_dtype import FLOAT32, STORED
from asynctile.storage.input import shown

__all__ = ["Saved", "adapter_in", "find_model", "run_of", "weights_in"]


@dataclass(frozen=True)
class Saved:
    """Where a model is. weights: the folder of its weights. adapter: that of an adapter of these weights; None: it has none."""

    weights: Path
    adapter: Path | None = None

    def __str__(self) -> str:
        """Return both folders, for messages."""
        return str(self.weights) if self.adapter is None else f"{self.weights} with the adapter {self.adapter}"

    def chat_format(self, template: str | None) -> ChatFormat:
        """Return how the model writes chats: as the adapter's files say if they have a template, else those of the weights.

        template: --chat-template. ValueError if a file cannot be read.
        """
        if self.adapter is not None:
            own = read_chat_files(self.adapter)
            if ChatFormat.of(own, str(self.adapter)).has_template:
                return ChatFormat.of(own, str(self.adapter), template)
        return ChatFormat.of(read_chat_files(self.weights), str(self.weights), template)

    async def open(self, engine: Engine) -> Model:
        """Return the model on an engine, to write and to measure with: it is not trained.

        Matrices that the file has in bf16 stay so, with the same bits, in half the memory. On cores a text is faster so, and
        batches of thousands of tokens take about as long (bench/bench_stored.py). A GPU that computes in float32 would first
        write each tile in float32 to its memory, whose speed is that of a text. So there matrices become float32.
        """
        widens = engine.device.startswith("cuda") and engine.precision != "bf16"
        model = await Model.from_pretrained(engine, self.weights, weights=FLOAT32 if widens else STORED)
        if self.adapter is not None:
            await model.load_adapter(self.adapter)
        return model


def find_model(folder: Path, named_tokenizer: str | None, adapter: str | None = None) -> tuple[Saved, Tokenizer]:
    """Return where the model of a run, model or adapter folder is, and its tokenizer. adapter: as --adapter names one."""
    place = _place_in(folder)
    if adapter is not None:
        if is_adapter(place):
            raise ValueError(f"{folder} is an adapter itself; name the base there, and one adapter with --adapter")
        saved = Saved(place, adapter_in(Path(adapter)))
    else:
        saved = Saved(_base_of(place), place) if is_adapter(place) else Saved(place)
    if named_tokenizer is not None:
        if named_tokenizer.startswith("bpe:"):
            raise ValueError(f"--tokenizer {named_tokenizer} would train a new tokenizer, which the model does not know; name "
                             "the file of the model's own tokenizer, or bytes")
        return saved, load_tokenizer(named_tokenizer, ())
    for owner in (saved.adapter if adapter is not None else None, folder, saved.weights):
        if owner is not None and has_tokenizer(owner):
            return saved, open_tokenizer(owner)
    raise ValueError(f"{folder} has no tokenizer.json, nor vocab.json with merges.txt; name its tokenizer with "
                     "--tokenizer, such as --tokenizer bytes")


def weights_in(folder: Path) -> Path:
    """Return the folder of the weights of a run or a model; ValueError for an adapter."""
    place = _place_in(folder)
    if is_adapter(place):
        raise ValueError(f"{folder} is an adapter, expected its base: the folder of a model")
    return place


def adapter_in(folder: Path) -> Path:
    """Return the folder of the adapter of a run, or the folder itself if it is an adapter's; ValueError otherwise."""
    holds = any((folder / name).is_file() for name in ("run.json", "config.json", ADAPTER_CONFIG))
    if folder.is_dir() and not holds:
        raise ValueError(f"{folder} holds no adapter ({ADAPTER_CONFIG}); name the folder of a run with --lora, or one with "
                         f"{ADAPTER_CONFIG}")
    place = _place_in(folder)
    if not is_adapter(place):
        raise ValueError(f"{folder} holds a model and no adapter; name the folder of a run with --lora, or one with "
                         f"{ADAPTER_CONFIG}")
    return place


def run_of(folder: Path) -> RunFolder | None:
    """Return the run in `folder`, or the run of which it is a checkpoint or the best model; None if there is none."""
    place = folder.absolute()
    runs = [place, *([place.parents[1]] if place.parent.name == "checkpoints" else [])]
    return next((RunFolder.open(run) for run in runs if (run / "run.json").is_file()), None)


def _place_in(folder: Path) -> Path:
    """Return the newest checkpoint of a run, or the folder itself if it holds a model or an adapter; ValueError otherwise."""
    if is_adapter(folder):
        return folder
    if not (folder / "run.json").is_file() and (other := of_folder(folder)) is not None:
        raise ValueError(other)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the folder of a run (with run.json) or of a model (with "
                         "config.json)")
    if (folder / "run.json").is_file():
        run = RunFolder.open(folder)
        checkpoints = run.checkpoints.all()
        if not checkpoints:
            other = f", or name {folder / 'checkpoints' / 'best'}" if run.checkpoints.has_best else ""
            raise CheckpointError(f"the run {folder} has no checkpoint yet; let it train until its first{other}")
        return checkpoints[-1]
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds neither a run (run.json) nor a model (config.json); name a folder that does")
    return folder


def _base_of(adapter: Path) -> Path:
    """Return the folder of the base that an adapter names; ValueError if it is not here."""
    named = base_named_in(adapter)
    if named is None or not Path(named).is_dir():
        what = "names no base" if named is None else f"names the base {shown(named)}, which is no folder here"
        raise ValueError(f"{adapter} holds {ADAPTER_CONFIG}, an adapter without its base model: it {what}; name the folder of "
                         f"the base, and the adapter with --adapter {adapter}")
    return Path(named)
