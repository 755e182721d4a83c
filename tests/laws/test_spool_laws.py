"""Killed or refused between any two file operations, the spool loses no row without counting it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.measurement.steps import StepColumns, StepRow
from scavenger.protocol import Progress, StepReport
from worker_agent.errors import SpoolUnusable
from worker_agent.telemetry.spool import ROWS_FILE, Spool, SpoolHeader

HEADER = SpoolHeader("job", "w1", "http://127.0.0.1:9", "127.0.0.1:1")
NOTHING = 1_000_000


@dataclass
class Disk:
    """Counts the steps of SQLite and lets one of them fail, or kill the process."""

    directory: Path
    after: int = NOTHING
    is_deadly: bool = False
    remains: Path | None = None

    def strikes(self) -> bool:
        """Whether the statement that runs fails here; a kill leaves the files as they are now."""
        self.after -= 1
        if self.after == -1 and self.is_deadly:
            self.remains = Path(tempfile.mkdtemp(dir=self.directory.parent)) / "spool"
            shutil.copytree(self.directory, self.remains)
        return self.after == -1


def rows(first: int, count: int, generation: int = 1) -> StepReport:
    """Rows whose iteration is their number in the stream."""
    numbers = range(first, first + count)
    steps = [StepRow(generation, n, 2, 1.0, None, 0.1, 0.1, 0.2, 0.5, 0.1, 0.1) for n in numbers]
    progress = Progress(generation, first + count, 0, 0.0, {})
    return StepReport("w1", progress, sequence=first, steps=StepColumns.from_rows(steps))


class Stream:
    """A process that measures and writes, killed at will, and what a controller makes of it."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self.stored: list[int] = []
        self.expected = self.missing = self.produced = self.generation = 0
        self.unwritten: StepReport | None = None
        self.reopen()

    def reopen(self) -> None:
        """Start the process (again); the answer to its Hello says what the controller expects."""
        self.disk = Disk(self.directory)
        self.spool = Spool(self.directory, HEADER, self.limit)
        self.spool._database.set_progress_handler(self.disk.strikes, 10)
        self.produced = self.spool.following
        self.unwritten = None
        self.spool.trim(self.expected)

    def kill(self) -> None:
        """Forget the process; what it left is what was on disk at that moment."""
        self.spool.close()
        self.directory = self.disk.remains or self.directory

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
    st.tuples(st.just("kill"), st.integers(0, 40)),
    st.tuples(st.just("refuse"), st.integers(0, 40)),
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
        case "kill" | "refuse":
            stream.disk.after, stream.disk.is_deadly = number, act == "kill"
        case "clear" if stream.expected == stream.produced and stream.unwritten is None:
            stream.spool.clear()


@settings(max_examples=100)
@given(st.lists(ACTS, min_size=4, max_size=40), st.sampled_from([3_000, 10_000, 64 * 1024 * 1024]))
def test_every_row_is_stored_once_and_in_order_or_counted(
    acts: list[tuple[str, int]], limit: int
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        stream = Stream(place / "spool", limit)
        for act, number in acts:
            try:
                play(stream, act, number)
            except OSError:
                assert act in ("deliver", "clear")  # appending keeps what it could not write
            if stream.disk.remains is not None:
                stream.kill()
                stream.reopen()
        stream.kill()
        stream.reopen()
        stream.deliver(NOTHING)
        assert stream.stored == sorted(set(stream.stored))
        assert len(stream.stored) + stream.missing == stream.expected
        assert stream.missing == stream.spool.dropped
        assert stream.expected == stream.spool.following
        assert stream.spool.unreadable == 0
        query = "SELECT coalesce(sum(length(body)), 0) FROM reports"
        (size,) = stream.spool._database.execute(query).fetchone()
        assert size <= limit
        stream.kill()
    finally:
        shutil.rmtree(place)


def read_iterations(place: Path) -> tuple[list[int], int]:
    """Open a spool; returns the rows it holds and how many it says are damaged."""
    spool = Spool(place, HEADER)
    try:
        return [n for each in spool.reports() for n in each.steps.iteration], spool.unreadable
    finally:
        spool.close()


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(0, 19), st.data())
def test_a_changed_byte_costs_one_report_and_is_counted(
    count: int, ruined: int, data: st.DataObject
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        spool = Spool(place, HEADER)
        for number in range(20):
            spool.append(rows(number * count, count))
        query = "SELECT body FROM reports WHERE sequence = ?"
        (body,) = spool._database.execute(query, (ruined * count,)).fetchone()
        at = data.draw(st.integers(0, len(body) - 1))
        changed = bytearray(body)
        changed[at] ^= data.draw(st.integers(1, 255))
        spool._database.execute("UPDATE reports SET body = ? WHERE body = ?", (changed, body))
        spool.close()
        lost = range(ruined * count, (ruined + 1) * count)
        expected = [n for n in range(20 * count) if n not in lost]
        assert read_iterations(place) == (expected, count)
    finally:
        shutil.rmtree(place)


@settings(max_examples=100)
@given(st.integers(1, 5), st.data())
def test_a_damaged_file_is_refused_or_yields_only_rows_that_were_written(
    count: int, data: st.DataObject
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        spool = Spool(place, HEADER)
        for number in range(20):
            spool.append(rows(number * count, count))
        spool.close()
        file = place / ROWS_FILE
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[at:]
        else:
            content[at] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        try:
            found, _ = read_iterations(place)
        except (SpoolUnusable, OSError):
            return
        assert set(found) <= set(range(20 * count))
    finally:
        shutil.rmtree(place)


def test_a_damaged_name_of_a_table_is_refused(tmp_path: Path) -> None:
    """SQLite quotes the name in its answers, and a damaged one may be no text."""
    Spool(tmp_path, HEADER).close()
    file = tmp_path / ROWS_FILE
    content = file.read_bytes()
    for at in range(content.index(b"reports"), 4096):  # to the end of the first page
        file.write_bytes(content[:at] + bytes([content[at] ^ 128]) + content[at + 1 :])
        with suppress(SpoolUnusable, OSError):
            assert read_iterations(tmp_path) == ([], 0)


@settings(max_examples=100)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 500), st.integers(0, 400))
def test_rows_keep_their_order_when_they_are_renumbered(
    earlier: int, later: int, by: int, after: int
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        spool = Spool(place, HEADER)
        for number in range(earlier + later):
            spool.append(rows(number, 1, generation=number % 3))
        spool._database.set_progress_handler(Disk(place, after).strikes, 10)
        try:
            spool.renumber(earlier, by)
            is_done = True
        except OSError:
            is_done = False
        spool._database.set_progress_handler(None, 0)
        spool.close()
        spool = Spool(place, HEADER)
        first = earlier + by if is_done else 0
        found = [n for report in spool.reports(first) for n in report.steps.iteration]
        assert found == list(range(earlier if is_done else 0, earlier + later))
        assert spool.following == earlier + later + (by if is_done else 0)
        spool.close()
    finally:
        shutil.rmtree(place)


FORK = """
import gc, os, sys
from pathlib import Path
from tests.laws.test_spool_laws import HEADER, rows
from worker_agent.telemetry.spool import Spool

spool = Spool(Path(sys.argv[1]), HEADER)
spool.append(rows(0, 5))
child = os.fork()
if child == 0:
    del spool
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
spool.append(rows(5, 5))
spool.close()
"""


def test_a_fork_that_exits_leaves_the_spool_of_its_parent_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path / "spool")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert read_iterations(tmp_path / "spool") == (list(range(10)), 0)
