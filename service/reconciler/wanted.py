"""Wanted: the configuration a job should be in now, as far as its cap pays for the machines."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scavenger.cluster import ClusterConfig
from scavenger.decision import Probe, Run
from service.reconciler.action import Choose, Keep
from service.reconciler.ending import count, is_ending
from service.reconciler.level import is_searched, observe
from service.reconciler.servers import missing_servers
from service.reconciler.snapshot import Snapshot
from service.reconciler.succession import shrink

# One worker splits one of so many iterations: noise is measured in those, time in the others.
SPLIT_NOISE = 2
SPLIT_PROBE = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The configuration the job should be in, and what for.

    Attributes:
        probe: What is to be measured there; None to train on it.
        lacks: Why it is smaller than what was chosen; None where it is not.
    """

    config: ClusterConfig
    why: str
    probe: Probe | None = None
    lacks: str | None = None

    @property
    def is_search(self) -> bool:
        """Whether a probe of time is wanted: others will probably follow it soon."""
        return self.probe is not None and self.probe.measures == "time"


def want(snapshot: Snapshot) -> Wanted | Choose | Keep:
    """Return the configuration the job should be in now."""
    job, only = snapshot.job, observe(snapshot)
    if job.chosen is not None:
        return want_chosen(snapshot, job.chosen)
    if isinstance(only, Keep):
        return only
    decision = only or noise_probe(snapshot) or snapshot.knowledge.decide()
    missing = unpaid_machines(snapshot, decision.config)
    return search_less(snapshot, decision, missing) if missing else pursue(decision)


def noise_probe(snapshot: Snapshot) -> Probe | None:
    """Return the probe of noise that runs and whose machines live.

    What would be chosen changes with every reading of the target's metric. A job that moved each
    time would begin anew to let its noise settle, and so would the deadline of that.
    """
    told = snapshot.directive
    if told is None or told.purpose != "probe" or told.split_every != SPLIT_NOISE:
        return None
    if snapshot.knowledge.has_settled_noise or snapshot.gone:
        return None
    return Probe(told.config, told.why, measures="noise")


def pursue(decision: Probe | Run) -> Wanted | Choose:
    """Return what a decision asks for."""
    match decision:
        case Probe(config, why):
            return Wanted(config, why, decision)
        case Run():
            return Choose(decision, decision.why)


def want_chosen(snapshot: Snapshot, chosen: ClusterConfig) -> Wanted:
    """Train on what was chosen, or on the machines there are where no more can be paid."""
    spec = snapshot.job.spec
    wish = f", objective {spec.objective_in_words}" if is_searched(spec) else ""
    missing = unpaid_machines(snapshot, chosen)
    if not missing:
        return Wanted(chosen, f"training on {chosen}{wish}")
    config, why = shrink(snapshot, chosen, len(snapshot.available)), unpaid(missing)
    return Wanted(config, f"{why}: training on {config}", lacks=why)


def search_less(snapshot: Snapshot, decision: Probe | Run, missing: int) -> Wanted | Choose | Keep:
    """End the search among what the cap pays for; before anything is measured, where the job is."""
    knowledge, why = snapshot.knowledge, unpaid(missing)
    if observe(snapshot) is not None or not (knowledge.observations or isinstance(decision, Run)):
        config = shrink(snapshot, decision.config, len(snapshot.available))
        return Keep(config, f"{why}: training on {config}")
    match pursue(knowledge.decide_within(payable_workers(snapshot, missing))):
        case Wanted() as wanted:
            return replace(wanted, why=f"{why}, so the search ends and {wanted.why}")
        case Choose(run) if run.searched:
            return Choose(run, f"{why}, so the search ends {run.why}")
        case Choose(run):
            return Choose(run, f"{why}; {run.why}")


def unpaid_machines(snapshot: Snapshot, config: ClusterConfig) -> int:
    """Return how many machines are missing of which the cap does not pay all; 0 where it does.

    Not for a job without any, nor for one that ends: it has nothing to go on with, or no need.
    """
    missing = config.workers - len(snapshot.available)
    if missing <= 0 or not snapshot.available or missing_servers(snapshot) or is_ending(snapshot):
        return 0
    return 0 if snapshot.affords(missing, 0) else missing


def payable_workers(snapshot: Snapshot, missing: int) -> int:
    """Return how many workers there are, with as many of those missing as the cap pays."""
    more = next(n for n in range(missing - 1, -1, -1) if n == 0 or snapshot.affords(n, 0))
    return len(snapshot.available) + more


def unpaid(missing: int) -> str:
    """Say that the cap does not pay for machines."""
    return f"max_cost leaves no room for {count(missing, 'more machine')}"
