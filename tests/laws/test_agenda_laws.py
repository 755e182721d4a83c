"""Until its next deadline, time alone changes nothing in what a job is to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.schemas.jobs import JobPhase
from service.reconciler.actions import Blocked, Idle, NoteBudget, NoteFramework
from service.reconciler.agenda import Agenda, needs_polling, next_deadline, time_to_rest
from service.reconciler.plan import plan
from service.state.capacity import max_launches
from service.state.job_state import JobState
from tests.builders import job, spec
from tests.laws.test_liveness_laws import (
    FOR_ONE,
    FRAMEWORKS,
    KINDS,
    LIMITS,
    WHOLE,
    Fate,
    World,
)
from tests.unit.test_plan import CASES

FAR = timedelta(days=2)
MOST_DEADLINES = 30
SHORT = {**LIMITS, "max_time": "90m"}
POOR = {**LIMITS, "max_cost": "9 USD"}


@settings(max_examples=max(settings().max_examples // 3, 1))  # each plays a whole job
@given(
    fates=st.lists(st.sampled_from(Fate), min_size=2, max_size=6),
    is_measured=st.booleans(),
    kind=KINDS,
    limits=st.sampled_from([LIMITS, FOR_ONE, SHORT, POOR]),
    chosen=st.sampled_from([None, ClusterConfig(1, 128), ClusterConfig(2, 128)]),
    hidden=st.lists(st.booleans(), max_size=12),
    share=st.floats(0, 1),
    framework=st.sampled_from(FRAMEWORKS),
)
def test_no_plan_changes_before_the_next_deadline(
    fates: list[Fate],
    is_measured: bool,
    kind: dict[str, object],
    limits: dict[str, object],
    chosen: ClusterConfig | None,
    hidden: list[bool],
    share: float,
    framework: str,
) -> None:
    made = job(spec=spec(limits=limits, **kind), phase=JobPhase.PENDING, chosen=chosen)
    world = World(fates, is_measured, made, hidden, framework)
    launches = max_launches(world.see()) + 2
    while not world.is_over and world.now - world.see().now < launches * WHOLE:
        world.act()
        check_rest(world.see(), [share])
        world.pass_time()


def at_rest(state: JobState) -> JobState | None:
    """Return a state that has said what it waits for, or None if there is something to do."""
    action = plan(state)
    if isinstance(action, NoteBudget):
        state = replace(state, job=replace(state.job, budget_told=action.share))
        action = plan(state)
    if isinstance(action, NoteFramework):
        return None
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
    if needs_polling(state):
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
    st.tuples(st.just("begin"), jobs),
    st.tuples(st.just("rest"), jobs, st.floats(0, 20)),
    st.tuples(st.just("keep"), st.sets(jobs)),
    st.tuples(st.just("wait"), st.floats(0, 5)),
    st.tuples(st.just("note all")),
)


@given(st.lists(steps, max_size=40))
@example([("keep", {"a"}), ("begin", "a"), ("note", "a"), ("rest", "a", 9.0)])
@example([("keep", {"a"}), ("begin", "a")])
@example([("note", "a"), ("keep", set())])
def test_each_job_with_news_or_past_its_time_is_due_until_it_rests(
    script: list[tuple[object, ...]],
) -> None:
    now = 0.0
    agenda = Agenda(lambda: now)
    until: dict[str, float] = {}
    news: set[str] = set()
    for step in script:
        match step:
            case ("note", str(name)):
                agenda.note(name)
                news.add(name)
            case ("note all",):
                agenda.note_all()
                until = dict.fromkeys(until, now)
            case ("begin", str(name)):
                agenda.begin(name)
                news.discard(name)
                until[name] = now
            case ("rest", str(name), float(pause)) if name in until:
                agenda.begin(name)  # the loop never lets a job rest that it did not look at
                agenda.note(name)
                agenda.rest(name, now + pause)
                news.add(name)
                until[name] = now + pause
            case ("keep", set(names)):
                agenda.keep(names)
                until = {name: until.get(name, now) for name in names}
            case ("wait", float(pause)):
                now += pause
        due = agenda.due()
        assert len(due) == len(set(due))
        assert set(due) == news | {name for name, at in until.items() if at <= now}


@given(
    count=st.integers(1, 20),
    served=st.integers(1, 5),
    noted=st.lists(st.lists(st.integers(0, 19), max_size=20), min_size=10, max_size=60),
    rests=st.lists(st.integers(0, 6), min_size=1, max_size=10),
)
def test_a_pass_that_serves_few_jobs_starves_none(
    count: int, served: int, noted: list[list[int]], rests: list[int]
) -> None:
    time, waiting = 0, dict[str, int]()
    agenda = Agenda(lambda: time)
    agenda.keep([f"job_{number}" for number in range(count)])
    for time, news in enumerate(noted):
        for number in news:
            agenda.note(f"job_{number % count}")
        due = agenda.due()
        waiting = {name: waiting.get(name, 0) + 1 for name in due}
        assert max(waiting.values(), default=0) <= 2 * math.ceil(count / served) + 2
        for place, name in enumerate(due[:served]):
            agenda.begin(name)
            agenda.rest(name, time + rests[(time + place) % len(rests)])
            del waiting[name]
