"""Calls are made in order, beside those for others, and never hold up their sender."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from service.clouds.executor import CloudExecutor
from service.observability import metrics
from service.observability.logs import LOG_CONTEXT, log_context
from tests.controller_double import LONG, until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging call waits for."""
    found = threading.Event()
    yield found
    found.set()


def fail() -> None:
    raise ValueError("the cloud fell down")


def test_without_threads_they_are_done_at_once_by_their_sender() -> None:
    executor, done = CloudExecutor(), list[int]()
    executor.submit("job_1", [partial(done.append, 1), partial(done.append, 2)])
    assert done == [1, 2]
    assert executor.is_finished("job_1")
    with pytest.raises(ValueError, match="fell down"):
        executor.submit("job_1", [fail, partial(done.append, 3)])
    assert done == [1, 2]


def test_one_that_hangs_delays_no_other(gate: threading.Event) -> None:
    executor, done = CloudExecutor(2), list[str]()
    executor.submit(
        "slow", [lambda: done.append("begun"), lambda: done.append(f"{gate.wait(LONG)}")]
    )
    for number in range(5):
        executor.submit(f"job_{number}", [partial(done.append, f"job_{number}")])
    until(lambda: all(executor.is_finished(f"job_{number}") for number in range(5)))
    assert not executor.is_finished("slow")
    gate.set()
    assert executor.is_finished("slow", 10.0)
    assert sorted(done) == ["True", "begun", "job_0", "job_1", "job_2", "job_3", "job_4"]


def test_what_one_raised_is_told_once_and_ends_it() -> None:
    executor, done = CloudExecutor(1), list[int]()
    executor.submit("job_1", [fail, partial(done.append, 1)])
    with pytest.raises(ValueError, match="fell down"):
        executor.is_finished("job_1", 10.0)
    assert executor.is_finished("job_1")
    assert not done


def test_trips_take_turns_call_by_call(gate: threading.Event) -> None:
    executor, done = CloudExecutor(1), list[str]()
    executor.submit("first", [lambda: gate.wait(LONG) and None])
    executor.submit("long", [partial(done.append, f"long {n}") for n in range(3)])
    executor.submit("short", [partial(done.append, "short")])
    gate.set()
    assert executor.is_finished("long", 10.0)
    assert executor.is_finished("short", 10.0)
    assert done == ["long 0", "short", "long 1", "long 2"]


def test_it_forgets_what_will_not_be_asked(gate: threading.Event) -> None:
    executor = CloudExecutor(2)
    executor.submit("over", [fail])
    executor.submit("slow", [lambda: gate.wait(LONG) and None])
    until(executor._sent["over"].end.done)
    executor.forget_all_but([])
    assert executor.is_finished("over")
    assert not executor.is_finished("slow")


def test_the_age_is_that_of_the_oldest_call(gate: threading.Event) -> None:
    executor = CloudExecutor(1, "tests")
    assert age() == 0
    executor.submit("job_1", [lambda: None, lambda: gate.wait(LONG) and None])
    until(lambda: age() > 0.01)
    assert metrics.PENDING_CLOUD_BATCHES.labels("tests").collect()[0].samples[0].value == 1
    gate.set()
    assert executor.is_finished("job_1", 10.0)
    until(lambda: age() == 0)


def age() -> float:
    return float(metrics.CLOUD_CALL_AGE.labels("tests").collect()[0].samples[0].value)


def test_a_job_has_one_at_a_time(gate: threading.Event) -> None:
    executor = CloudExecutor(1)
    executor.submit("job_1", [lambda: gate.wait(LONG) and None])
    with pytest.raises(ValueError, match="job_1 has an unfinished batch"):
        executor.submit("job_1", [fail])


def test_a_waiter_hears_of_the_end() -> None:
    executor, heard = CloudExecutor(1), threading.Event()
    executor.call_when_done(lambda _: heard.set())
    executor.submit("job_1", [lambda: None])
    assert heard.wait(LONG)
    assert executor.is_finished("job_1")


def test_one_says_of_its_logs_what_its_sender_would() -> None:
    executor, said = CloudExecutor(1), list[object]()
    with log_context(partial(dict, job="job_1")):
        executor.submit("job_1", [lambda: said.append(LOG_CONTEXT.get()())])
    assert executor.is_finished("job_1", 10.0)
    assert said == [{"job": "job_1"}]


def test_closing_waits_for_none_that_hangs_and_begins_no_other(gate: threading.Event) -> None:
    executor, done, begun = CloudExecutor(1), list[int](), threading.Event()

    def hang() -> None:
        begun.set()
        assert gate.wait(LONG)

    executor.submit("slow", [hang, partial(done.append, 1)])
    executor.submit("job_1", [partial(done.append, 2)])
    assert begun.wait(LONG)
    executor.close(0.05)
    assert not executor.is_finished("slow")
    gate.set()
    assert executor.is_finished("slow", 10.0)
    assert executor.is_finished("job_1", 10.0)
    assert not done
