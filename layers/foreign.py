"""What a checkpoint of another kind is, in one sentence that also says what to do.

Covers variants that a config.json announces whatever its family (quantised weights, mixtures of experts, pictures), files of
another format in a model's folder, and tensors of quantised weights. A family's configuration refuses its own variants,
exchange.py finds names and shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from asynctile.storage.input import shown
from asynctile.storage.tensors import INDEX, WEIGHTS

_DENSE = "load the weights that they were made from, in float32, float16 or bfloat16"
_QUANTISED = f"quantised weights are not computed here; {_DENSE}"
#: Fields of a config.json that another arithmetic needs, in the order in which they are named.
_FIELDS = {
    "quantization_config": _QUANTISED,
    "vision_config": "a model of pictures is not computed here; load a model of text alone",
    "audio_config": "a model of sound is not computed here; load a model of text alone",
    "text_config": "a model of more than text is not computed here; load a model of text alone",
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts"),
        "a mixture of experts is not computed here; load a dense model",
    ),
}
#: Files that hold weights in another format, by the pattern of their names.
_FORMATS = {
    "*.gguf": f"GGUF, which is mostly quantised; {_DENSE}, in the Hugging Face layout",
    "adapter_config.json": "an adapter without its base model; merge it into the base with `asynctile merge`, or load the base "
                           "and then the adapter",
    "pytorch_model*.bin": "pickled weights, which can run code; open them with transformers and save that model",
    "consolidated*": "weights in their makers' own layout; load the folder that the makers publish for transformers",
    "*.onnx": f"a model for ONNX; {_DENSE}, in the Hugging Face layout",
}
#: Endings of the names of tensors that only quantised weights have, and who writes them.
_ENDINGS = {
    **dict.fromkeys((".qweight", ".qzeros"), "GPTQ or AWQ"),
    ".g_idx": "GPTQ",
    **dict.fromkeys((".absmax", ".quant_map", ".SCB"), "bitsandbytes"),
    **dict.fromkeys((".weight_packed", ".weight_scale"), "compressed-tensors"),
    ".weight_scale_inv": "FP8",
}


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise ValueError for a config.json whose fields announce an arithmetic that no family computes here."""
    for name, sentence in _FIELDS.items():
        value = values.get(name)
        if value in (None, 0, False, {}, []):
            continue
        if isinstance(value, dict):
            method = value.get("quant_method")
            said = f"has {name}" if method is None else f"has {name} {shown(method)}"
        else:
            said = f"says {name} {shown(value)}"
        raise ValueError(f"config.json {said}: {sentence}")


def of_folder(folder: Path) -> str | None:
    """Return what a folder or file without weights that can be read holds instead; None if nothing in it is known."""
    if folder.is_file():
        names = [pattern for pattern in _FORMATS if folder.match(pattern)]
        return f"{folder} is {_FORMATS[names[0]]}" if names else None
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return None
    for pattern, sentence in _FORMATS.items():
        for file in folder.glob(pattern):
            return f"{folder} has no {WEIGHTS}, but {shown(file.name)[1:-1]}: {sentence}"
    return None


def of_tensors(names: Collection[str]) -> str | None:
    """Return what the names of a file's tensors tell of quantised weights; None if there are none."""
    for name in names:
        for ending, maker in _ENDINGS.items():
            if name.endswith(ending):
                return f"it holds {shown(name)[1:-1]}, a tensor of {maker}: {_QUANTISED}"
    return None
