"""`Spool`: the rows of one worker on disk, so that they outlive the process and an outage.

A directory holds the rows of one worker. ``header.json`` names it and never holds a secret.
Numbered segments ``*.rows`` hold records one after another, so that forgetting rows is deleting
files. A record is a frame and a report as JSON; it counts once it is whole. The newest segment
is never deleted, so the next process of the same worker knows the next number. A segment that
begins with a record without a report invalidates those before it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from scavenger.protocol import Role, StepReport
from worker_agent.errors import SpoolUnusable
from worker_agent.telemetry.steps import drop_before, merge_reports, sequence_after

SPOOL_LIMIT_BYTES = 64 * 1024 * 1024
SEGMENTS = 64
BATCH_ROWS = 1_000
_REPORT = TypeAdapter(StepReport)


class Spool:
    """The stream of one worker on disk, for one thread of one process at a time.

    What it keeps is bounded: the oldest rows are given up for new ones, and counted. Whatever
    touches the disk may raise OSError; a record that could not be written is not there at all.

    Args:
        directory: Where the stream lies; made if missing.
        header: Whose it is; None for a spool that must exist.
        limit: Bytes of all segments, but for the record that is being written.

    Attributes:
        header: Whose it is.
        floor: Rows below this sequence are stored by the controller, or given up.
        following: Sequence of the next row.
        dropped: Rows of the stream given up so far.
        unreadable: Rows that were found missing at the opening, from a ruined part of a segment.

    Raises:
        SpoolUnusable: Another process uses it, or it belongs to another worker, or none.
        OSError: The disk refuses.
    """

    def __init__(
        self, directory: Path, header: SpoolHeader | None, limit: int = SPOOL_LIMIT_BYTES
    ) -> None:
        self.directory, self.limit = directory, limit
        if header is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = lock_spool(directory)
        try:
            self.header = check_header(directory, header)
            self.floor = self.following = self.dropped = 0
            paths = sorted(directory.glob("*.rows"))
            self._sizes = {path: path.stat().st_size for path in paths}
            self._cursor = 0
            self._file: int | None = None
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let go of the directory; what is in it stays."""
        self._let_go()
        os.close(self._lock)

    def append(self, report: StepReport) -> int:
        """Write a report behind those before it.

        Returns:
            How many of the oldest rows were given up to make room.

        Raises:
            OSError: The disk refuses; nothing has changed, the report may be appended later.
        """
        body = _REPORT.dump_json(report)
        victims = self._victims(RECORD_LAYOUT.size + len(body))
        last = [record for path in victims for record in read_records(path)]
        floor = max([self.floor, *(record.following for record in last)])
        given_up = sum(rows_above(record, self.floor) for record in last)
        dropped = report.dropped + given_up
        # The record that says so comes first: killed in between, the victims are below its floor.
        self._write(SpoolRecord(floor, dropped, report.sequence, len(report.steps), body, 0))
        self.floor, self.dropped, self.following = floor, dropped, sequence_after(report)
        self._forget(victims)
        return given_up

    def reports(self, start: int = 0) -> Iterator[StepReport]:
        """Return the rows from a sequence on, in order, in reports of one generation each."""
        return merge_reports(self._rows(max(start, self.floor)), BATCH_ROWS)

    def last_words(self) -> StepReport | None:
        """Return the last report if it says how training ended, None if there is none."""
        newest = [record for path in self._newest for record in read_records(path)][-1:]
        for report in map(_parse_report, newest):
            if report is not None and report.finished is not None:
                return report
        return None

    def waiting(self) -> int:
        """Return how many rows are there that the controller is not known to have."""
        return sum(rows_above(record, self.floor) for record in self._records())

    def trim(self, next_sequence: int) -> None:
        """Forget the rows below a sequence: the controller has stored them."""
        self.floor = max(self.floor, next_sequence)
        while self._sizes:
            oldest = next(iter(self._sizes))
            for record in read_records(oldest, self._cursor):
                if record.following > self.floor:
                    return
                self._cursor = record.end
            if len(self._sizes) == 1 or not self._forget([oldest]):
                return

    def clear(self) -> None:
        """Forget everything but where the stream stands: all of it was delivered.

        Raises:
            OSError: The disk refuses; nothing is lost.
        """
        self.floor = self.following = max(self.floor, self.following)
        self._begin()
        self._write(SpoolRecord(self.floor, self.dropped, self.following, 0, b"", 0))
        self._void_before(self._newest[0])

    def renumber(self, first: int, by: int) -> None:
        """Move the rows from a sequence on to higher numbers; those before it are forgotten.

        Two processes gave the same numbers when the rows of the earlier one never reached the disk.

        Raises:
            OSError: The disk refuses; nothing has changed.
        """
        path, start = self._next_path(), first + by
        moved = (replace(r, sequence=r.sequence + by) for r in self._rows(first))
        with path.with_suffix(".new").open("wb") as fresh:
            fresh.write(encode_record(SpoolRecord(start, self.dropped, start, 0, b"", 0)))
            for report in moved:
                body, rows = _REPORT.dump_json(report), len(report.steps)
                fresh.write(
                    encode_record(SpoolRecord(start, self.dropped, report.sequence, rows, body, 0))
                )
        size = path.with_suffix(".new").stat().st_size
        # From here on the new numbers count.
        path.with_suffix(".new").rename(path)
        self._let_go()
        self._sizes[path] = size
        self.floor, self.following = start, self.following + by
        self._void_before(path)

    # Opening.

    def _recover(self) -> None:
        """Read where the stream stands, and cut off a record that was not finished."""
        for unfinished in self.directory.glob("*.new"):
            unfinished.unlink()
        for path in reversed(list(self._sizes)):
            if path in self._sizes and is_mark(next(read_records(path), None)):
                self._void_before(path)
        for record in self._records():
            self.floor = max(self.floor, record.floor)
            self.dropped = max(self.dropped, record.dropped)
            self.following = max(self.following, record.following, self.floor)
        self.unreadable = self._missing()
        for path in reversed(list(self._sizes)):
            end = whole_bytes(path)
            if end:
                os.truncate(path, end)
                self._sizes[path] = end
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
                break
            # The newest segment says where the stream stands, so it holds a whole record.
            path.unlink()
            del self._sizes[path]
        self.trim(0)

    def _missing(self) -> int:
        """Return how many rows of interest ruined parts of older segments held."""
        missing, before, is_ruined = 0, self.floor, False
        dropped = self.dropped
        for path in self._sizes:
            for record in read_records(path):
                if is_ruined:
                    gap = record.sequence - max(before, self.floor)
                    missing += max(0, gap - max(0, record.dropped - dropped))
                before, dropped, is_ruined = record.following, record.dropped, False
            is_ruined = is_ruined or whole_bytes(path) < self._sizes[path]
        return missing

    # Writing.

    def _victims(self, need: int) -> list[Path]:
        """Return the oldest segments that must go so that a record fits; never the newest."""
        victims: list[Path] = []
        excess = sum(self._sizes.values()) + need - self.limit
        for path in list(self._sizes)[:-1]:
            if excess <= 0:
                break
            victims.append(path)
            excess -= self._sizes[path]
        return victims

    def _void_before(self, path: Path) -> None:
        """Forget the segments before one with a mark, even those the disk refuses to delete."""
        for void in takewhile(lambda other: other != path, list(self._sizes)):
            with suppress(OSError):
                void.unlink()
            del self._sizes[void]
        self._cursor = 0

    def _write(self, record: SpoolRecord) -> None:
        content = encode_record(record)
        filled = next((self._sizes[path] for path in self._newest), 0)
        if self._file is None or (filled and filled + len(content) > self.limit // SEGMENTS):
            self._begin()
        try:
            self._write_all(content)
        except OSError:
            self._undo()
            raise
        self._sizes[self._newest[0]] += len(content)

    def _write_all(self, content: bytes) -> None:
        assert self._file is not None
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _undo(self) -> None:
        """Take back half a record; where the disk refuses even that, go on in another segment."""
        assert self._file is not None
        newest = self._newest[0]
        if not self._sizes[newest]:
            self._let_go()
            self._forget([newest])
            return
        try:
            os.ftruncate(self._file, self._sizes[newest])
        except OSError:
            self._let_go()

    def _begin(self) -> None:
        path = self._next_path()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._let_go()
        self._sizes[path] = 0
        self._file = file

    @property
    def _newest(self) -> list[Path]:
        """The newest segment, if there is any."""
        return list(self._sizes)[-1:]

    def _next_path(self) -> Path:
        number = max((int(path.stem) + 1 for path in self._newest), default=0)
        return self.directory / f"{number:010}.rows"

    def _let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _forget(self, paths: Sequence[Path]) -> bool:
        """Delete segments below the floor; False where the disk refuses, which does no harm."""
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                return False
            if path == next(iter(self._sizes)):
                self._cursor = 0
            del self._sizes[path]
        return True

    # Reading.

    def _records(self) -> Iterator[SpoolRecord]:
        cursor = self._cursor
        for path in tuple(self._sizes):
            yield from read_records(path, cursor)
            cursor = 0

    def _rows(self, start: int) -> Iterator[StepReport]:
        for record in self._records():
            report = _parse_report(record) if rows_above(record, start) else None
            if report is not None:
                yield drop_before(report, start)


def _parse_report(record: SpoolRecord) -> StepReport | None:
    """Read the report of a record; None where it only marks, or says nothing a report can."""
    with suppress(ValidationError):
        return _REPORT.validate_json(record.body)
    return None


HEADER_FILE = "header.json"


@dataclass(frozen=True, slots=True)
class SpoolHeader:
    """Whose stream a spool holds, and where it belongs.

    Attributes:
        job: Id of the job.
        worker: Id of the worker.
        controller: URL of the controller.
        address: Where the other workers reached this one, as its Hello says.
        role: What the machine is there for, as its Hello says.
    """

    job: str
    worker: str
    controller: str
    address: str
    role: Role = "worker"


_HEADER = TypeAdapter(SpoolHeader)


def find_spools(place: Path) -> list[Path]:
    """Return every spool in a directory, itself and its subdirectories included."""
    return sorted(header.parent for header in place.rglob(HEADER_FILE))


def lock_spool(directory: Path) -> int:
    """Hold the directory as long as this process lives; the processes it forks do not."""
    if not directory.is_dir():
        raise SpoolUnusable(f"{directory} is no directory")
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise SpoolUnusable(f"another process uses {directory}") from None
    return handle


def check_header(directory: Path, header: SpoolHeader | None) -> SpoolHeader:
    """Return whose spool it is; a new one is given its header."""
    if header is None:
        return read_spool_header(directory)
    path = directory / HEADER_FILE
    if path.exists():
        found = read_spool_header(directory)
        if (found.job, found.worker) != (header.job, header.worker):
            raise SpoolUnusable(f"{directory} belongs to {found.worker} of {found.job}")
    fresh = path.with_suffix(".draft")
    fresh.write_bytes(_HEADER.dump_json(header))
    fresh.rename(path)
    return header


def read_spool_header(directory: Path) -> SpoolHeader:
    """Return whose spool it is.

    Raises:
        SpoolUnusable: There is no header, or none that can be read.
        OSError: The disk refuses.
    """
    path = directory / HEADER_FILE
    try:
        return _HEADER.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SpoolUnusable(f"{directory} holds no {HEADER_FILE}") from None
    except ValidationError:
        raise SpoolUnusable(f"{path} cannot be read: it is no header of a spool") from None


# Length of the body, checksum of the rest; then: lowest sequence that is still of interest, rows
# given up so far, sequence of the first row, number of rows.
RECORD_LAYOUT = struct.Struct("<IIQQQI")
CHECKSUM_START = 8


@dataclass(frozen=True, slots=True)
class SpoolRecord:
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


def read_records(path: Path, start: int = 0) -> Iterator[SpoolRecord]:
    """Return the whole records of a segment, up to the first that is not."""
    content = memoryview(_content(path, start))
    at = 0
    while at + RECORD_LAYOUT.size <= len(content):
        length, checksum, floor, dropped, sequence, rows = RECORD_LAYOUT.unpack_from(content, at)
        end = at + RECORD_LAYOUT.size + length
        if end > len(content) or crc32(content[at + CHECKSUM_START : end]) != checksum:
            return
        body = bytes(content[at + RECORD_LAYOUT.size : end])
        yield SpoolRecord(floor, dropped, sequence, rows, body, start + end)
        at = end


def whole_bytes(path: Path) -> int:
    """Return how many bytes of a segment are whole records."""
    return max((record.end for record in read_records(path)), default=0)


def encode_record(record: SpoolRecord) -> bytes:
    """Return a record as it lies on disk."""
    numbers = (record.floor, record.dropped, record.sequence, record.rows)
    checked = RECORD_LAYOUT.pack(0, 0, *numbers)[CHECKSUM_START:] + record.body
    return RECORD_LAYOUT.pack(len(record.body), crc32(checked), *numbers) + record.body


def is_mark(record: SpoolRecord | None) -> bool:
    """Whether it is a record without a report, which only says where the stream stands."""
    return record is not None and not record.body


def rows_above(record: SpoolRecord, floor: int) -> int:
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
