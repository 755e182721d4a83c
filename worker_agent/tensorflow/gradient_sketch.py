"""`GradientSketch`: a gradient as a few thousand numbers, with whose products its own agree.

The gradient is laid out in rows of a fixed width; each number gets a sign, and the rows are added
up. That is linear, and the inner product of two sketches is on average that of the two gradients,
with a relative standard deviation of about sqrt(2 / width) for a squared norm: a count sketch
(Charikar, Chen, Farach-Colton: Finding frequent items in data streams, 2002). A sign is hashed
from a place's index. Where there are many rows it is the product of signs of the digits of the
row's number, so that the tables of signs stay short.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

# About 4096, and prime: a layer whose width divides it would come to few of the sums.
SKETCH_WIDTH = 4093
MOST_SIGNED_ROWS = 256  # of a table of signs

Signs = npt.NDArray[np.int8]


class GradientSketch:
    """Makes sketches of gradients with so many numbers.

    Args:
        size: Numbers of the whole gradient.

    Attributes:
        digits: How many values each digit of a row's number has, the lowest first.
    """

    def __init__(self, size: int) -> None:
        rows = -(-size // SKETCH_WIDTH)
        self.digits: list[int] = []
        while rows > 1 or not self.digits:
            groups = -(-rows // MOST_SIGNED_ROWS)
            self.digits.append(-(-rows // groups))
            rows = groups

    @property
    def padded(self) -> int:
        """Numbers of a gradient with the zeros that fill its rows."""
        return math.prod(self.digits) * SKETCH_WIDTH

    def of(self, gradient: Any, xp: Any) -> Any:
        """Return the sketch of a gradient.

        Args:
            gradient: `padded` numbers as float32.
            xp: The library that they are of: NumPy, or one with the same functions.
        """
        rows = xp.reshape(gradient, (-1, SKETCH_WIDTH))
        for level, values in enumerate(self.digits):
            signs = xp.asarray(hashed_signs(level, values), dtype=np.float32)
            rows = xp.sum(xp.reshape(rows, (-1, values, SKETCH_WIDTH)) * signs, axis=1)
        return rows[0]


def hashed_signs(level: int, rows: int) -> Signs:
    """Return a sign for each row and column, hashed from their numbers (the mixer of SplitMix64).

    >>> hashed_signs(0, 3).shape, sorted(set(hashed_signs(0, 3).ravel().tolist()))
    ((3, 4093), [-1, 1])
    """
    places = np.arange(rows * SKETCH_WIDTH, dtype=np.uint64)
    mixed = (places + np.uint64((level + 1) << 40)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    signs = 1 - 2 * ((mixed >> np.uint64(63)).astype(np.int8))
    return signs.astype(np.int8).reshape(rows, SKETCH_WIDTH)
