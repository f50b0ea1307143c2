"""The rotary positions in a config.json: the base theta, and LLaMA 3's scaling of frequencies.

Old files have rope_theta and rope_scaling, newer ones rope_parameters with both. asynctile/ops/rope.py defines the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asynctile.layers.config import LARGEST
from asynctile.ops.rope import Rotation
from asynctile.storage.input import shown

DEFAULT, LLAMA3 = TYPES = "default", "llama3"
#: The numbers of LLaMA 3's scaling, in the order of `Rotation`.
NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SCALINGS = ("rope_scaling", "rope_parameters")


def checked_scaling(scaling: Any) -> dict[str, Any] | None:
    """Return a scaling as {"rope_type": "llama3", ...}, or None for none. ValueError for another kind or other numbers."""
    if scaling is None:
        return None
    if not isinstance(scaling, Mapping):
        raise ValueError(f"rope_scaling is {shown(scaling)}, expected None or a mapping such as {{'rope_type': 'llama3', ...}}")
    kind = scaling.get("rope_type", scaling.get("type", DEFAULT))
    if kind not in TYPES:
        raise ValueError(f"rope_scaling has rope_type {shown(kind)}; only {DEFAULT!r} and {LLAMA3!r} are supported, load a "
                         "model without this scaling")
    if scaling.get("partial_rotary_factor") not in (None, 1):
        raise ValueError(f"rope_scaling has partial_rotary_factor {shown(scaling['partial_rotary_factor'])}; only 1 is "
                         "supported, load a model that rotates whole heads")
    if kind == DEFAULT:
        return None
    for name in NUMBERS:
        value = scaling.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise ValueError(f"rope_scaling has {name} {shown(value)}, expected a number above 0")
    if not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise ValueError(f"rope_scaling has low_freq_factor {scaling['low_freq_factor']} and high_freq_factor "
                         f"{scaling['high_freq_factor']}, expected a high one above the low one")
    return {"rope_type": LLAMA3, **{name: scaling[name] for name in NUMBERS}}


def rotation_of(theta: float, scaling: Mapping[str, Any] | None) -> Rotation:
    """Return the five numbers that `rope` takes."""
    if scaling is None:
        return theta, 0.0, 0.0, 0.0, 0.0
    factor, low, high, original = (float(scaling[name]) for name in NUMBERS)
    return theta, factor, low, high, original


def rope_from_hf(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return rope_theta and rope_scaling as a config.json says them, in either form; what it does not say is left out."""
    found: dict[str, Any] = {}
    if "rope_theta" in values:
        found["rope_theta"] = values["rope_theta"]
    scaling = next((values[name] for name in _SCALINGS if values.get(name)), None)
    if scaling is not None:
        found["rope_scaling"] = scaling
        if isinstance(scaling, Mapping) and "rope_theta" in scaling:
            found["rope_theta"] = scaling["rope_theta"]
    return found
