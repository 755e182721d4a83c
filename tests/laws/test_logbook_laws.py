"""What a script logs is told as its last finite value, and what was not finite beside it."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from scavenger.protocol import NotFinite, StopAtMetric
from worker_agent.training.recorder import StepRecorder

NAMES = ("loss", "accuracy")
VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)
STEP = st.dictionaries(st.sampled_from(NAMES), st.tuples(VALUES, st.booleans()))


def told(values: list[tuple[int, float]]) -> tuple[float | None, NotFinite | None]:
    """Say what should be known of a series: its values as they were read, with their iterations."""
    finite = [value for _, value in values if math.isfinite(value)]
    odd = [(at, value) for at, value in values if not math.isfinite(value)]
    if not odd:
        return (finite[-1] if finite else None), None
    first, value = odd[0]
    word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    whole = [place for place, (_, value) in enumerate(values) if math.isfinite(value)]
    lasting = values[whole[-1] + 1 if whole else 0 :]
    since = lasting[0][0] if lasting else None
    return (finite[-1] if finite else None), NotFinite(word, first, since)


@given(st.lists(STEP, max_size=12))
def test_a_logbook_knows_the_last_finite_value_and_since_when_there_is_none(
    steps: list[dict[str, tuple[float, bool]]],
) -> None:
    logbook, logged = StepRecorder(), {name: [] for name in NAMES}
    for iteration, step in enumerate(steps, 1):
        logbook.log(
            {name: torch.tensor(value) if late else value for name, (value, late) in step.items()},
            iteration,
        )
        for name, (value, is_tensor) in step.items():
            logged[name].append((iteration, value, is_tensor))
        logbook.read_tensors()
        for name, values in logged.items():
            assert logbook.finite_metrics().get(name) == told(known(values, iteration))[0]
    logbook.read_tensors()
    for name, values in logged.items():
        last, odd = told([(at, value) for at, value, _ in values])
        assert logbook.finite_metrics().get(name) == last
        assert logbook.not_finite.get(name) == odd


def known(values: list[tuple[int, float, bool]], now: int) -> list[tuple[int, float]]:
    """Return what has been read: a tensor one iteration late."""
    return [(at, value) for at, value, is_tensor in values if at < now or not is_tensor]


@given(VALUES, st.sampled_from(["at_least", "at_most"]), st.floats(-10, 10))
def test_what_is_not_finite_reaches_no_goal(value: float, direction: Any, goal: float) -> None:
    stop = StopAtMetric("accuracy", goal, direction, 9.0)
    assert not stop.reached(value) or math.isfinite(value)
