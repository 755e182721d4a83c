"""`Spool`: the rows of one worker on disk, so that they outlive the process and an outage.

A directory holds the rows of one worker. ``header.json`` names it and never holds a secret;
``rows.sqlite3`` holds the reports in the order of their rows. SQLite makes each change complete or
absent, however the process ends.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Role, StepReport
from worker_agent.errors import SpoolUnusable

SPOOL_LIMIT_BYTES = 64 * 1024 * 1024
BATCH_ROWS = 1_000
HEADER_FILE, ROWS_FILE, LOCK_FILE = "header.json", "rows.sqlite3", "lock"
_REPORT = TypeAdapter(StepReport)
# WAL lets `scavenger doctor` or a test read beside the writer. NORMAL calls fsync only when the log
# is folded into the file: a power cut costs the newest rows, never the file.
_OPEN = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS reports (
    sequence INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS stream (
    floor INTEGER NOT NULL, following INTEGER NOT NULL, dropped INTEGER NOT NULL, final BLOB
);
INSERT INTO stream SELECT 0, 0, 0, NULL WHERE NOT EXISTS (SELECT * FROM stream);
"""


@dataclass(frozen=True, slots=True)
class SpoolHeader:
    """Whose rows a spool holds, and where they belong.

    Attributes:
        job: Id of the job.
        worker: Id of the worker.
        controller: URL of the controller.
        address: Address at which the other workers reached this one, as in its Hello.
        role: Role of the machine, as in its Hello.
    """

    job: str
    worker: str
    controller: str
    address: str
    role: Role = "worker"


_HEADER = TypeAdapter(SpoolHeader)


class Spool:
    """The rows of one worker on disk, for one thread of one process at a time.

    The spool is bounded: it drops its oldest rows for new ones, and counts them. Every method that
    writes may raise OSError, and then has changed nothing.

    Args:
        directory: Where the spool is; created if a header is given.
        header: Whose it is; None for a spool that must exist.
        limit: Bytes of all reports.

    Attributes:
        header: Whose it is.
        floor: Rows below this sequence are stored by the controller, or dropped.
        following: Sequence of the next row.
        dropped: Rows dropped so far, over all processes of this worker.
        unreadable: Rows that were found damaged when the spool was opened.

    Raises:
        SpoolUnusable: Another process uses it, it belongs to another worker, it does not exist, or
            its file is damaged.
        OSError: The disk refuses.
    """

    def __init__(
        self, directory: Path, header: SpoolHeader | None, limit: int = SPOOL_LIMIT_BYTES
    ) -> None:
        self.limit = limit
        if header is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        try:
            self.header = _check_header(directory, header)
            self._database = _connect(directory / ROWS_FILE)
            query = "SELECT floor, following, dropped FROM stream"
            with _as_os_error():
                self.floor, self.following, self.dropped = self._database.execute(query).fetchone()
            self.unreadable = self._delete_damaged()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Release the directory; its content stays."""
        with _as_os_error():
            self._database.close()
        os.close(self._lock)

    def append(self, report: StepReport) -> int:
        """Write a report behind those before it.

        Returns:
            Number of oldest rows that were dropped to make room.

        Raises:
            OSError: The disk refuses; the report may be appended later.
        """
        body = _REPORT.dump_json(report)
        with self._change() as database:
            floor, given_up = self.floor, 0
            for number, sequence, rows in self._oldest_beyond(len(body)):
                given_up += max(0, sequence + rows - max(sequence, self.floor))
                floor = max(floor, sequence + rows)
                database.execute("DELETE FROM reports WHERE rowid = ?", (number,))
            dropped, following = report.dropped + given_up, sequence_after(report)
            if len(report.steps):
                place = (report.sequence, len(report.steps))
                record = (*place, _checksum(*place, body), body)
                database.execute("INSERT INTO reports VALUES (?, ?, ?, ?)", record)
            # Only the newest report can be the last one of a process.
            final = None if report.finished is None else body
            stream = (floor, following, dropped, final)
            database.execute(
                "UPDATE stream SET floor = ?, following = ?, dropped = ?, final = ?", stream
            )
        self.floor, self.following, self.dropped = floor, following, dropped
        return given_up

    def reports(self, start: int = 0) -> Iterator[StepReport]:
        """Yield the rows from a sequence on, in order, in reports of one generation each."""
        return merge_reports(self._read(max(start, self.floor)))

    def final_report(self) -> StepReport | None:
        """Return the last report if it says how training ended."""
        with _as_os_error():
            (body,) = self._database.execute("SELECT final FROM stream").fetchone()
        return None if body is None else _REPORT.validate_json(body)

    def waiting(self) -> int:
        """Return how many rows the controller is not known to have."""
        query = "SELECT coalesce(sum(sequence + rows - max(sequence, ?)), 0) FROM reports"
        with _as_os_error():
            (rows,) = self._database.execute(query, (self.floor,)).fetchone()
        return int(rows)

    def trim(self, next_sequence: int) -> None:
        """Delete the rows below a sequence: the controller has stored them."""
        if next_sequence <= self.floor:
            return
        with self._change() as database:
            database.execute("DELETE FROM reports WHERE sequence + rows <= ?", (next_sequence,))
            database.execute("UPDATE stream SET floor = ?", (next_sequence,))
        self.floor = next_sequence

    def clear(self) -> None:
        """Delete all but the next sequence: everything was delivered."""
        following = max(self.floor, self.following)
        with self._change() as database:
            database.execute("DELETE FROM reports")
            database.execute(
                "UPDATE stream SET floor = ?, following = ?, final = NULL", (following, following)
            )
        self.floor = self.following = following

    def renumber(self, first: int, by: int) -> None:
        """Move the rows from a sequence on to higher numbers, and delete those before it.

        Two processes assigned the same numbers if the rows of the earlier one never reached the
        disk.
        """
        with self._change() as database:
            database.execute("DELETE FROM reports WHERE sequence + rows <= ?", (first,))
            database.execute(
                "UPDATE reports SET sequence = sequence + ?1,"
                " checksum = checksum_of(sequence + ?1, rows, body)",
                (by,),
            )
            stream = (first + by, self.following + by)
            database.execute("UPDATE stream SET floor = ?, following = ?", stream)
        self.floor, self.following = stream

    def _read(self, start: int) -> Iterator[StepReport]:
        """Yield reports one by one; those already read may be deleted meanwhile."""
        query = "SELECT rowid FROM reports WHERE sequence + rows > ? ORDER BY sequence"
        with _as_os_error():
            numbers = self._database.execute(query, (start,)).fetchall()
        query = "SELECT sequence, body FROM reports WHERE rowid = ?"
        # One body at a time: a full spool holds 64 MiB.
        for number in numbers:
            with _as_os_error():
                sequence, body = self._database.execute(query, number).fetchone()
            yield drop_before(replace(_REPORT.validate_json(body), sequence=sequence), start)

    def _oldest_beyond(self, need: int) -> list[tuple[int, int, int]]:
        """Return the oldest reports that must go so that so many bytes fit."""
        total = "SELECT coalesce(sum(length(body)), 0) FROM reports"
        (size,) = self._database.execute(total).fetchone()
        oldest = []
        query = "SELECT rowid, sequence, rows, length(body) FROM reports ORDER BY sequence"
        for number, sequence, rows, length in self._database.execute(query):
            if size + need <= self.limit:
                break
            oldest.append((number, sequence, rows))
            size -= length
        return oldest

    def _delete_damaged(self) -> int:
        """Delete the reports whose content has changed on disk; returns how many rows they had."""
        damaged, missing = [], 0
        query = "SELECT rowid, sequence, rows, checksum, body FROM reports"
        with self._change() as database:
            for number, sequence, rows, checksum, body in database.execute(query):
                if _checksum(sequence, rows, body) != checksum:
                    damaged.append((number,))
                    missing += max(0, sequence + rows - max(sequence, self.floor))
            database.executemany("DELETE FROM reports WHERE rowid = ?", damaged)
        return missing

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Make all changes of a block, or none of them."""
        with _as_os_error(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database


def sequence_after(report: StepReport) -> int:
    """Return the sequence of the row after the last one of a report."""
    return report.sequence + len(report.steps)


def drop_before(report: StepReport, sequence: int) -> StepReport:
    """Return the report without its rows below a sequence."""
    known = sequence - report.sequence
    if known <= 0:
        return report
    steps = report.steps[known:]
    return replace(report, sequence=sequence, steps=steps)


def merge_reports(reports: Iterable[StepReport]) -> Iterator[StepReport]:
    """Merge reports that follow one another in a generation, up to BATCH_ROWS rows each."""
    parts: list[StepReport] = []
    for report in reports:
        if parts and not _follows(report, parts):
            yield _merged(parts)
            parts = []
        parts.append(report)
    if parts:
        yield _merged(parts)


def _follows(report: StepReport, parts: Sequence[StepReport]) -> bool:
    is_next = report.sequence == sequence_after(parts[-1])
    is_same = report.progress.generation == parts[-1].progress.generation
    return is_next and is_same and sequence_after(report) - parts[0].sequence <= BATCH_ROWS


def _merged(parts: Sequence[StepReport]) -> StepReport:
    steps = StepColumns.concat([part.steps for part in parts])
    return replace(parts[-1], sequence=parts[0].sequence, steps=steps)


def find_spools(directory: Path) -> list[Path]:
    """Return every spool in a directory, itself and its subdirectories included."""
    return sorted(header.parent for header in directory.rglob(HEADER_FILE))


def read_spool_header(directory: Path) -> SpoolHeader:
    """Return whose spool it is.

    Raises:
        SpoolUnusable: There is no valid header.
        OSError: The disk refuses.
    """
    path = directory / HEADER_FILE
    try:
        return _HEADER.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SpoolUnusable(f"{directory} holds no {HEADER_FILE}") from None
    except ValidationError:
        raise SpoolUnusable(f"{path} cannot be read: it is no header of a spool") from None


def _check_header(directory: Path, header: SpoolHeader | None) -> SpoolHeader:
    """Return whose spool it is; a new one gets its header."""
    if header is None:
        return read_spool_header(directory)
    path = directory / HEADER_FILE
    if path.exists():
        found = read_spool_header(directory)
        if (found.job, found.worker) != (header.job, header.worker):
            raise SpoolUnusable(f"{directory} belongs to {found.worker} of {found.job}")
    # Renamed when complete, so that a killed process leaves no half-written header.
    fresh = path.with_suffix(".draft")
    fresh.write_bytes(_HEADER.dump_json(header))
    fresh.rename(path)
    return header


def _lock(directory: Path) -> int:
    """Hold the directory as long as this process lives; processes that it forks do not hold it."""
    if not directory.is_dir():
        raise SpoolUnusable(f"{directory} is no directory")
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise SpoolUnusable(f"another process uses {directory}") from None
    return handle


def _checksum(sequence: int, rows: int, body: bytes) -> int:
    """Return what tells a report that has changed on disk, its number included."""
    return crc32(body, sequence * 1_000_003 + rows & 0xFFFF_FFFF)


class _Database(sqlite3.Connection):
    """A connection that weak references may name."""


def _connect(path: Path) -> _Database:
    if any(path.parent.glob("*.rows")):
        raise SpoolUnusable(f"{path.parent} was written by an older version: sync it with that one")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would let others read it
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=_Database
    )
    _open_databases.add(database)
    try:
        database.create_function("checksum_of", 3, _checksum, deterministic=True)
        database.executescript(_OPEN)
        stream = database.execute("SELECT floor, following, dropped FROM stream").fetchone()
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # A message of SQLite quotes what a damaged file calls its tables, which may be no text.
        database.close()
        if isinstance(error, sqlite3.OperationalError):
            raise OSError(errno.EIO, f"the spool's database: {error}") from error
        raise SpoolUnusable(f"{path} is damaged: {error}") from error
    if verdict != "ok" or not all(isinstance(number, int) for number in stream):
        database.close()
        raise SpoolUnusable(f"{path} is damaged: {verdict}")
    return database


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"the spool's database: {error}") from error


# SQLite forbids that a forked process uses a connection, or even closes it: another thread may have
# held a lock of the library at that moment, and the fork would wait for it at its exit, for ever.
_open_databases: weakref.WeakSet[_Database] = weakref.WeakSet()


def _never_close_in_fork() -> None:
    for database in _open_databases:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


os.register_at_fork(after_in_child=_never_close_in_fork)
