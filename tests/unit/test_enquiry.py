"""Enquiry: asked once for all who wait, and again when its answer is old."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from service.api.health import SingleFlight
from tests.controller_double import LONG


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def test_an_answer_is_kept_for_a_while_and_no_longer() -> None:
    now, numbers = 0.0, count(1)
    enquiry = SingleFlight(lambda: next(numbers), ttl=5.0, clock=lambda: now)
    assert [enquiry.answer(9), enquiry.answer(9)] == [1, 1]
    now = 4.9
    assert enquiry.answer(9) == 1
    now = 5.0
    assert enquiry.answer(9) == 2


def test_what_went_wrong_is_raised_for_all_who_ask_meanwhile() -> None:
    now, numbers = 0.0, count(1)

    def fail() -> int:
        raise OSError(f"away {next(numbers)}")

    enquiry = SingleFlight(fail, ttl=5.0, clock=lambda: now)
    for _ in range(2):
        with pytest.raises(OSError, match="away 1"):
            enquiry.answer(9)
    now = 6.0
    with pytest.raises(OSError, match="away 2"):
        enquiry.answer(9)


def test_a_question_that_hangs_is_asked_by_one_thread_only(gate: threading.Event) -> None:
    asked: list[float] = []
    now = 0.0

    def hang() -> str:
        asked.append(now)
        gate.wait(LONG)
        return "late"

    enquiry = SingleFlight(hang, ttl=1.0, clock=lambda: now)
    for later in (0.0, 10.0, 20.0):
        now = later
        with pytest.raises(TimeoutError):
            enquiry.answer(0.01)
    gate.set()
    assert enquiry.answer(60) == "late"
    assert asked == [0.0]
