"""The reporter over a controller that is often away, slow to learn, or forgets to answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Hello, Progress, Regrouped, Reply, StepReport
from tests.builders import directive
from tests.controller_double import LONG, until
from tests.spool import rows_on_disk
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.telemetry import outbox
from worker_agent.telemetry import reporter as telemetry
from worker_agent.telemetry.outbox import Outbox
from worker_agent.telemetry.reporter import Reporter
from worker_agent.telemetry.spool import Spool, SpoolHeader
from worker_agent.telemetry.upload import UploadResult, replay_spool

PROGRESS = Progress(1, 0, 0, 0.0, {})
HELLO = Hello("w1", "127.0.0.1:1")


class Flaky:
    """Obeys the contract of the controller, and loses requests and answers at random."""

    def __init__(self, loss: float, seed: int = 1) -> None:
        self.loss, self.random = loss, random.Random(seed)
        self.stored: list[int] = []
        self.next_sequence = 0
        self.notes: list[StepReport] = []
        self.asked = 0
        self.directive = directive(1, 32)
        self.refusal: int | None = None

    def hello(self, hello: Hello) -> Reply:
        self._lose()
        return Reply(None, self.next_sequence)

    def report(self, report: StepReport) -> Reply:
        self._lose()
        if self.refusal is not None:
            raise ControllerRefused(self.refusal, "no")
        known = max(0, self.next_sequence - report.sequence)
        self.stored += report.steps.iteration[known:]
        self.next_sequence = max(self.next_sequence, report.sequence + len(report.steps))
        self.notes.append(report)
        self._lose()
        return Reply(self.directive, self.next_sequence)

    def _lose(self) -> None:
        self.asked += 1
        if self.random.random() < self.loss:
            raise ControllerUnreachable("lost")


class Hung(Flaky):
    """Accepts every request and answers none."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.is_over = threading.Event()

    def _lose(self) -> None:
        self.asked += 1
        self.is_over.wait(600)
        raise ControllerUnreachable("hung")


class Moved(Flaky):
    """Notes who says what, and where from; its worker moves while its first Hello is answered."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.reporter: Reporter | None = None
        self.address = ""
        self.told: list[tuple[str, int]] = []

    def hello(self, hello: Hello) -> Reply:
        self.address = hello.address
        if self.reporter is not None:
            reporter, self.reporter = self.reporter, None
            reporter.send_hello("127.0.0.1:2", replace(PROGRESS, generation=0))
        return super().hello(hello)

    def report(self, report: StepReport) -> Reply:
        self.told.append((self.address, report.progress.generation))
        return super().report(report)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "DEFAULT_REPORT_INTERVAL",
        "PROBING_REPORT_INTERVAL",
        "WAITING_REPORT_INTERVAL",
        "MAX_RETRY_PAUSE",
        "MAX_WAITING_PAUSE",
        "MAX_CLOSING_PAUSE",
    ):
        monkeypatch.setattr(telemetry, name, 0.001)


def row(iteration: int, generation: int = 1) -> StepRow:
    return StepRow(generation, iteration, 2, 1.0, 1.0, 0.1, 0.1, 0.2, None, 0.1, 0.1)


def start(controller: Flaky, spool: Path | None = None) -> tuple[Reporter, list[int]]:
    heard: list[int] = []

    def open_spool(hello: Hello) -> Spool:
        assert spool is not None
        return Spool(spool, SpoolHeader("job", hello.worker, "http://127.0.0.1:9", hello.address))

    reporter = Reporter(
        controller,
        "w1",
        lambda told: heard.append(told.generation),
        open_spool=None if spool is None else open_spool,
    )
    reporter.set_interval(0.001)
    reporter.start(HELLO)
    return reporter, heard


def test_a_controller_that_is_away_changes_no_random_number_of_the_script() -> None:
    controller = Flaky(1.0)
    before = random.getstate()
    reporter, _ = start(controller)
    until(lambda: controller.asked > 5)
    reporter.stop_without_final_report(0.0)
    assert random.getstate() == before


@pytest.mark.parametrize("has_spool", [False, True])
@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_every_row_arrives_once_and_in_order(loss: float, has_spool: bool, tmp_path: Path) -> None:
    controller = Flaky(loss)
    reporter, _ = start(controller, tmp_path / "spool" if has_spool else None)
    for iteration in range(3000):
        reporter.record(row(iteration, generation=1 + iteration // 700))
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == list(range(3000))
    assert controller.notes[-1].finished == "target"
    for report in controller.notes:
        generations = {1 + iteration // 700 for iteration in report.steps.iteration}
        assert generations <= {report.progress.generation}
        assert len(report.steps) <= 1000


def test_news_is_told_until_it_is_heard() -> None:
    controller = Flaky(0.6)
    reporter, _ = start(controller)
    reporter.update_progress(replace(PROGRESS, generation=2), regrouped=Regrouped(2, 0.1, 0))
    reporter.close(replace(PROGRESS, generation=2), "target", timeout=LONG)
    assert Regrouped(2, 0.1, 0) in [report.regrouped for report in controller.notes]


def test_a_worker_that_moves_tells_nothing_new_before_its_hello() -> None:
    controller = Moved()
    reporter = controller.reporter = Reporter(controller, "w1", lambda _: None)
    reporter.set_interval(0.001)
    reporter.start(HELLO)
    until(lambda: len(controller.told) > 3)
    reporter.close(replace(PROGRESS, generation=0), "target", timeout=LONG)
    assert {address for address, generation in controller.told if generation == 0} == {
        "127.0.0.1:2"
    }


def test_only_newer_directives_are_passed_on() -> None:
    controller = Flaky(0.0)
    controller.directive = directive(1, 32, generation=5)
    reporter, heard = start(controller)
    until(lambda: heard == [5])
    controller.directive = directive(1, 32, generation=4)
    seen = len(controller.notes)
    until(lambda: len(controller.notes) > seen + 3)
    assert heard == [5]
    reporter.close(PROGRESS, "target", timeout=LONG)


def test_a_full_queue_gives_up_the_oldest_and_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUED_ROWS", 10)
    rows = Outbox("w1", None)
    for iteration in range(25):
        rows.put(row(iteration))
    rows.start()
    rows.expect(0)
    report, behind = rows.next_report()
    rows.close(is_delivered=False, timeout=LONG)
    assert report is not None
    assert (report.sequence, rows.dropped, behind) == (15, 15, 0)
    assert report.steps.iteration == tuple(range(15, 25))


@pytest.mark.parametrize("away", [partial(Flaky, 1.0), Hung], ids=["refuses", "hangs"])
def test_a_controller_that_is_away_costs_training_nothing(away: Callable[[], Flaky]) -> None:
    reporter, _ = start(away())
    began = time.thread_time()
    for iteration in range(2000):  # none of them comes back if one waits for a hung controller
        reporter.record(row(iteration))
        reporter.update_progress(PROGRESS)
    assert time.thread_time() - began < 2
    assert not reporter.close(PROGRESS, "target", timeout=0.05)


def test_while_the_controller_is_away_it_is_asked_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING_PAUSE", 60.0)
    monkeypatch.setattr(telemetry, "MAX_RETRY_PAUSE", 60.0)
    controller = Flaky(1.0)
    reporter, _ = start(controller)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        reporter.flush()
        reporter.record(row(1))
        time.sleep(0.001)
    until(lambda: controller.asked >= 2)
    assert controller.asked <= 13
    reporter.close(PROGRESS, "target", timeout=0.05)


def test_refused_rows_are_not_sent_for_ever() -> None:
    controller = Flaky(0.0)
    controller.refusal = 422
    reporter, _ = start(controller)
    reporter.record(row(1))
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == []


def test_rows_wait_for_a_controller_that_does_not_accept_the_worker() -> None:
    controller = Flaky(0.0)
    controller.refusal = 403
    reporter, _ = start(controller)
    reporter.record(row(1))
    until(lambda: controller.asked > 3)
    controller.refusal = None
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == [1]


def test_a_controller_that_forgot_the_worker_is_greeted_again() -> None:
    controller = Flaky(0.0)
    controller.refusal = 409
    reporter, _ = start(controller)
    reporter.record(row(1))
    until(lambda: controller.asked > 5)
    controller.refusal = None
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == [1]


def test_the_end_waits_for_no_answer_and_leaves_the_rest_to_be_delivered(tmp_path: Path) -> None:
    hung = Hung()
    reporter, _ = start(hung, tmp_path)
    for iteration in range(2500):
        reporter.record(row(iteration))
    assert not reporter.close(replace(PROGRESS, iteration=2500), "target", timeout=0.5)
    assert hung.asked == 1, "it is still waiting for its first answer"
    controller = Flaky(0.0)
    assert replay_spool(tmp_path, controller) == UploadResult(2500, is_complete=True)
    assert controller.stored == list(range(2500))
    assert controller.notes[-1].finished == "target"
    assert replay_spool(tmp_path, controller) == UploadResult(0, is_complete=True)


def test_the_next_process_of_a_worker_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    away, controller = Flaky(1.0), Flaky(0.3)
    first, _ = start(away, tmp_path)
    for iteration in range(1500):
        first.record(row(iteration))
    first.close(PROGRESS, "exhausted", timeout=0.2)
    second, _ = start(controller, tmp_path)
    for iteration in range(1500, 2000):
        second.record(row(iteration))
    assert second.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == list(range(2000))


@pytest.mark.parametrize("has_spool", [False, True])
def test_rows_are_numbered_from_what_the_controller_expects(
    has_spool: bool, tmp_path: Path
) -> None:
    """A process before may have sent rows that never reached this disk."""
    controller = Flaky(0.0)
    controller.next_sequence = 700
    controller.loss = 1.0
    reporter, _ = start(controller, tmp_path if has_spool else None)
    for iteration in range(1200):
        reporter.record(row(iteration))
    if has_spool:
        until(lambda: rows_on_disk(tmp_path) > 0)
    controller.loss = 0.0
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == list(range(1200))
    assert controller.next_sequence == 1900


def test_a_disk_that_refuses_costs_nothing_while_the_controller_answers(tmp_path: Path) -> None:
    place = tmp_path / "spool"
    place.write_text("in the way")
    controller = Flaky(0.2)
    reporter, _ = start(controller, place)
    for iteration in range(1500):
        reporter.record(row(iteration))
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == list(range(1500))


def test_another_workers_spool_is_left_alone(tmp_path: Path) -> None:
    Spool(tmp_path, SpoolHeader("job", "w2", "http://127.0.0.1:9", "127.0.0.1:2")).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    controller = Flaky(0.0)
    reporter, _ = start(controller, tmp_path)
    reporter.record(row(1))
    assert reporter.close(PROGRESS, "target", timeout=LONG)
    assert controller.stored == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == before
