"""Killed or refused between any two file operations, the spool loses no row without counting it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.protocol import Progress, StepReport
from worker_agent.telemetry.spool import _REPORT, SEGMENTS, Spool, SpoolHeader, read_records
from worker_agent.telemetry.steps import StepRow, to_columns

HEADER = SpoolHeader("job", "w1", "http://127.0.0.1:9", "127.0.0.1:1")
NOTHING = 1_000_000


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Disk:
    """Counts file operations and lets one of them kill the process, or fail half done."""

    fault: BaseException = field(default_factory=Killed)
    after: int = NOTHING

    def strikes(self) -> bool:
        self.after -= 1
        return self.after == -1


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Let every operation that changes a file pass through the disk."""
    names = ("open", "ftruncate", "truncate", "rename", "unlink")
    kept = {name: getattr(os, name) for name in (*names, "write")}

    def watch(name: str) -> Any:
        def act(*arguments: Any, **options: Any) -> Any:
            if disk.strikes():
                raise disk.fault
            return kept[name](*arguments, **options)

        return act

    def write(file: int, content: bytes) -> int:
        if disk.strikes():
            kept["write"](file, content[: len(content) // 2])
            raise disk.fault
        return int(kept["write"](file, content))

    patch = pytest.MonkeyPatch()
    for name in names:
        patch.setattr(os, name, watch(name))
    patch.setattr(os, "write", write)
    try:
        yield
    finally:
        patch.undo()


def rows(first: int, count: int, generation: int = 1) -> StepReport:
    """Rows whose iteration is their number in the stream."""
    numbers = range(first, first + count)
    steps = [StepRow(generation, n, 2, 1.0, None, 0.1, 0.1, 0.2, 0.5, 0.1, 0.1) for n in numbers]
    progress = Progress(generation, first + count, 0, 0.0, {})
    return StepReport("w1", progress, sequence=first, steps=to_columns(steps))


class Stream:
    """A process that measures and writes, killed at will, and what a controller makes of it."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self.disk = Disk()
        self.stored: list[int] = []
        self.expected = self.missing = self.produced = self.generation = 0
        self.unwritten: StepReport | None = None
        self.reopen()

    def reopen(self) -> None:
        """Start the process (again); the answer to its Hello says what the controller expects."""
        self.disk.after = NOTHING
        self.spool = Spool(self.directory, HEADER, self.limit)
        self.produced = self.spool.following
        self.unwritten = None
        self.spool.trim(self.expected)

    def kill(self) -> None:
        """Forget the process; the kernel closes its files."""
        self.spool.close()

    def produce(self, count: int) -> None:
        """Measure rows and write them; those the disk refuses are written first next time."""
        waiting = [] if self.unwritten is None else [self.unwritten]
        self.unwritten = None
        for report in [*waiting, rows(self.produced, count, self.generation)]:
            if self.unwritten is not None:
                return
            try:
                self.spool.append(replace(report, dropped=self.spool.dropped))
            except OSError:
                self.unwritten = report
            self.produced = report.sequence + len(report.steps)

    def deliver(self, batches: int) -> None:
        """Send some batches; the controller stores what is new and counts the gaps."""
        for report, _ in zip(self.spool.reports(self.expected), range(batches), strict=False):
            assert len(report.steps) <= 1000
            first = max(self.expected, report.sequence)
            self.missing += first - self.expected
            self.stored += report.steps.iteration[first - report.sequence :]
            self.expected = max(first, report.sequence + len(report.steps))
        self.spool.trim(self.expected)


ACTS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 30)),
    st.tuples(st.just("produce"), st.integers(1, 30)),
    st.tuples(st.just("turn"), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
    st.tuples(st.just("kill"), st.integers(0, 6)),
    st.tuples(st.just("refuse"), st.integers(0, 6)),
    st.tuples(st.just("clear"), st.just(0)),
)


def play(stream: Stream, act: str, number: int) -> None:
    match act:
        case "produce":
            stream.produce(number)
        case "turn":
            stream.generation += 1
        case "deliver":
            stream.deliver(number)
        case "kill":
            stream.disk.fault, stream.disk.after = Killed(), number
        case "refuse":
            stream.disk.fault = OSError(errno.ENOSPC, "No space left on device")
            stream.disk.after = number
        case "clear" if stream.expected == stream.produced and stream.unwritten is None:
            stream.spool.clear()


@settings(max_examples=200)
@given(st.lists(ACTS, min_size=4, max_size=40), st.sampled_from([3_000, 10_000, 64 * 1024 * 1024]))
def test_every_row_is_stored_once_and_in_order_or_counted(
    acts: list[tuple[str, int]], limit: int
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        stream = Stream(place / "spool", limit)
        with watched(stream.disk):
            for act, number in acts:
                try:
                    play(stream, act, number)
                except Killed:
                    stream.kill()
                    stream.reopen()
                except OSError:
                    assert act in ("deliver", "clear")  # appending keeps what it could not write
            stream.disk.after = NOTHING
            stream.kill()
            stream.reopen()
            stream.deliver(NOTHING)
        assert stream.stored == sorted(set(stream.stored))
        assert len(stream.stored) + stream.missing == stream.expected
        assert stream.missing == stream.spool.dropped
        assert stream.expected == stream.spool.following
        assert stream.spool.unreadable == 0
        assert sum(file.stat().st_size for file in place.rglob("*.rows")) <= limit + 10_000
        stream.kill()
    finally:
        shutil.rmtree(place)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_a_torn_tail_costs_the_torn_record_only(counts: list[int], data: st.DataObject) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        spool = Spool(place, HEADER)
        for number, count in enumerate(counts):
            spool.append(rows(sum(counts[:number]), count))
        spool.close()
        (segment,) = place.glob("*.rows")
        ends = [record.end for record in read_records(segment)]
        cut = data.draw(st.integers(0, segment.stat().st_size))
        os.truncate(segment, cut)
        whole = sum(counts[: sum(end <= cut for end in ends)])
        spool = Spool(place, HEADER)
        assert spool.following == whole
        spool.append(rows(whole, 5))
        found = [n for report in spool.reports() for n in report.steps.iteration]
        assert found == list(range(whole + 5))
        spool.close()
    finally:
        shutil.rmtree(place)


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(0, 19), st.data())
def test_a_ruined_byte_costs_one_record_of_an_older_segment_and_is_counted(
    count: int, ruined: int, data: st.DataObject
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        one = len(_REPORT.dump_json(rows(0, count)))
        spool = Spool(place, HEADER, SEGMENTS * one * 3 // 2)  # a segment for each record
        for number in range(20):
            spool.append(rows(number * count, count))
        spool.close()
        paths = sorted(place.glob("*.rows"))
        content = bytearray(paths[ruined].read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        paths[ruined].write_bytes(content)
        spool = Spool(place, HEADER)
        found = [n for report in spool.reports() for n in report.steps.iteration]
        lost = set(range(ruined * count, (ruined + 1) * count))
        assert found == [n for n in range(20 * count) if n not in lost]
        if ruined < 19:
            assert spool.unreadable == count
        spool.close()
    finally:
        shutil.rmtree(place)


@settings(max_examples=100)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 500), st.integers(0, 12))
def test_rows_keep_their_order_when_they_are_numbered_anew(
    earlier: int, later: int, by: int, after: int
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        spool = Spool(place, HEADER)
        for number in range(earlier + later):
            spool.append(rows(number, 1, generation=number % 3))
        disk = Disk(OSError(errno.EIO, "broken"), after)
        try:
            with watched(disk):
                spool.renumber(earlier, by)
            is_done = True
        except OSError:
            is_done = False
        finally:
            spool.close()
        spool = Spool(place, HEADER)
        first = earlier + by if is_done else 0
        found = [n for report in spool.reports(first) for n in report.steps.iteration]
        assert found == list(range(earlier if is_done else 0, earlier + later))
        assert spool.following == earlier + later + (by if is_done else 0)
        spool.close()
    finally:
        shutil.rmtree(place)
