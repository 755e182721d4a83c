"""One clock for all controllers: they use the time of the database, not their own."""

from __future__ import annotations

import ast
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import service
from service.auth.tokens import ControllerKeys
from service.db.clock import DatabaseClock
from tests.builders import NOW

ANSWERS = st.lists(st.tuples(st.floats(0, 600), st.floats(0, 2), st.floats(0, 2)), min_size=1)


class Tape:
    """Seconds that pass only when a test lets them, counted from any moment."""

    def __init__(self, start: float) -> None:
        self.start, self.passed = start, 0.0

    def __call__(self) -> float:
        return self.start + self.passed


@given(start=st.floats(-1e6, 1e6), answers=ANSWERS, later=st.floats(0, 1e5))
def test_the_time_is_true_as_far_as_the_quickest_answer_can_tell(
    start: float, answers: list[tuple[float, float, float]], later: float
) -> None:
    tape = Tape(start)
    clock = DatabaseClock(tape)
    for pause, there, back in answers:
        tape.passed += pause
        clock.compare(lambda there=there, back=back: answer(tape, there, back))  # type: ignore[misc]
    tape.passed += later
    truth = NOW + timedelta(seconds=tape.passed)
    quickest = min(there + back for _, there, back in answers)
    assert abs(clock.now() - truth) <= timedelta(seconds=quickest, milliseconds=1)


def answer(tape: Tape, there: float, back: float) -> datetime:
    """Tell the time when the question arrives, so many seconds after it was asked."""
    tape.passed += there
    told = NOW + timedelta(seconds=tape.passed)
    tape.passed += back
    return told


def test_what_is_known_better_already_is_kept() -> None:
    tape = Tape(0.0)
    clock = DatabaseClock(tape)
    clock.compare(lambda: answer(tape, 0.0, 0.0))
    before = clock.now() - timedelta(seconds=tape())
    clock.compare(lambda: answer(tape, 0.0, 3.0))
    assert clock.now() - timedelta(seconds=tape()) == before


def test_a_database_whose_clock_was_set_is_believed() -> None:
    tape = Tape(0.0)
    clock = DatabaseClock(tape)
    clock.compare(lambda: NOW)
    clock.compare(lambda: NOW + timedelta(minutes=10))
    assert clock.now() == NOW + timedelta(minutes=10)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_machine_is_known_however_wrong_the_clock_of_this_computer(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, now = ControllerKeys("token", "s" * 48), time.time()
    token = keys.issue_worker_token("job_1-w1", now=now)
    monkeypatch.setattr(time, "time", lambda: now + hours * 3700)
    assert keys.read_worker_token(token, now + 3599) is not None
    assert keys.read_worker_token(token, now + 3600) is None


def test_nothing_is_decided_by_the_clock_of_this_computer() -> None:
    """Decisions use the database's clock; only what people read, and signatures, have another."""
    root = Path(service.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if reads_calendar(path)}
    assert found == {
        "clouds/local.py",
        "clouds/doctor.py",
        "clouds/google_store.py",
        "auth/tokens.py",
        "db/clock.py",
    }


def reads_calendar(path: Path) -> bool:
    """Whether a module asks this computer for the time of day."""
    called = (
        node.func
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    names = {f"{call.value.id}.{call.attr}" for call in called if isinstance(call.value, ast.Name)}
    return bool(names & {"datetime.now", "datetime.utcnow", "date.today", "time.time"})
