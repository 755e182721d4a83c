"""Packing: rows as bytes, about a quarter of what they take as JSON.

A chunk is the byte of its version, the number of rows, and then each column: a letter that says how
it is written, and its values, little-endian.

====== ==================================================================
Letter What follows
====== ==================================================================
``c``  one whole number of 8 bytes, which all rows have
``r``  one whole number of 8 bytes, from which the rows count on by one
``q``  whole numbers of 8 bytes
``f``  numbers of 4 bytes, single precision; NaN where there is none
``d``  numbers of 8 bytes, double precision, where ``f`` would not hold them
====== ==================================================================

Single precision is 7 digits: of a second, less than a clock tells; of a norm, as much as gradients
of that precision have; of φ, far less than its uncertainty. Statistics are taken before packing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.db.batch import NAMES, Batch, Series, Whole

VERSION = 1
HEAD = struct.Struct("<BI")
ROUNDING = 2.0**-24  # the most that single precision changes a number it can hold


def pack(batch: Batch) -> bytes:
    """Return rows as bytes."""
    whole = [pack_whole(column) for column in (batch.iteration, batch.shards)]
    return b"".join([HEAD.pack(VERSION, len(batch)), *whole, *pack_series(batch.series)])


def pack_whole(column: Whole) -> bytes:
    """Return whole numbers as bytes, in the shortest way that tells them."""
    first = column[:1].astype("<i8").tobytes()
    steps = np.diff(column)
    if len(column) and not steps.any():
        return b"c" + first
    if len(column) and (steps == 1).all():
        return b"r" + first
    return b"q" + column.astype("<i8").tobytes()


def pack_series(series: Series) -> list[bytes]:
    """Return each series as bytes: rounded, unless that changes a value by more than rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        rough = series.astype("<f4")
        is_held = np.abs(rough - series) <= np.abs(series) * ROUNDING
    is_held |= np.isnan(series)
    return [
        b"f" + short.tobytes() if held.all() else b"d" + exact.astype("<f8").tobytes()
        for short, exact, held in zip(rough, series, is_held, strict=True)
    ]


def unpack(content: bytes) -> Batch:
    """Return the rows of a chunk.

    Raises:
        ValueError: A newer controller wrote it.
    """
    version, rows = HEAD.unpack_from(content)
    if version != VERSION:
        raise ValueError(f"a chunk of version {version}, this controller reads {VERSION}")
    reader = _Reader(content, HEAD.size, rows)
    iteration, shards = (reader.column().astype(np.int64) for _ in range(2))
    series = np.array([reader.column() for _ in NAMES], np.float64).reshape(len(NAMES), rows)
    return Batch(np.arange(rows), iteration, shards, series)


@dataclass(slots=True)
class _Reader:
    """Reads column after column."""

    content: bytes
    at: int
    rows: int

    def column(self) -> NDArray[np.int64] | NDArray[np.float64]:
        """Return the next column."""
        letter = self.content[self.at : self.at + 1]
        self.at += 1
        match letter:
            case b"c":
                return np.repeat(self._values("<i8", 1), self.rows)
            case b"r":
                return self._values("<i8", 1) + np.arange(self.rows)
            case b"q":
                return self._values("<i8", self.rows)
            case b"f":
                return self._values("<f4", self.rows)
            case b"d":
                return self._values("<f8", self.rows)
            case _:
                raise ValueError(f"a column written as {letter!r}")

    def _values(self, kind: str, number: int) -> NDArray[np.int64]:
        values = np.frombuffer(self.content, kind, number, self.at)
        self.at += values.nbytes
        return values
