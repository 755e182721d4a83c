"""How much of its cap a job has spent: told at each share once, before the cap ends the job."""

from __future__ import annotations

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


def next_share_at(state: JobState, horizon: timedelta, precision: timedelta) -> datetime | None:
    """Return a moment shortly before more of the cap's shares are spent than now.

    None where that is later than the horizon.
    """
    cap = state.job.spec.limits.max_cost
    low, high = state.now, state.now + horizon
    if cap is None:
        return None
    now = spent_share(state.accrued, cap)

    def is_passed(moment: datetime) -> bool:
        return spent_share(ledger.accrued(state.vms, moment), cap) > now

    if not is_passed(high):
        return None
    # What machines cost never falls, so the moment is found by halving.
    while high - low > precision:
        middle = low + (high - low) / 2
        low, high = (low, middle) if is_passed(middle) else (middle, high)
    return low
