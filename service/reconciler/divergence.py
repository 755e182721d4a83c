"""Divergence: whether the loss or the target's metric is NaN or infinite, and since when.

Training is never stopped for it, since only its user can tell whether it may recover. It is told
when it happens first and as long as it lasts, and comes first in the reason a job ends with.
"""

from __future__ import annotations

from dataclasses import replace

from scavenger.protocol import NotFinite, StopAtMetric, StopRule
from scavenger.view import Phase
from service.db.workers import Worker
from service.reconciler.action import Finish
from service.reconciler.snapshot import Snapshot

LOSS = "loss"
REMEDY = "look at the data of that iteration, lower the learning rate, or clip gradients"


def watched(stop: StopRule) -> tuple[str, ...]:
    """Return the series that tell whether training goes well: the loss, and the target's metric."""
    match stop:
        case StopAtMetric(metric=metric) if metric != LOSS:
            return (LOSS, metric)
        case _:
            return (LOSS,)


def in_words(series: str, worker: str, found: NotFinite) -> str:
    """Say what a series became, in which iteration, and on which worker."""
    return f"{series} became {found.value} at iteration {found.first} on {worker}"


def divergence(snapshot: Snapshot) -> str | None:
    """Say what is not finite by now, and since when; None when all is well.

    The leader's values count, as they do for the target; but the worker that was first is named.
    """
    leader, stop = snapshot.leader, snapshot.job.spec.stop_rule
    if leader is None:
        return None
    lasting = [series for series in watched(stop) if since(leader, series) is not None]
    return "; ".join(sentence(snapshot, series) for series in lasting) or None


def since(worker: Worker, series: str) -> int | None:
    """Return the iteration since which a worker has logged no finite value of a series."""
    found = worker.not_finite.get(series)
    return None if found is None else found.since


def sentence(snapshot: Snapshot, series: str) -> str:
    """Say which member was first to log what has not been finite since."""
    members = [worker for m in snapshot.members if (worker := snapshot.worker(m)) is not None]
    begun = [(at, worker) for worker in members if (at := since(worker, series)) is not None]
    at, worker = min(begun, key=lambda pair: pair[0])
    found = worker.not_finite[series]
    became = in_words(series, worker.worker, found)
    if at == found.first:
        return f"{became} and has not been finite since"
    return f"{became}, recovered, and has not been finite since iteration {at}"


def complete(snapshot: Snapshot, end: Finish) -> Finish:
    """Complete the reason a job ends with: what to do, unless it has diverged, which says more."""
    found = divergence(snapshot)
    if found is None:
        return replace(end, why=f"{end.why}; {end.remedy}" if end.remedy else end.why, remedy="")
    has_diverged = end.phase in (Phase.FAILED, Phase.CAPPED)
    advice = f"; {REMEDY}" if has_diverged else ""
    under = "\n" if "\n" in end.why else "; "  # the last lines of a script are no sentence
    why = f"{end.why}{under}{found}{advice}"
    return replace(end, why=why, remedy="", has_diverged=has_diverged)
