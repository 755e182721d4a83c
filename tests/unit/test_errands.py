"""Errands are carried out in order, beside each other, and never hold up whoever sent them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from service.logs import SUBJECT, about
from service.reconciler.errands import Errands
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
    errands, done = Errands(), list[int]()
    errands.send("job_1", [partial(done.append, 1), partial(done.append, 2)])
    assert done == [1, 2]
    assert errands.is_over("job_1")
    with pytest.raises(ValueError, match="fell down"):
        errands.send("job_1", [fail, partial(done.append, 3)])
    assert done == [1, 2]


def test_one_that_hangs_delays_no_other(gate: threading.Event) -> None:
    errands, done = Errands(2), list[str]()
    errands.send("slow", [lambda: done.append("begun"), lambda: done.append(f"{gate.wait(60)}")])
    for number in range(5):
        errands.send(f"job_{number}", [partial(done.append, f"job_{number}")])
    until(lambda: all(errands.is_over(f"job_{number}") for number in range(5)))
    assert not errands.is_over("slow")
    gate.set()
    assert errands.is_over("slow", 10.0)
    assert sorted(done) == ["True", "begun", "job_0", "job_1", "job_2", "job_3", "job_4"]


def test_what_one_raised_is_told_once_and_ends_it() -> None:
    errands, done = Errands(1), list[int]()
    errands.send("job_1", [fail, partial(done.append, 1)])
    with pytest.raises(ValueError, match="fell down"):
        errands.is_over("job_1", 10.0)
    assert errands.is_over("job_1")
    assert not done


def test_a_job_has_one_at_a_time(gate: threading.Event) -> None:
    errands = Errands(1)
    errands.send("job_1", [lambda: gate.wait(60) and None])
    with pytest.raises(ValueError, match="job_1 is not over"):
        errands.send("job_1", [fail])


def test_whoever_waits_hears_of_the_end() -> None:
    errands, heard = Errands(1), threading.Event()
    errands.tell(heard.set)
    errands.send("job_1", [lambda: None])
    assert heard.wait(10.0)
    assert errands.is_over("job_1")


def test_one_says_of_its_logs_what_its_sender_would() -> None:
    errands, said = Errands(1), list[object]()
    with about(partial(dict, job="job_1")):
        errands.send("job_1", [lambda: said.append(SUBJECT.get()())])
    assert errands.is_over("job_1", 10.0)
    assert said == [{"job": "job_1"}]


def test_closing_waits_for_none_that_hangs_and_begins_no_other(gate: threading.Event) -> None:
    errands, done, begun = Errands(1), list[int](), threading.Event()
    errands.send("slow", [begun.set, lambda: gate.wait(60) and None, partial(done.append, 1)])
    errands.send("job_1", [partial(done.append, 2)])
    assert begun.wait(10.0)
    errands.close(0.05)
    assert not errands.is_over("slow")
    gate.set()
    assert errands.is_over("slow", 10.0)
    assert errands.is_over("job_1", 10.0)
    assert not done
