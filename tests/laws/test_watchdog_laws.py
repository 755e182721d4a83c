"""Laws of the watchdog: it hits a process that hangs and no other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from statistics import median

from hypothesis import example, given
from hypothesis import strategies as st

from worker_agent.heartbeat import HeartbeatReading, TrainingPhase
from worker_agent.supervisor.watchdog import Watchdog

PATIENCE = 300.0
LOOK = 1.0
step_times = st.lists(st.floats(0.5, 40.0), min_size=1, max_size=30)
phases = st.lists(st.sampled_from(TrainingPhase), min_size=1, max_size=60)


def looks(steps: list[float], then: float = 0.0) -> Iterator[tuple[HeartbeatReading, float]]:
    """Look at a process whose iterations take so long, and that does nothing more afterwards."""
    now = 0.0
    ends = list(accumulate(steps))
    while now <= ends[-1] + then:
        yield HeartbeatReading(1, TrainingPhase.TRAINING, bisect_right(ends, now)), now
        now += LOOK


@given(step_times)
def test_steps_shorter_than_the_patience_raise_no_alarm(steps: list[float]) -> None:
    watchdog = Watchdog(PATIENCE, 0.0)
    assert all(watchdog.look(*look) is None for look in looks(steps))


@given(step_times)
@example([0.5] * 9 + [32.1] * 8)  # most iterations were short, most looks saw a long one
def test_who_hangs_is_found_between_the_patience_and_three_times_the_longest_or_ten_medians(
    steps: list[float],
) -> None:
    watchdog = Watchdog(PATIENCE, 0.0)
    most = max(PATIENCE, 10 * median(steps), 3 * max(steps))
    found = [s for look in looks(steps, most + 60) if (s := watchdog.look(*look)) is not None]
    assert found, "it hangs"
    assert PATIENCE < found[0] <= most + 11 * LOOK, "steps are timed as exactly as it looks"


@given(st.floats(1.0, 3000.0))
def test_a_pause_as_long_as_one_before_raises_no_alarm(pause: float) -> None:
    watchdog = Watchdog(0.5, 0.0)
    watchdog.look(HeartbeatReading(1, TrainingPhase.TRAINING, 1), 0.0)
    watchdog.look(HeartbeatReading(1, TrainingPhase.TRAINING, 2), pause)
    assert watchdog.look(HeartbeatReading(1, TrainingPhase.TRAINING, 2), pause + 2 * pause) is None


@given(step_times, st.floats(1.01, 1.9))
def test_who_waits_for_one_that_hangs_is_left_alone_until_that_one_was_ended(
    steps: list[float], later: float
) -> None:
    hung, waiting = Watchdog(PATIENCE, 0.0), Watchdog(PATIENCE, 0.0)
    ended_at = next(
        now for reading, now in looks(steps, 600.0) if hung.look(reading, now) is not None
    )
    for reading, now in looks(steps, 3000.0):
        found = waiting.look(replace(reading, waits=int(now)), now)
        assert now > later * (ended_at - sum(steps)) + sum(steps) or found is None
    assert found is not None, "but not for ever: they may wait for one another"


@given(step_times)
def test_who_computes_all_the_time_is_given_longer_but_not_for_ever(steps: list[float]) -> None:
    watchdog = Watchdog(PATIENCE, 0.0)
    most = max(PATIENCE, 10 * median(steps), 3 * max(steps))
    seen = looks(steps, 6 * most + 600)
    found = [s for reading, now in seen if (s := watchdog.look(reading, now, now)) is not None]
    assert 6 * PATIENCE < found[0] <= 6 * (most + 11 * LOOK)


@given(phases, st.floats(1.0, 1e6))
def test_only_who_has_trained_for_two_looks_and_finished_an_iteration_can_be_stuck(
    seen: list[TrainingPhase], apart: float
) -> None:
    watchdog = Watchdog(0.1, 0.0)
    for number, phase in enumerate(seen):
        assert watchdog.look(HeartbeatReading(1, phase, 7), number * apart) is None
