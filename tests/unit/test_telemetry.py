"""The reporter over a controller that is often away, slow to learn, or forgets to answer."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

from scavenger.protocol import Hello, Progress, Regrouped, Reply, StepReport
from tests.builders import directive
from worker_agent import telemetry
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.telemetry import Reporter, Row


class Flaky:
    """Obeys the contract of the controller, and loses requests and answers at random."""

    def __init__(self, loss: float, seed: int = 1) -> None:
        self.loss, self.random = loss, random.Random(seed)
        self.stored: list[int] = []
        self.notes: list[StepReport] = []
        self.directive = directive(1, 32)
        self.is_refusing = False

    def hello(self, hello: Hello) -> Reply:
        self._lose()
        return Reply(None, 0)

    def report(self, report: StepReport) -> Reply:
        self._lose()
        if self.is_refusing:
            raise ControllerRefused(422, "no")
        assert report.sequence <= len(self.stored), "a gap"
        self.stored += report.steps.iteration[len(self.stored) - report.sequence :]
        self.notes.append(report)
        self._lose()
        return Reply(self.directive, len(self.stored))

    def _lose(self) -> None:
        if self.random.random() < self.loss:
            raise ControllerUnreachable("lost")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALM", "PROBING", "AWAITING"):
        monkeypatch.setattr(telemetry, name, 0.001)


def row(iteration: int, generation: int = 1) -> Row:
    return Row(generation, iteration, 2, 1.0, 1.0, 0.1, 0.1, 0.2, None, 0.1, 0.1)


def start(controller: Flaky) -> tuple[Reporter, list[int]]:
    heard: list[int] = []
    reporter = Reporter(controller, "w1", lambda told: heard.append(told.generation))
    reporter.pace(0.001)
    reporter.start(Hello("w1", "127.0.0.1:1"))
    return reporter, heard


PROGRESS = Progress(1, 0, 0, 0.0, {})


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_every_row_arrives_once_and_in_order(loss: float) -> None:
    controller = Flaky(loss)
    reporter, _ = start(controller)
    for iteration in range(3000):
        reporter.record(row(iteration, generation=1 + iteration // 700))
    reporter.close(PROGRESS, "target", timeout=20)
    assert not reporter.thread.is_alive()
    assert controller.stored == list(range(3000))
    assert controller.notes[-1].finished == "target"
    for report in controller.notes:
        generations = {1 + iteration // 700 for iteration in report.steps.iteration}
        assert generations <= {report.progress.generation}


def test_news_is_told_until_it_is_heard() -> None:
    controller = Flaky(0.6)
    reporter, _ = start(controller)
    reporter.tell(replace(PROGRESS, generation=2), regrouped=Regrouped(2, 0.1, 0))
    reporter.close(replace(PROGRESS, generation=2), "target", timeout=20)
    assert Regrouped(2, 0.1, 0) in [report.regrouped for report in controller.notes]


def test_only_newer_directives_are_passed_on() -> None:
    controller = Flaky(0.0)
    controller.directive = directive(1, 32, generation=5)
    reporter, heard = start(controller)
    wait_until(lambda: heard == [5])
    controller.directive = directive(1, 32, generation=4)
    seen = len(controller.notes)
    wait_until(lambda: len(controller.notes) > seen + 3)
    assert heard == [5]
    reporter.close(PROGRESS, "target", timeout=5)


def test_a_full_queue_drops_the_oldest_and_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "QUEUE_ROWS", 10)
    reporter = Reporter(Flaky(1.0), "w1", lambda _: None)
    for iteration in range(25):
        reporter.record(row(iteration))
    assert reporter.sequence == 15
    assert [kept.iteration for kept in reporter.rows] == list(range(15, 25))


def test_a_controller_that_is_away_costs_training_nothing() -> None:
    reporter, _ = start(Flaky(1.0))
    began = time.perf_counter()
    for iteration in range(2000):
        reporter.record(row(iteration))
        reporter.tell(PROGRESS)
    assert time.perf_counter() - began < 2
    undelivered = reporter.close(PROGRESS, "target", timeout=0.05)
    assert undelivered is not None
    assert undelivered.finished == "target"
    assert reporter.thread.daemon
    assert threading.main_thread().is_alive()


def test_refused_rows_are_not_sent_for_ever() -> None:
    controller = Flaky(0.0)
    controller.is_refusing = True
    reporter, _ = start(controller)
    reporter.record(row(1))
    wait_until(lambda: not reporter.rows)
    reporter.close(PROGRESS, "target", timeout=5)
    assert not reporter.thread.is_alive()


def wait_until(condition: object, timeout: float = 10) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
