"""Cross-entropy over logits that exist only as vocabulary tiles, with a running log-sum-exp.

A tile (R, V + padding) of logits may have columns behind those of the vocabulary, so that its row pitch suits fast matrix
products. Whatever their values, these columns count nowhere, and their gradient is 0.
"""

from __future__ import annotations

from asynctile.program.operation import NO_NUMBER, Operation, expect
from asynctile.storage.tile import Tile

#: Targets of this value contribute no loss and no gradient, as in PyTorch.
IGNORED = -100


def cross_entropy(
    logits: Tile, targets: Tile, stats: Tile, *, column: int, first: bool, last: bool, number: int = NO_NUMBER,
    padding: int = 0,
) -> Operation:  # fmt: skip
    """Fold logits (R, V + padding), T, of the vocabulary [column, column + V) into stats (R, 3).

    stats: (maximum, sum, target's logit). targets (R,) int32. On the `last` tile stats[:, 0] becomes the log-sum-exp, and
    `number` the float64 sum of lse - logit[target] over rows that are not ignored.
    Kernel: cross_entropy(logits, targets, stats, column, padding, first, last, number). number is a float64 array of length 1;
    it is always given, and written only on `last`.
    """
    expect("cross_entropy", targets, logits.shape[:1])
    expect("cross_entropy", stats, (logits.shape[0], 3))
    return Operation(
        "cross_entropy", (logits, targets, stats), "rrw" if first else "rru", (column, padding, first, last), number=number
    )


def cross_entropy_backward(
    targets: Tile, stats: Tile, scale: Tile, logits: Tile, *, column: int, padding: int = 0
) -> Operation:
    """Overwrite logits (R, V + padding), T, with their gradient: (exp(logit - lse) - [column + c = target]) scale[0].

    The gradient is 0 on ignored rows and in the padding. scale (1,) float32: 1 / number of targets that count.
    Kernel: cross_entropy_backward(targets, stats, scale, logits, column, padding).
    """
    expect("cross_entropy_backward", targets, logits.shape[:1])
    return Operation("cross_entropy_backward", (targets, stats, scale, logits), "rrru", (column, padding))
