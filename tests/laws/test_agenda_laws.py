"""Until its next deadline, time alone changes nothing in what a job is to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.schemas import JobPhase
from service.reconciler.actions import Blocked, Idle
from service.reconciler.agenda import Agenda, is_moving, next_deadline, time_to_rest
from service.reconciler.endings import max_launches
from service.reconciler.plan import plan
from service.state.job_state import JobState
from tests.builders import job, spec
from tests.laws.test_liveness_laws import FOR_ONE, KINDS, LIMITS, WHOLE, Fate, World
from tests.unit.test_plan import CASES

FAR = timedelta(days=2)
MOST_DEADLINES = 30
SHORT = {**LIMITS, "max_time": "90m"}
POOR = {**LIMITS, "max_cost": "9 USD"}


@given(
    fates=st.lists(st.sampled_from(Fate), min_size=2, max_size=6),
    is_measured=st.booleans(),
    kind=KINDS,
    limits=st.sampled_from([LIMITS, FOR_ONE, SHORT, POOR]),
    chosen=st.sampled_from([None, ClusterConfig(1, 128), ClusterConfig(2, 128)]),
    hidden=st.lists(st.booleans(), max_size=12),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_no_plan_changes_before_the_next_deadline(
    fates: list[Fate],
    is_measured: bool,
    kind: dict[str, object],
    limits: dict[str, object],
    chosen: ClusterConfig | None,
    hidden: list[bool],
    shares: list[float],
) -> None:
    made = job(spec=spec(limits=limits, **kind), phase=JobPhase.PENDING, chosen=chosen)
    world = World(fates, is_measured, made, hidden)
    launches = max_launches(world.see()) + 2
    while not world.is_over and world.now - world.see().now < launches * WHOLE:
        world.act()
        check_rest(world.see(), shares)
        world.pass_time()


def at_rest(state: JobState) -> JobState | None:
    """Return a state that has said what it waits for, or None if there is something to do."""
    action = plan(state)
    if isinstance(action, Blocked):
        state = replace(state, job=replace(state.job, waiting=action.why))
        action = plan(state)
    return state if isinstance(action, Idle) else None


RESTING = {name: rest for name, case in CASES.items() if (rest := at_rest(case[0])) is not None}


@pytest.mark.parametrize("name", RESTING)
def test_no_state_of_the_truth_table_changes_before_its_next_deadline(name: str) -> None:
    state = RESTING[name]
    check_rest(state, [place / 50 for place in range(50)])
    check_rest(replace(state, is_hidden=True), [0.5])


def check_rest(state: JobState, shares: Sequence[float]) -> None:
    """Plan again at moments up to each deadline, while nothing else changes."""
    action = plan(state)
    assert isinstance(action, Idle)
    if is_moving(state):
        assert time_to_rest(state, action) == timedelta(0)
    for _ in range(MOST_DEADLINES):
        end = next_deadline(state)
        last = (end or state.now + FAR) - state.now - timedelta(milliseconds=2)
        for share in (*shares, 1.0):
            later = replace(state, now=state.now + max(last * share, timedelta(0)))
            assert isinstance(plan(later), Idle), (later.now - state.now, action, plan(later))
        if end is None:
            return
        state = replace(state, now=end)
        if not isinstance(plan(state), Idle):
            return


jobs = st.sampled_from(["a", "b", "c", "d"])
steps = st.one_of(
    st.tuples(st.just("note"), jobs),
    st.tuples(st.just("rest"), jobs, st.floats(0, 20)),
    st.tuples(st.just("keep"), st.sets(jobs)),
    st.tuples(st.just("wait"), st.floats(0, 5)),
    st.tuples(st.just("take")),
    st.tuples(st.just("note all")),
)


NEWS_WHILE_RESTING = [
    ("keep", {"a"}),
    ("rest", "a", 9.0),
    ("take",),
    ("note", "a"),
    ("take",),
    ("take",),
]


@given(st.lists(steps, max_size=40))
@example(NEWS_WHILE_RESTING)
def test_each_job_with_news_or_past_its_time_is_due_until_it_rests(
    script: list[tuple[object, ...]],
) -> None:
    agenda, now = Agenda(), 0.0
    until: dict[str, float] = {}
    news: set[str] = set()
    for step in script:
        match step:
            case ("note", str(name)):
                agenda.note(name)
                news.add(name)  # also of a job that the agenda does not know yet
            case ("note all",):
                agenda.note_all()
                news |= until.keys()
            case ("rest", str(name), float(pause)):
                agenda.rest(name, now + pause)
                if name in until:
                    until[name] = now + pause
            case ("keep", set(names)):
                agenda.keep(names)
                news = (news | (names - until.keys())) & names
                until = {name: until.get(name, 0.0) for name in names}
            case ("wait", float(pause)):
                now += pause
            case ("take",):
                due = agenda.take_due(now)
                until |= dict.fromkeys(news, 0.0)
                expected = {name for name in until if until[name] <= now}
                assert len(due) == len(set(due))
                assert set(due) == expected
                # A pass may fail before it comes to a job: until it rests it stays due.
                news.clear()
