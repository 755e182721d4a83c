"""Where to ask for machines, and what to say when no place gives one. Pure."""

from __future__ import annotations

from service.offers import Offer
from service.reconciler.timeouts import REFUSALS_TIMEOUT
from service.state.job_state import JobState

# A place is asked once in three minutes. With many places a job would still ask without end.
MAX_REFUSALS = 60
NO_ENTRY = (
    "the clouds file has no entry for this job any more: put it back and start the controller again"
)


def next_offer(state: JobState, machines: int) -> Offer | None:
    """Return the place to ask for so many machines now; None while all are short of them."""
    refused = [
        vm.intended_at
        for vm in state.vms
        if vm.refusal is not None
        and vm.attempted_at is not None
        and state.now - vm.intended_at < REFUSALS_TIMEOUT.limit
    ]
    if len(refused) + machines > max(MAX_REFUSALS, machines):
        return None
    return next(iter(state.offers), None)


def shortage_reason(state: JobState) -> str:
    """Say that no place gives a machine, in the same words for as long as that lasts."""
    if not state.places:
        return NO_ENTRY
    is_refused = any(each.kind == "credentials" for each in state.shortages)
    return refused_reason(state.places[0]) if is_refused else sold_out_reason(state.places[0])


def is_shortage_reason(state: JobState, reason: str) -> bool:
    """Whether a job was said to wait for a place. Asking again is no news; a machine is."""
    return bool(state.places) and reason in (
        sold_out_reason(state.places[0]),
        refused_reason(state.places[0]),
    )


def sold_out_reason(place: Offer) -> str:
    """Say that all zones of a cloud refuse."""
    return (
        f"{place.cloud} gives no {place.machine_type} in any of its zones: it is asked again every "
        "few minutes; read the events for what it said"
    )


def refused_reason(place: Offer) -> str:
    """Say that a cloud refuses the controller itself."""
    return (
        f"{place.cloud} does not let the controller launch machines: the events say what to "
        "correct; it is asked again every few minutes"
    )
