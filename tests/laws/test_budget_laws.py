"""Each share of a cap is told once, in rising order, however often and late a job is looked at."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from service.reconciler.actions import NoteBudget
from service.reconciler.budget import SHARES, next_share_at, note_budget, spent_share
from service.state.job_state import JobState
from tests.builders import NOW, document, job, snapshot, spec, vm

DAY = timedelta(days=1)


def spending(cap: Decimal) -> JobState:
    """Return a job with one machine that is paid for ever."""
    capped = spec(limits={**document()["limits"], "max_cost": f"{cap} USD"})
    machine = vm(1, price_per_hour=Decimal(1), prepaid_until=NOW + 99 * DAY)
    return snapshot(job=job(spec=capped), vms=(machine,))


@given(
    looks=st.lists(st.integers(1, 4000), min_size=1, max_size=40),
    caps=st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_each_share_of_a_cap_is_told_once_and_in_order(looks: list[int], caps: list[int]) -> None:
    """The cap is raised while the job runs; a tick may be late, and may be repeated."""
    told: list[int] = []
    seen, state = 0, spending(Decimal(caps[0]))
    for number, minutes in enumerate(looks):
        cap = Decimal(max(caps[: number * len(caps) // len(looks) + 1]))
        raised = spending(cap).job.spec
        if raised != state.job.spec:
            told = []  # of this cap
        state = replace(
            state, now=state.now + timedelta(minutes=minutes), job=replace(state.job, spec=raised)
        )
        for _ in range(2):
            action = note_budget(state)
            if action is None:
                continue
            if action.is_news:
                told.append(action.share)
                assert f"{action.share} %" in action.why
            state = replace(state, job=replace(state.job, budget_told=action.share))
        seen = spent_share(state.accrued, cap)
        assert note_budget(state) is None
        assert state.job.budget_told == seen
        assert told == sorted(set(told))
        assert set(told) <= set(SHARES)


@given(st.integers(1, 30), st.integers(0, 40))
def test_the_next_share_is_looked_for_just_before_it_is_spent(cap: int, hours: int) -> None:
    state = replace(spending(Decimal(cap)), now=NOW + timedelta(hours=hours))
    state = replace(
        state, job=replace(state.job, budget_told=spent_share(state.accrued, Decimal(cap)))
    )
    found = next_share_at(state, 2 * DAY)
    if found is None:
        assert note_budget(replace(state, now=state.now + 2 * DAY)) is None
        return
    assert note_budget(replace(state, now=found)) is None
    then = note_budget(replace(state, now=found + timedelta(seconds=1)))
    assert isinstance(then, NoteBudget)
    assert then.is_news
