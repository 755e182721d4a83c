"""Calls are made in order, beside those for others, and never hold up whoever sent them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from service import meters
from service.logs import SUBJECT, about
from service.reconciler.courier import Courier
from tests.controller_double import until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging call waits for."""
    found = threading.Event()
    yield found
    found.set()


def fail() -> None:
    raise ValueError("the cloud fell down")


def test_without_threads_they_are_done_at_once_by_whoever_sends_them() -> None:
    courier, done = Courier(), list[int]()
    courier.send("job_1", [partial(done.append, 1), partial(done.append, 2)])
    assert done == [1, 2]
    assert courier.is_back("job_1")
    with pytest.raises(ValueError, match="fell down"):
        courier.send("job_1", [fail, partial(done.append, 3)])
    assert done == [1, 2]


def test_one_that_hangs_delays_no_other(gate: threading.Event) -> None:
    courier, done = Courier(2), list[str]()
    courier.send("slow", [lambda: done.append("begun"), lambda: done.append(f"{gate.wait(60)}")])
    for number in range(5):
        courier.send(f"job_{number}", [partial(done.append, f"job_{number}")])
    until(lambda: all(courier.is_back(f"job_{number}") for number in range(5)))
    assert not courier.is_back("slow")
    gate.set()
    assert courier.is_back("slow", 10.0)
    assert sorted(done) == ["True", "begun", "job_0", "job_1", "job_2", "job_3", "job_4"]


def test_what_one_raised_is_told_once_and_ends_it() -> None:
    courier, done = Courier(1), list[int]()
    courier.send("job_1", [fail, partial(done.append, 1)])
    with pytest.raises(ValueError, match="fell down"):
        courier.is_back("job_1", 10.0)
    assert courier.is_back("job_1")
    assert not done


def test_trips_take_turns_call_by_call(gate: threading.Event) -> None:
    courier, done = Courier(1), list[str]()
    courier.send("first", [lambda: gate.wait(60) and None])
    courier.send("long", [partial(done.append, f"long {n}") for n in range(3)])
    courier.send("short", [partial(done.append, "short")])
    gate.set()
    assert courier.is_back("long", 10.0)
    assert courier.is_back("short", 10.0)
    assert done == ["long 0", "short", "long 1", "long 2"]


def test_it_forgets_what_nobody_will_ask(gate: threading.Event) -> None:
    courier = Courier(2)
    courier.send("over", [fail])
    courier.send("slow", [lambda: gate.wait(60) and None])
    until(courier._sent["over"].end.done)
    courier.keep([])
    assert courier.is_back("over")
    assert not courier.is_back("slow")


def test_the_age_is_that_of_the_oldest_call(gate: threading.Event) -> None:
    courier = Courier(1, "tests")
    assert age() == 0
    courier.send("job_1", [lambda: None, lambda: gate.wait(60) and None])
    until(lambda: age() > 0.01)
    assert meters.TRIPS.labels("tests").collect()[0].samples[0].value == 1
    gate.set()
    assert courier.is_back("job_1", 10.0)
    until(lambda: age() == 0)


def age() -> float:
    return float(meters.CALL_AGE.labels("tests").collect()[0].samples[0].value)


def test_a_job_has_one_at_a_time(gate: threading.Event) -> None:
    courier = Courier(1)
    courier.send("job_1", [lambda: gate.wait(60) and None])
    with pytest.raises(ValueError, match="job_1 is not back"):
        courier.send("job_1", [fail])


def test_whoever_waits_hears_of_the_end() -> None:
    courier, heard = Courier(1), threading.Event()
    courier.tell(heard.set)
    courier.send("job_1", [lambda: None])
    assert heard.wait(10.0)
    assert courier.is_back("job_1")


def test_one_says_of_its_logs_what_its_sender_would() -> None:
    courier, said = Courier(1), list[object]()
    with about(partial(dict, job="job_1")):
        courier.send("job_1", [lambda: said.append(SUBJECT.get()())])
    assert courier.is_back("job_1", 10.0)
    assert said == [{"job": "job_1"}]


def test_closing_waits_for_none_that_hangs_and_begins_no_other(gate: threading.Event) -> None:
    courier, done, begun = Courier(1), list[int](), threading.Event()

    def hang() -> None:
        begun.set()
        assert gate.wait(60)

    courier.send("slow", [hang, partial(done.append, 1)])
    courier.send("job_1", [partial(done.append, 2)])
    assert begun.wait(10.0)
    courier.close(0.05)
    assert not courier.is_back("slow")
    gate.set()
    assert courier.is_back("slow", 10.0)
    assert courier.is_back("job_1", 10.0)
    assert not done
