"""Measured iterations as numpy arrays, and their packed form.

Packed rows take about a quarter of the space of JSON. A chunk is the byte of its version, the
number of rows, and then each column: a letter that names the encoding, and the values, little-
endian.

====== ==================================================================
Letter Encoding
====== ==================================================================
``c``  counts: one integer of 8 bytes, which all rows have
``r``  counts: one integer of 8 bytes, from which the rows count on by one
``q``  counts: integers of 8 bytes
``f``  floats of 4 bytes; NaN where there is no value
``d``  floats of 8 bytes, where ``f`` would overflow or round too much
====== ==================================================================

Single precision has 7 digits: finer than a clock measures a second, as fine as norms of single-
precision gradients, and far finer than the uncertainty of φ.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from scavenger.measurement.steps import COLUMN_KINDS, StepColumns

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# A sum still holds its square, and norms of single-precision gradients stay below 1e77.
MAX_VALUE = 1e80
LIMITS_BY_KIND = {
    "count": (0, 2**53),
    "norm": (0, MAX_VALUE),
    "seconds": (0, 1e9),
    "loss": (-MAX_VALUE, MAX_VALUE),
}
LIMITS = {name: LIMITS_BY_KIND[kind] for name, kind in COLUMN_KINDS.items()}
LIMITS["shards"] = (1, 1 << 20)
MIN_VALUES, MAX_VALUES = np.array([*LIMITS.values()], np.float64).T[:, :, None]
MAY_BE_MISSING = np.array([[kind in ("norm", "loss")] for kind in COLUMN_KINDS.values()])
STAND_INS = {column.name: column.metadata["stand_in"] for column in fields(StepColumns)}
COLUMN_NUMBERS = {name: number for number, name in enumerate(COLUMN_KINDS)}


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Measured iterations of one stream and generation, in order.

    All columns share one array, since numpy takes as long for a column of a report as for all of
    them. A count is at most 2**53, so a float holds it exactly.

    Attributes:
        offset: Place of each row behind the first of its report.
        values: The columns of ``StepColumns``, in their order, by row; NaN where a norm or loss was
            not finite.
    """

    offset: IntArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, name: str) -> FloatArray:
        column: FloatArray = self.values[COLUMN_NUMBERS[name]]
        return column

    def where(self, mask: BoolArray) -> StepArrays:
        return StepArrays(self.offset[mask], self.values[:, mask])

    def newest(self, most: int) -> StepArrays:
        return StepArrays(self.offset[-most:], self.values[:, -most:])

    def since(self, offset: int) -> StepArrays:
        """Return the rows that do not lie before a place."""
        return self if offset <= 0 else self.where(self.offset >= offset)


def to_arrays(columns: StepColumns) -> StepArrays:
    """Turn columns as they were sent into arrays."""
    values = np.array([getattr(columns, name) for name in COLUMN_KINDS], np.float64)
    return StepArrays(np.arange(len(columns)), values)


def to_step_columns(rows: StepArrays) -> StepColumns:
    """Turn arrays into columns."""
    columns = rows.values.astype(object)
    columns[np.isnan(rows.values)] = None
    for name, kind in COLUMN_KINDS.items():
        if kind == "count":
            columns[COLUMN_NUMBERS[name]] = rows[name].astype(np.int64)
    return StepColumns(*map(tuple, columns.tolist()))


def invalid_rows(rows: StepArrays) -> dict[int, str]:
    """Return by place why rows cannot be used: a value lies outside the limits of its column."""
    lies_within = (rows.values >= MIN_VALUES) & (rows.values <= MAX_VALUES)
    is_usable = lies_within | (np.isnan(rows.values) & MAY_BE_MISSING)
    if is_usable.all():
        return {}
    names, reasons = tuple(COLUMN_KINDS), dict[int, str]()
    for number, row in np.argwhere(~is_usable).tolist():
        low, high = LIMITS[names[number]]
        why = f"{names[number]}: must lie between {low:.7g} and {high:.7g}"
        reasons.setdefault(int(rows.offset[row]), why)
    return reasons


PACKING_VERSION = 1
PACKING_HEADER = struct.Struct("<BI")
DTYPES = {b"c": "<i8", b"r": "<i8", b"q": "<i8", b"f": "<f4", b"d": "<f8"}
SINGLE_PRECISION = 2.0**-24  # the most that single precision changes a number it can hold


def pack(rows: StepArrays) -> bytes:
    """Return rows as bytes."""
    header = PACKING_HEADER.pack(PACKING_VERSION, len(rows))
    return b"".join([header, *pack_columns(rows)])


def pack_columns(rows: StepArrays) -> list[bytes]:
    """Return each column as bytes; floats are rounded unless that changes one by too much."""
    values = rows.values
    with np.errstate(over="ignore", invalid="ignore"):
        rough = values.astype("<f4")
        is_held = np.abs(rough - values) <= np.abs(values) * SINGLE_PRECISION
    is_rough: BoolArray = np.all(is_held | np.isnan(values), axis=1)
    packed = []
    for number, kind in enumerate(COLUMN_KINDS.values()):
        if kind == "count":
            packed.append(pack_counts(values[number].astype("<i8")))
        elif is_rough[number]:
            packed.append(b"f" + rough[number].tobytes())
        else:
            packed.append(b"d" + values[number].astype("<f8").tobytes())
    return packed


def pack_counts(column: IntArray) -> bytes:
    """Return whole numbers as bytes, in the shortest way that tells them."""
    steps = np.diff(column)
    if len(column) and not steps.any():
        return b"c" + column[:1].tobytes()
    if len(column) and (steps == 1).all():
        return b"r" + column[:1].tobytes()
    return b"q" + column.tobytes()


def unpack_columns(content: bytes, names: Collection[str]) -> dict[str, FloatArray]:
    """Return some columns of a chunk, by name; the others are passed over.

    Raises:
        ValueError: A newer controller wrote it.
    """
    rows, at = rows_of_chunk(content), PACKING_HEADER.size
    read = {*names, *(STAND_INS[name] for name in names)}
    found: dict[str, FloatArray] = {}
    for name in COLUMN_KINDS:
        if at == len(content):
            break
        letter = content[at : at + 1]
        count = 1 if letter in b"cr" else rows
        if name in read:
            stored = np.frombuffer(content, DTYPES[letter], count, at + 1).astype(np.float64)
            counted = stored + np.arange(rows) if letter == b"r" else stored
            found[name] = counted if len(counted) == rows else np.full(rows, counted[0])
        at += 1 + count * int(DTYPES[letter][-1])
    for name in names:
        if name not in found:
            stand_in = STAND_INS[name]
            found[name] = np.full(rows, np.nan) if stand_in is None else found[stand_in]
    return {name: found[name] for name in names}


def rows_of_chunk(content: bytes) -> int:
    """Return how many rows a chunk has.

    Raises:
        ValueError: A newer controller wrote it.
    """
    version, rows = PACKING_HEADER.unpack_from(content)
    if version != PACKING_VERSION:
        raise ValueError(f"a chunk of version {version}, this controller reads {PACKING_VERSION}")
    return int(rows)


def unpack(content: bytes) -> StepArrays:
    """Return the rows of a chunk.

    Raises:
        ValueError: A newer controller wrote it.
    """
    rows = rows_of_chunk(content)
    values = np.full((len(COLUMN_KINDS), rows), np.nan)
    at = PACKING_HEADER.size
    for number, name in enumerate(COLUMN_KINDS):
        # A chunk from before a column was declared ends early: the column's stand-in fills it.
        if at == len(content):
            if STAND_INS[name] is not None:
                values[number] = values[COLUMN_NUMBERS[STAND_INS[name]]]
            continue
        letter = content[at : at + 1]
        stored = np.frombuffer(content, DTYPES[letter], 1 if letter in b"cr" else rows, at + 1)
        values[number] = stored + np.arange(rows) if letter == b"r" else stored
        at += 1 + stored.nbytes
    return StepArrays(np.arange(rows), values)
