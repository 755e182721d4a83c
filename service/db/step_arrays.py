"""Measured iterations as numpy arrays, and their packed form.

Packed rows take about a quarter of the space of JSON. A chunk is the byte of its version, the
number of rows, and then each column: a letter that names the encoding, and the values, little-
endian.

====== ==================================================================
Letter Encoding
====== ==================================================================
``c``  one integer of 8 bytes, which all rows have
``r``  one integer of 8 bytes, from which the rows count on by one
``q``  integers of 8 bytes
``f``  floats of 4 bytes; NaN where there is no value
``d``  floats of 8 bytes, where ``f`` would overflow or round too much
====== ==================================================================

Single precision has 7 digits: finer than a clock measures a second, as fine as norms of single-
precision gradients, and far finer than the uncertainty of φ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from scavenger.measurement.steps import COLUMN_KINDS, StepColumns

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MAX_SECONDS = 1e9
# A sum still holds its square, and norms of single-precision gradients stay below 1e77.
MAX_VALUE = 1e80
MAX_SHARDS = 1 << 20

SERIES_NAMES = tuple(name for name, kind in COLUMN_KINDS.items() if kind != "count")
STAND_INS = {column.name: column.metadata["stand_in"] for column in fields(StepColumns)}
TIME_SERIES = frozenset(name for name, kind in COLUMN_KINDS.items() if kind == "seconds")
MAY_BE_MISSING = np.array([name not in TIME_SERIES for name in SERIES_NAMES])
MIN_VALUES = np.array(
    [-MAX_VALUE if COLUMN_KINDS[name] == "loss" else 0.0 for name in SERIES_NAMES]
)
MAX_VALUES = np.array([MAX_SECONDS if name in TIME_SERIES else MAX_VALUE for name in SERIES_NAMES])


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Measured iterations of one stream and generation, in order.

    Attributes:
        offset: Place of each row behind the first of its report.
        iteration: Number of each iteration.
        shards: Independent gradient shards its norms were taken over.
        series: The measured values by name and row; NaN where a norm or loss was not finite.
    """

    offset: IntArray
    iteration: IntArray
    shards: IntArray
    series: FloatArray

    def __len__(self) -> int:
        return len(self.iteration)

    def where(self, mask: BoolArray) -> StepArrays:
        """Return the rows that are marked."""
        return StepArrays(
            self.offset[mask], self.iteration[mask], self.shards[mask], self.series[:, mask]
        )

    def since(self, offset: int) -> StepArrays:
        """Return the rows that do not lie before a place."""
        if offset <= 0:
            return self
        return self.where(self.offset >= offset)


def to_arrays(columns: StepColumns) -> StepArrays:
    """Turn columns as they were sent into arrays."""
    rows = len(columns)
    series = np.array([getattr(columns, name) for name in SERIES_NAMES], np.float64)
    return StepArrays(
        np.arange(rows),
        np.array(columns.iteration, np.int64),
        np.array(columns.shards, np.int64),
        series.reshape(len(SERIES_NAMES), rows),
    )


def to_step_columns(batch: StepArrays) -> StepColumns:
    """Turn arrays into columns."""
    series = batch.series.astype(object)
    series[np.isnan(batch.series)] = None
    return StepColumns(
        iteration=tuple(batch.iteration.tolist()),
        shards=tuple(batch.shards.tolist()),
        **{name: tuple(column) for name, column in zip(SERIES_NAMES, series.tolist(), strict=True)},
    )


def invalid_rows(batch: StepArrays) -> dict[int, str]:
    """Return why rows cannot be used, by their place: none but such that no fit could bear."""
    series = batch.series
    lies_within = (series >= MIN_VALUES[:, None]) & (series <= MAX_VALUES[:, None])
    is_usable = lies_within | (np.isnan(series) & MAY_BE_MISSING[:, None])
    has_shards = (batch.shards >= 1) & (batch.shards <= MAX_SHARDS)
    if is_usable.all() and has_shards.all():
        return {}
    said = {int(batch.offset[row]): f"shards: {SHARDS_RULE}" for row in np.flatnonzero(~has_shards)}
    for name, row in np.argwhere(~is_usable).tolist():
        said.setdefault(int(batch.offset[row]), f"{SERIES_NAMES[name]}: {value_rule(name)}")
    return said


SHARDS_RULE = f"must lie between 1 and {MAX_SHARDS}"


def value_rule(name: int) -> str:
    """Say between which values a series lies."""
    return f"must lie between {MIN_VALUES[name]:g} and {MAX_VALUES[name]:g}"


PACKING_VERSION = 1
PACKING_HEADER = struct.Struct("<BI")
SINGLE_PRECISION = 2.0**-24  # the most that single precision changes a number it can hold


def pack(batch: StepArrays) -> bytes:
    """Return rows as bytes."""
    whole = [pack_whole(column) for column in (batch.iteration, batch.shards)]
    return b"".join(
        [PACKING_HEADER.pack(PACKING_VERSION, len(batch)), *whole, *pack_series(batch.series)]
    )


def pack_whole(column: IntArray) -> bytes:
    """Return whole numbers as bytes, in the shortest way that tells them."""
    first = column[:1].astype("<i8").tobytes()
    steps = np.diff(column)
    if len(column) and not steps.any():
        return b"c" + first
    if len(column) and (steps == 1).all():
        return b"r" + first
    return b"q" + column.astype("<i8").tobytes()


def pack_series(series: FloatArray) -> list[bytes]:
    """Return each series as bytes: rounded, unless that changes a value by more than rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        rough = series.astype("<f4")
        is_held = np.abs(rough - series) <= np.abs(series) * SINGLE_PRECISION
    is_held |= np.isnan(series)
    return [
        b"f" + short.tobytes() if held.all() else b"d" + exact.astype("<f8").tobytes()
        for short, exact, held in zip(rough, series, is_held, strict=True)
    ]


def unpack(content: bytes) -> StepArrays:
    """Return the rows of a chunk.

    Raises:
        ValueError: A newer controller wrote it.
    """
    version, rows = PACKING_HEADER.unpack_from(content)
    if version != PACKING_VERSION:
        raise ValueError(f"a chunk of version {version}, this controller reads {PACKING_VERSION}")
    reader = _Reader(content, PACKING_HEADER.size, rows)
    iteration, shards = (reader.column().astype(np.int64) for _ in range(2))
    series = {}
    for name in SERIES_NAMES:
        # A chunk from before a column was declared ends early: the column's stand-in fills it.
        if reader.at < len(content):
            series[name] = reader.column()
        else:
            series[name] = series.get(STAND_INS[name], np.full(rows, np.nan))
    values = np.array([*series.values()], np.float64).reshape(len(SERIES_NAMES), rows)
    return StepArrays(np.arange(rows), iteration, shards, values)


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
