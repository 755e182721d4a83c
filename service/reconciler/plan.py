"""plan(): from a Snapshot to the one thing to do now. Pure; the first concern that speaks wins.

The concerns stand in the order of their urgency: a job that ends ends before it grows, a lost
worker is left behind before a new one is awaited, growing precedes using, and machines are deleted
only after the workers on them have been left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.decision import Probe, Run
from scavenger.errors import NothingFeasible
from scavenger.profiling import PROBE_ITERATIONS, WARM_UP, NotYet, settle
from scavenger.protocol import Directive, Member
from scavenger.view import Phase
from service import ledger
from service.db.vms import Vm
from service.reconciler.action import (
    Action,
    Choose,
    Finish,
    Launch,
    Learn,
    Publish,
    Rest,
    Terminate,
)
from service.reconciler.drift import replan
from service.reconciler.ending import (
    clean_up,
    count,
    end_by_failure,
    end_by_itself,
    end_by_limit,
    end_by_wish,
    is_done,
)
from service.reconciler.snapshot import Snapshot

SPLIT_FIRST = 2
SPLIT_PROBE = 5
SPLIT_TRAIN = 25
PROBE_ROWS = (PROBE_ITERATIONS + WARM_UP) * (SPLIT_PROBE + 1) // SPLIT_PROBE + 1
FAREWELL = timedelta(seconds=10)
BOOT = timedelta(minutes=15)
BREATH = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The configuration the job should be in, and what for.

    Attributes:
        is_first: Whether this is the job's first probe, whose noise has to settle.
    """

    config: ClusterConfig
    purpose: Literal["probe", "train"]
    why: str
    is_first: bool


def plan(snapshot: Snapshot) -> Action:
    """Return the one thing to do for this job now."""
    if snapshot.job.phase.is_final:
        return clean_up(snapshot)
    for concern in (end_by_wish, end_by_limit, end_by_itself, end_by_failure, repair):
        action = concern(snapshot)
        if action is not None:
            return action
    if is_done(snapshot):
        return Rest("training is done, its command is still ending")
    try:
        return advance(snapshot)
    except NothingFeasible as error:
        return Finish(Phase.FAILED, f"{error}; raise the limit named and submit again")


def advance(snapshot: Snapshot) -> Action:
    """Move a healthy job towards the configuration it should be in."""
    learned = learn(snapshot)
    if learned is not None:
        return learned
    aged = replan(snapshot)
    if aged is not None:
        return aged
    wanted = want(snapshot)
    if isinstance(wanted, Choose):
        return wanted
    concerns: tuple[Callable[[Snapshot, Wanted], Action | None], ...] = (
        back_off,
        grow,
        resize,
        trim,
    )
    for concern in concerns:
        action = concern(snapshot, wanted)
        if action is not None:
            return action
    return Rest(f"running {wanted.config}")


def repair(snapshot: Snapshot) -> Action | None:
    """The generation cannot go on: those who can form the next one, from the most advanced."""
    directive = snapshot.directive
    if directive is None or is_done(snapshot):
        return None
    hung = hung_members(snapshot)
    if hung:
        return Terminate(hung, f"{', '.join(hung)} silent while the others wait")
    if snapshot.lost:
        return leave_lost_behind(snapshot, directive)
    if is_broken(snapshot, directive):
        why = f"the workers lost touch: forming {directive.config} anew"
        again = follow(snapshot, directive.config, directive.members, why, repairs=True)
        return Publish(again, why)
    return None


def leave_lost_behind(snapshot: Snapshot, directive: Directive) -> Action | None:
    """Members died: the survivors go on without them."""
    survivors = tuple(m for m in directive.members if m.worker not in snapshot.lost)
    if not survivors:
        return None
    config = shrink(snapshot, directive.config, len(survivors))
    why = f"lost {', '.join(snapshot.lost)}: the survivors go on with {config}"
    return Publish(follow(snapshot, config, survivors, why, repairs=True), why)


def shrink(snapshot: Snapshot, config: ClusterConfig, workers: int) -> ClusterConfig:
    """Return a configuration for fewer workers, none of which gets more than its memory holds."""
    most = snapshot.job.spec.space.most_local_batch
    batch = int(min(config.global_batch, workers * most))
    return replace(config, workers=workers, global_batch=max(batch, workers))


def is_broken(snapshot: Snapshot, directive: Directive) -> bool:
    """Whether a member waits for a new generation, for long enough that it is no accident."""
    age = snapshot.now - (snapshot.published_at or snapshot.now)
    members = [snapshot.worker(member) for member in snapshot.members]
    waits = any(w is not None and w.broken == directive.generation for w in members)
    return waits and age > BREATH


def hung_members(snapshot: Snapshot) -> tuple[str, ...]:
    """Members that have said nothing for long while another still speaks."""
    alive = [vm.id for vm in snapshot.alive if vm.id in snapshot.members]
    silent = tuple(worker for worker in alive if snapshot.is_silent(worker))
    return silent if len(silent) < len(alive) else ()


def learn(snapshot: Snapshot) -> Action | None:
    """A probe has been measured for long enough."""
    directive = snapshot.directive
    if directive is None or directive.purpose != "probe" or snapshot.job.chosen is not None:
        return None
    if any(probe.observation.config == directive.config for probe in snapshot.probes):
        return None
    settled = settle(snapshot.steps, directive.config, is_first=not snapshot.probes)
    if isinstance(settled, NotYet):
        return None
    return Learn(settled, f"probe {len(snapshot.probes) + 1} settled: {settled.why}")


def want(snapshot: Snapshot) -> Wanted | Choose:
    """Return the configuration the job should be in now."""
    job = snapshot.job
    if job.chosen is not None:
        why = f"training on {job.chosen}, the {job.spec.objective_in_words}"
        return Wanted(job.chosen, "train", why, is_first=False)
    decision = snapshot.knowledge.decide()
    match decision:
        case Probe(config, why):
            return Wanted(config, "probe", why, is_first=not snapshot.probes)
        case Run():
            return Choose(decision, decision.why)


def back_off(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """The leader could not reach the newcomers: go on with those it had."""
    directive, leader = snapshot.directive, snapshot.leader
    if directive is None or leader is None or leader.refused != directive.generation:
        return None
    members = tuple(
        m for m in directive.members if (w := snapshot.worker(m.worker)) and w.generation > 0
    )
    newcomers = tuple(m.worker for m in directive.members if m not in members)
    alive = tuple(vm.id for vm in snapshot.alive if vm.id in newcomers)
    if alive:
        return Terminate(alive, f"{', '.join(alive)} cannot be reached by the leader")
    config = shrink(snapshot, directive.config, len(members))
    why = f"newcomers cannot be reached: going on with {config}"
    return Publish(follow(snapshot, config, members, why, repairs=True), why)


def grow(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """Launch what is missing; training goes on meanwhile."""
    late = tuple(vm.id for vm in snapshot.available if is_late(snapshot, vm))
    if late:
        return Terminate(late, f"{', '.join(late)} did not say hello in {BOOT}")
    missing = wanted.config.workers - len(snapshot.available)
    if missing <= 0:
        return None
    if is_ending(snapshot):
        return Rest("training is ending, no machine is replaced")
    spec = snapshot.job.spec
    terms = ledger.terms_of(spec)
    if ledger.affordable(snapshot.vms, spec.limits.max_cost, terms, missing) is not None:
        return Launch(missing, f"{count(missing, 'machine')} for {wanted.config}")
    return do_without(snapshot, wanted, missing)


def is_ending(snapshot: Snapshot) -> bool:
    """Whether a member has reached the end of training, as the leader is about to say too."""
    members = [snapshot.worker(member) for member in snapshot.members]
    return any(w is not None and w.finished in ("target", "exhausted") for w in members)


def is_late(snapshot: Snapshot, vm: Vm) -> bool:
    """Whether a machine has existed for longer than any boot takes and never said hello."""
    return snapshot.worker(vm.id) is None and snapshot.now - vm.intended_at > BOOT


def do_without(snapshot: Snapshot, wanted: Wanted, missing: int) -> Action:
    """The cap does not pay for more machines: end, choose from what is known, or go on."""
    why = f"max_cost leaves no room for {count(missing, 'more machine')}"
    if not snapshot.alive:
        return Finish(Phase.CAPPED, f"{why}; raise limits.max_cost and submit again")
    if wanted.purpose == "probe" and snapshot.probes:
        run = snapshot.knowledge.choose_now()
        return Choose(run, f"{why}, so the search ends {run.why}")
    return Rest(why)


def resize(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """Tell the workers the wanted configuration, once enough of them are ready."""
    directive = snapshot.directive
    if not snapshot.is_applied:
        return Rest("waiting for the workers to regroup")
    missing = wanted.config.workers - len(snapshot.ready)
    if missing > 0:
        return Rest(f"waiting for {count(missing, 'worker')} to boot")
    members = choose_members(snapshot, wanted.config.workers)
    is_same = directive is not None and (
        (directive.config, directive.purpose) == (wanted.config, wanted.purpose)
        and directive.members == members
    )
    if is_same:
        return None
    told = follow(snapshot, wanted.config, members, wanted.why)
    split = SPLIT_FIRST if wanted.is_first else SPLIT_PROBE
    if wanted.purpose == "probe":
        told = replace(told, purpose="probe", split_every=split, report_after=PROBE_ROWS)
    return Publish(told, wanted.why)


def trim(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """End machines that are neither in use nor awaited."""
    spare = tuple(vm.id for vm in snapshot.alive if vm.id not in snapshot.members)
    if not spare or len(snapshot.members) < wanted.config.workers:
        return None
    published_at = snapshot.published_at or snapshot.now
    if snapshot.now - published_at < FAREWELL:
        return Rest("letting released workers end by themselves")
    return Terminate(spare, f"{count(len(spare), 'machine')} released by {wanted.config}")


def choose_members(snapshot: Snapshot, workers: int) -> tuple[Member, ...]:
    """Keep ranks where they are and append newcomers, so that the leader stays the leader."""
    ready = {worker.worker: worker for worker in snapshot.ready}
    order = [m for m in snapshot.members if m in ready]
    order += [w for w in ready if w not in order]
    return tuple(Member(w, ready[w].address) for w in order[:workers])


def follow(
    snapshot: Snapshot,
    config: ClusterConfig,
    members: tuple[Member, ...],
    why: str,
    *,
    repairs: bool = False,
) -> Directive:
    """Compose the Directive that comes after the newest one, for training."""
    knowledge, directive = snapshot.knowledge, snapshot.directive
    return Directive(
        generation=1 if directive is None else directive.generation + 1,
        config=config,
        members=members,
        purpose="train",
        progress_per_iteration=knowledge.progress_per_iteration(config),
        learning_rate=knowledge.learning_rate,
        stop=snapshot.job.spec.stop_rule,
        split_every=SPLIT_TRAIN,
        report_after=0,
        why=why,
        repairs=repairs,
    )
