"""The model card of a run: README.md beside its weights, with its options and measurements.

Covers `model_card`, which is pure: the same run to the same step has the same card, wherever its bytes were and however often
it was stopped. So the card holds no time and no path. session.py makes it, companions.py saves it with the model. Its head is
YAML, as the Hub reads it; values there are written as JSON, which is valid YAML.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from asynctile.cli.options import CHANGEABLE
from asynctile.cli.terminal import escaped
from asynctile.cli.totals import LOSS, Line, Sums
from asynctile.layers.architectures import architecture_of
from asynctile.layers.config import Config
from asynctile.layers.report import number_in
from asynctile.storage.counts import counted

__all__ = ["model_card"]

_LIBRARY = "the source of Python's standard library"
#: Fields of a card's head that also hold for a model trained further, and are copied into its card.
_INHERITED = ("license", "license_name", "license_link", "language")
_CACHED = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/[^/]+\Z")
#: Longer heads are ignored, and only plain fields are copied: others wrote the old head, and ours must stay valid YAML.
_HEAD_NBYTES = 1 << 16
_HEAD = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_PLAIN = r"""(["']?)[\w.](?:[\w./+-]|:(?=\S)|[ ](?=\S))*\1"""
_FIELD, _ITEM = re.compile(rf"(\w+):(?:[ ]+{_PLAIN.replace('1', '2')})?[ ]*"), re.compile(rf"[ ]*-[ ]+{_PLAIN}[ ]*")
_USAGE = """\
```python
from transformers import pipeline

write = pipeline("text-generation", model=FOLDER)  # the folder of this file
print(write("Once", max_new_tokens=20)[0]["generated_text"])
```"""
_USAGE_OF_ADAPTER = """\
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained(BASE)
model = PeftModel.from_pretrained(base, FOLDER)  # the folder of this file
```"""
#: The measurements of a validation: name in metrics.jsonl, label for people, type on the Hub.
_MEASURED = (
    (LOSS, "loss, nats per token", "loss"),
    ("validation_perplexity", "perplexity", "perplexity"),
    ("validation_bits_per_byte", "bits per byte", "bits_per_byte"),
)


def model_card(
    name: str, config: Config, record: Mapping[str, Any], lines: Iterable[Line], before: bytes | None = None
) -> bytes:
    """Return the content of README.md.

    name, config: of the model. record: the content of run.json. lines: of metrics.jsonl, up to the saved step. before: the
    card beside the weights so far; its license and language are kept.
    """
    found = Sums.of(lines)
    options = record["options"]
    data = _named(options.get("data")) or _LIBRARY
    lora = options.get("lora")
    what = "A" if lora is None else "A LoRA adapter of a"
    parts = [
        _head(name, config, data, options, found.validation, before),
        f"# {_cell(name)}",
        f"{what} {architecture_of(config).title} of {config.parameter_count:,} parameters ({config.summary}), trained by "
        f"asynctile on {_cell(data)}. "
        f"{_beginning(options)} Its context, prompt and answer together, is {config.block_size:,} tokens.",
        "## Measurements",
        _table(("", ""), _measured(found)),
        "## Usage",
        _USAGE if lora is None else _USAGE_OF_ADAPTER,
        "## Training options",
        _table(("Option", "Value"), _asked(options)),
        f"Versions: {', '.join(f'{library} {_cell(version)}' for library, version in record.get('versions', {}).items())}.",
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _head(name: str, config: Config, data: str, options: Mapping[str, Any], newest: Line, before: bytes | None) -> str:
    model, is_adapter = options.get("model"), options.get("lora") is not None
    fields: dict[str, Any] = {
        "library_name": "peft" if is_adapter else "transformers", "pipeline_tag": "text-generation",
        "tags": ["asynctile", config.model_type, *(["lora"] if is_adapter else [])],
    }  # fmt: skip
    metrics = [
        {"type": kind, "name": f"validation {called}", "value": value}
        for line_name, called, kind in _MEASURED
        if (value := number_in(newest, line_name)) is not None
    ]
    if metrics:
        result = {"task": {"type": "text-generation"}, "dataset": {"name": escaped(data), "type": "text"}, "metrics": metrics}
        fields["model-index"] = [{"name": escaped(name), "results": [result]}]
    if isinstance(model, str) and _CACHED.search(model):
        fields["base_model"] = escaped(_named(model))
    written = [f"{field}: {json.dumps(value, ensure_ascii=False)}" for field, value in fields.items()]
    return "\n".join(["---", *written, *_inherited(before), "---"])


def _inherited(before: bytes | None) -> Iterator[str]:
    """Yield the lines of a card's head that set a field of _INHERITED: a word, or a list with one item per line."""
    head = _HEAD.search((before or b"")[:_HEAD_NBYTES].decode("utf-8", "replace"))
    taken = False
    for line in head[1].splitlines() if head else ():
        if not _ITEM.fullmatch(line):
            field = _FIELD.fullmatch(line)
            taken = field is not None and field[1] in _INHERITED
        if taken:
            yield line


def _beginning(options: Mapping[str, Any]) -> str:
    """Return a sentence on the initial weights. A name without a folder is a shape, and so is a config.json."""
    model = options.get("model")
    if model is None or not PurePath(model).is_absolute() or PurePath(model).suffix == ".json":
        return f"Training started from random weights, seed {options.get('seed')}."
    if options.get("lora") is not None:
        return f"The weights of its base, `{_cell(_named(model))}`, are frozen and not in this folder."
    return f"Training started from the weights of `{_cell(_named(model))}`; this card replaces theirs, if there was one."


def _measured(found: Sums) -> Iterator[tuple[str, str]]:
    yield "steps", f"{found.steps:,}"
    yield "tokens trained on", f"{found.tokens:,}"
    if last := found.losses:
        steps = counted(len(last), "step")
        yield f"training loss, nats per token, mean of the last {steps}", f"{math.fsum(last) / len(last):.4f}"
    if not (newest := found.validation):
        return
    for line_name, called, _ in _MEASURED:
        if (value := number_in(newest, line_name)) is not None:
            yield f"{called}, on held-out text after step {newest['step']:,}", f"{value:.4f}"
    if (tokens := number_in(newest, "validation_tokens")) is not None:
        yield "tokens of held-out text", f"{tokens:,}"
    yield "lowest loss on held-out text", f"{found.best[LOSS]:.4f}, after step {found.best['step']:,}"


def _asked(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options that decide the bits of the result: not where bytes were, nor how often something was written."""
    for option, value in sorted(options.items()):
        if value not in (None, []) and option not in CHANGEABLE:
            shown = ", ".join(value) if isinstance(value, list) else _named(value)
            yield f"`--{option.replace('_', '-')}`", _cell(shown)


def _named(value: Any) -> Any:
    """Return the last part of a path, since folder names are private; for a path in the Hugging Face cache, the Hub's name."""
    if not isinstance(value, str) or not PurePath(value).is_absolute():
        return value
    cached = _CACHED.search(value)
    return "/".join(cached.groups()) if cached else PurePath(value).name


def _cell(value: Any) -> str:
    """Return any value as text that fits into one line of a table."""
    return escaped(str(value)).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def _table(columns: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"| {' | '.join(row)} |" for row in (columns, ("---", "---"), *rows)])
