"""How much of its cap a job has spent: told at each share once, before the cap ends the job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

from scavenger.money import format_dollars
from service import ledger
from service.reconciler.actions import NoteBudget
from service.state.job_state import JobState

SHARES = (50, 80, 95)  # percent of max_cost; its end is told by the event `capped`


def note_budget(state: JobState) -> NoteBudget | None:
    """Tell that the next share of the cap is spent.

    Of shares that are passed at once only the last is told. A cap that is raised makes shares
    unspent again: they are told again.
    """
    cap, told = state.job.spec.limits.max_cost, state.job.budget_told
    share = 0 if cap is None else spent_share(state.accrued, cap)
    if share == told:
        return None
    if cap is None or share < told:
        return NoteBudget(share, "the cap was raised")
    spent = f"{format_dollars(float(state.accrued))} of {format_dollars(float(cap))}"
    return NoteBudget(share, f"{share} % of max_cost is spent: {spent}", is_news=True)


def spent_share(spent: Decimal, cap: Decimal) -> int:
    """Return the largest of SHARES that is spent; 0 if none is."""
    return max((share for share in SHARES if spent * 100 >= cap * share), default=0)


# What machines cost never falls, so a moment at which money decides is found by halving.
HORIZON = timedelta(minutes=10)
PRECISION = timedelta(seconds=1)


def moment_before(
    now: datetime, is_passed: Callable[[datetime], bool], horizon: timedelta = HORIZON
) -> datetime | None:
    """Return a moment shortly before a condition holds that is not lost again.

    The earlier end: a look too early costs a tick, one too late costs money beyond the cap.

    Args:
        now: The moment; the condition need not be false then.
        is_passed: The condition.
        horizon: How far ahead to look.

    Returns:
        The moment; None where it is later than that.
    """
    low, high = now, now + horizon
    if not is_passed(high):
        return None
    while high - low > PRECISION:
        middle = low + (high - low) / 2
        low, high = (low, middle) if is_passed(middle) else (middle, high)
    return low


def next_share_at(state: JobState, horizon: timedelta = HORIZON) -> datetime | None:
    """Return a moment shortly before more of the cap's shares are spent; None if none is soon."""
    cap = state.job.spec.limits.max_cost
    if cap is None:
        return None
    now = spent_share(state.accrued, cap)

    def is_passed(moment: datetime) -> bool:
        return spent_share(ledger.accrued(state.vms, moment), cap) > now

    return moment_before(state.now, is_passed, horizon)
