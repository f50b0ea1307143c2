"""The caller's position in its data, as a checkpoint keeps it. `kept` copies it, and refuses what JSON would change.

checkpoint.py writes and reads the rest of trainer.json.
"""

from __future__ import annotations

from typing import Any

from asynctile.storage.folder import encode_json
from asynctile.storage.input import DOCUMENT_NBYTES, parse_json, shown

#: The most bytes of a state as JSON. Settings and versions need the rest of the document.
MOST = DOCUMENT_NBYTES - (64 << 10)


def kept(state: Any) -> dict[str, Any]:
    """Return a copy of `state`, as a checkpoint would give it back.

    TypeError if it is not a dict or cannot be JSON. ValueError if JSON would change it (a key that is not text becomes text, a
    tuple becomes a list), or if it is larger than a reader accepts.
    """
    if not isinstance(state, dict):
        raise TypeError(f"data_state is {shown(state)}, expected a dict, such as {{'position': 17}}; use {{}} for no state")
    try:
        content = encode_json({"data_state": state})  # indented as in trainer.json
        if len(content) > MOST:
            raise ValueError(f"{len(content)} bytes of JSON, expected at most {MOST}")
        found: dict[str, Any] = parse_json(content, finite=False)["data_state"]
    except TypeError as error:
        raise TypeError(f"data_state cannot be written as JSON ({error}); use only dicts, lists, strings, numbers, bools and "
                        "None in it") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"data_state could not be read back from a checkpoint ({error}); keep less in it") from error
    _check_equal("data_state", state, found)
    return found


def _check_equal(where: str, given: Any, found: Any) -> None:
    """Raise ValueError, naming the place, unless `found` equals `given`. NaN equals NaN here."""
    if isinstance(given, dict) and given.keys() == found.keys():
        for key, value in given.items():
            _check_equal(f"{where}[{shown(key)}]", value, found[key])
    elif isinstance(given, list):
        for index, value in enumerate(given):
            _check_equal(f"{where}[{index}]", value, found[index])
    elif given != found and not (given != given and found != found):
        raise ValueError(f"{where} is {shown(given)} and would come back from a checkpoint as {shown(found)}; use strings as "
                         "keys, and lists instead of tuples")
