"""Segment: a file of records one after another; a record counts once it is whole."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

# Length of the body, checksum of the rest; then: lowest sequence that is still of interest, rows
# given up so far, sequence of the first row, number of rows.
FRAME = struct.Struct("<IIQQQI")
CHECKED = 8


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record of a segment.

    Attributes:
        floor: Rows below this sequence are of no interest any more.
        dropped: Rows of the stream given up so far.
        sequence: Number of its first row.
        rows: How many rows it holds; 0 for words only.
        body: The report as JSON; empty for a record that only marks where the stream stands.
        end: Where the next record of its segment begins, in bytes.
    """

    floor: int
    dropped: int
    sequence: int
    rows: int
    body: bytes
    end: int

    @property
    def following(self) -> int:
        """The sequence of the row after its last."""
        return self.sequence + self.rows


def records(path: Path, start: int = 0) -> Iterator[Record]:
    """Return the whole records of a segment, up to the first that is not."""
    content = memoryview(_content(path, start))
    at = 0
    while at + FRAME.size <= len(content):
        length, checksum, floor, dropped, sequence, rows = FRAME.unpack_from(content, at)
        end = at + FRAME.size + length
        if end > len(content) or crc32(content[at + CHECKED : end]) != checksum:
            return
        body = bytes(content[at + FRAME.size : end])
        yield Record(floor, dropped, sequence, rows, body, start + end)
        at = end


def whole_bytes(path: Path) -> int:
    """Return how many bytes of a segment are whole records."""
    return max((record.end for record in records(path)), default=0)


def encode(record: Record) -> bytes:
    """Return a record as it lies on disk."""
    numbers = (record.floor, record.dropped, record.sequence, record.rows)
    checked = FRAME.pack(0, 0, *numbers)[CHECKED:] + record.body
    return FRAME.pack(len(record.body), crc32(checked), *numbers) + record.body


def is_mark(record: Record | None) -> bool:
    """Whether it is a record without a report, which only says where the stream stands."""
    return record is not None and not record.body


def rows_above(record: Record, floor: int) -> int:
    """Return how many rows of a record are not below a sequence."""
    return max(0, record.following - max(record.sequence, floor))


def _content(path: Path, start: int) -> bytes:
    """Return what a segment holds from a byte on; nothing once somebody deleted it."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""
