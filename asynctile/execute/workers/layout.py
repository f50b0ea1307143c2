"""The layout of a kernel's arguments as words, and the address of its machine code.

Numba passes an array as these words: meminfo, parent, number of items, bytes per item, address, sizes, strides.
native.py makes such calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.np import numpy_support

from asynctile.execute.workers.native import REALS, WIDTHS

#: Index of the address among an array's words.
_ADDRESS = 4


@dataclass(frozen=True, eq=False)
class Block:
    """One call of a kernel, without the addresses of its operands.

    address: of its machine code.
    words: (count,) int64, all integer arguments, addresses 0; words 0 and 1 belong to the worker.
    pointers: indices in `words` of the address of each operand, and then of the number if there is one.
    reals: float arguments, at most REALS.
    """

    address: int
    words: np.ndarray
    pointers: tuple[int, ...]
    reals: tuple[float, ...]

    @property
    def count(self) -> int:
        return self.words.size


def native_of(dispatcher: Any, arguments: tuple[Any, ...]) -> int | None:
    """Return the address of the function that Numba compiled for exactly these types; None if there is none.

    The code lives as long as the dispatcher.
    """
    if not isinstance(dispatcher, Dispatcher):
        return None
    overload: Any = dispatcher.overloads.get(arguments)
    if overload is None:
        return None
    address: int = overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name)
    return address or None


def layout(
    kernel: Any, operands: Sequence[tuple[tuple[int, ...], Any]], params: Sequence[int | float | bool], has_number: bool
) -> Block | None:
    """Return a call of `kernel(*operands, *params[, number])`, or None if it cannot be called by address.

    operands: (shape, dtype) each, C-contiguous. The number is a float64 array (1,).
    It cannot be called by address if no overload was compiled for exactly these types, or if it has too many arguments.
    """
    arrays = [(shape, np.dtype(dtype)) for shape, dtype in operands]
    number = [((1,), np.dtype(np.float64))] if has_number else []
    kinds = (*map(_type_of_array, arrays), *map(_type_of_param, params), *map(_type_of_array, number))
    address = native_of(kernel, kinds)
    if address is None:
        return None
    words, pointers, reals = [0, 0], [], []
    for shape, dtype in arrays:
        pointers.append(len(words) + _ADDRESS)
        words += _words_of_array(shape, dtype)
    for value in params:
        if isinstance(value, float):
            reals.append(value)
        else:
            words.append(int(value))
    for shape, dtype in number:
        pointers.append(len(words) + _ADDRESS)
        words += _words_of_array(shape, dtype)
    if len(words) > WIDTHS[-1] or len(reals) > REALS:
        return None
    return Block(address, np.array(words, np.int64), tuple(pointers), tuple(reals))


def _words_of_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[int]:
    strides = [dtype.itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    items = int(np.prod(shape, dtype=np.int64))
    return [0, 0, items, dtype.itemsize, 0, *shape, *strides]


def _type_of_array(array: tuple[tuple[int, ...], np.dtype[Any]]) -> Any:
    shape, dtype = array
    return types.Array(numpy_support.from_dtype(dtype), len(shape), "C")


def _type_of_param(value: int | float | bool) -> Any:
    if isinstance(value, bool):
        return types.boolean
    return types.float64 if isinstance(value, float) else types.int64
