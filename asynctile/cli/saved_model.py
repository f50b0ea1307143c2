"""A saved model, named by the folder of a run, of a checkpoint, or of any model.

Covers `find_model` and `run_of`. The model's `from_pretrained` reads the weights; model.py finds those that a run starts from.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.run_folder import RunFolder
from asynctile.errors import CheckpointError
from asynctile.layers.foreign import of_folder
from asynctile.layers.tokenizer import Tokenizer, has_tokenizer, load_tokenizer, open_tokenizer

__all__ = ["find_model", "run_of"]


def find_model(folder: Path, named_tokenizer: str | None) -> tuple[Path, Tokenizer]:
    """Return the folder of the weights and the tokenizer of a run or a model folder."""
    if not (folder / "run.json").is_file() and (other := of_folder(folder)) is not None:
        raise ValueError(other)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the folder of a run (with run.json) or of a model (with "
                         "config.json)")
    weights = folder
    if (folder / "run.json").is_file():
        run = RunFolder.open(folder)
        checkpoints = run.checkpoints.all()
        if not checkpoints:
            other = f", or name {folder / 'checkpoints' / 'best'}" if run.checkpoints.has_best else ""
            raise CheckpointError(f"the run {folder} has no checkpoint yet; let it train until its first{other}")
        weights = checkpoints[-1]
    elif not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds neither a run (run.json) nor a model (config.json); name a folder that does")
    if named_tokenizer is not None:
        if named_tokenizer.startswith("bpe:"):
            raise ValueError(f"--tokenizer {named_tokenizer} would train a new tokenizer, which the model does not know; name "
                             "the file of the model's own tokenizer, or bytes")
        return weights, load_tokenizer(named_tokenizer, ())
    if not has_tokenizer(folder):
        raise ValueError(f"{folder} has no tokenizer.json, nor vocab.json with merges.txt; name its tokenizer with "
                         "--tokenizer, such as --tokenizer bytes")
    return weights, open_tokenizer(folder)


def run_of(folder: Path) -> RunFolder | None:
    """Return the run in `folder`, or the run of which it is a checkpoint or the best model; None if there is none."""
    place = folder.absolute()
    runs = [place, *([place.parents[1]] if place.parent.name == "checkpoints" else [])]
    return next((RunFolder.open(run) for run in runs if (run / "run.json").is_file()), None)
