"""plan(): from a Snapshot to the one thing to do now. Pure; the first concern that speaks wins.

The concerns stand in the order of their urgency: a job that ends ends before it grows, a lost
worker is left behind before a new one is awaited, growing precedes using, and machines are deleted
only after the workers on them have been left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from statistics import median

from scavenger.cluster import ClusterConfig
from scavenger.decision import Probe
from scavenger.errors import NothingFeasible
from scavenger.profiling import (
    MOST_NOISE_ROWS,
    PROBE_ITERATIONS,
    WARM_UP,
    NotYet,
    Settled,
    settle,
)
from scavenger.protocol import Directive
from scavenger.view import Phase
from service.db.vms import Vm
from service.reconciler.action import (
    Action,
    Choose,
    Finish,
    Keep,
    Launch,
    Learn,
    Publish,
    Rest,
    Resume,
    Terminate,
    Wait,
)
from service.reconciler.deadline import (
    BOOT,
    FAREWELL,
    FROZEN,
    PROBE,
    STANDBY,
    UNANSWERED,
    is_late,
    stays_on,
    told_at,
)
from service.reconciler.divergence import complete
from service.reconciler.drift import replan
from service.reconciler.ending import (
    clean_up,
    count,
    end_by_failure,
    end_by_itself,
    end_by_limit,
    end_by_wish,
    is_done,
    is_ending,
)
from service.reconciler.level import advise, is_searched
from service.reconciler.repair import repair
from service.reconciler.servers import (
    are_ready,
    end_late_servers,
    missing_servers,
)
from service.reconciler.snapshot import Snapshot
from service.reconciler.succession import choose_members, follow, shrink
from service.reconciler.wanted import SPLIT_NOISE, SPLIT_PROBE, Wanted, unpaid, want

PROBE_ROWS = (PROBE_ITERATIONS + WARM_UP) * (SPLIT_PROBE + 1) // SPLIT_PROBE + 1
SPEECHLESS = timedelta(minutes=1)


def plan(snapshot: Snapshot) -> Action:
    """Return the one thing to do for this job now; what it waits for is said once."""
    action, said = hold(snapshot, decide(snapshot)), snapshot.job.waiting
    match action:
        case Wait(why) if why == said:
            return Rest(why)
        case Wait():
            return action
        case Finish():
            return complete(snapshot, action)
        case _ if said is not None and not snapshot.job.phase.is_final:
            return Resume(f"going on, after: {said}")
        case _:
            return action


def hold(snapshot: Snapshot, action: Action) -> Action:
    """Make and end no machines of a job that goes on while the cloud does not show them."""
    is_held = snapshot.is_hidden and not snapshot.job.phase.is_final
    if is_held and isinstance(action, Launch | Terminate):
        return Wait("the cloud does not show its machines, so none is made or ended until it does")
    return action


def decide(snapshot: Snapshot) -> Action:
    """Return what to do, whatever was said before."""
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
    aged = replan(snapshot)
    if aged is not None:
        return aged
    advice = advise(snapshot)
    if advice is not None:
        return advice
    wanted = want(snapshot)
    if isinstance(wanted, Choose | Keep):
        return wanted
    concerns: tuple[Callable[[Snapshot, Wanted], Action | None], ...] = (
        learn,
        back_off,
        grow,
        resize,
        trim,
    )
    for concern in concerns:
        action = concern(snapshot, wanted)
        if action is not None:
            return action
    return Rest(f"running {wanted.config}") if wanted.lacks is None else Wait(wanted.lacks)


def learn(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """A probe has been measured for long enough."""
    directive, probe = snapshot.directive, wanted.probe
    if directive is None or directive.purpose != "probe" or probe is None:
        return None
    if directive.config != probe.config:
        return None
    settled = measure(snapshot, probe, MOST_NOISE_ROWS)
    if isinstance(settled, NotYet):
        return give_up(snapshot, probe, settled.why)
    return Learn(settled, f"probe {len(snapshot.probes) + 1} settled: {settled.why}")


def measure(snapshot: Snapshot, probe: Probe, most_noise_rows: int) -> Settled | NotYet:
    """Condense what was measured of a probe, or say what is missing."""
    return settle(
        snapshot.steps,
        probe.config,
        measures=probe.measures,
        has_settled_noise=snapshot.knowledge.has_settled_noise,
        losses_before=snapshot.losses_before,
        most_noise_rows=most_noise_rows,
    )


def give_up(snapshot: Snapshot, probe: Probe, why: str) -> Action | None:
    """A probe that does not settle is settled with what there is, or ends the search."""
    config = probe.config
    if not PROBE.is_over(told_at(snapshot), snapshot.now):
        return None
    settled = measure(snapshot, probe, 0)
    if not isinstance(settled, NotYet):
        return Learn(settled, f"probe {len(snapshot.probes) + 1} took {PROBE.span}: {settled.why}")
    said = f"no probe of {config} within {PROBE.span}: {why}"
    if not (snapshot.probes and is_searched(snapshot.job.spec)):
        return Keep(config, f"{said}; training on it")
    run = snapshot.knowledge.choose_now()
    return Choose(run, f"{said}, so the search ends {run.why}")


def back_off(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """The leader could not reach the newcomers: go on with those it had."""
    directive = snapshot.directive
    # The leader before refuses, which need not be a member of the new generation.
    if directive is None or all(w.refused != directive.generation for w in snapshot.workers):
        return None
    members = tuple(
        m for m in directive.members if (w := snapshot.worker(m.worker)) and w.generation > 0
    )
    newcomers = tuple(m.worker for m in directive.members if m not in members)
    alive = tuple(vm.id for vm in snapshot.alive if vm.id in newcomers)
    if alive:
        return Terminate(alive, f"{', '.join(alive)} cannot be reached by the leader")
    if not members:
        return None
    config = shrink(snapshot, directive.config, len(members))
    why = f"newcomers cannot be reached: going on with {config}"
    return Publish(follow(snapshot, config, members, why, repairs=True), why)


def grow(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """Launch what is missing; training goes on meanwhile."""
    late = tuple(vm.id for vm in snapshot.available if is_late(snapshot, vm))
    if late:
        return Terminate(late, f"{', '.join(late)} did not say hello in {BOOT.after}")
    astray = tuple(vm.id for vm in snapshot.available if stays_on(snapshot, vm))
    if astray:
        return Terminate(astray, f"{', '.join(astray)} did not stand by in {STANDBY.after}")
    missing = missing_workers(snapshot, wanted.config)
    servers = missing_servers(snapshot)
    if not missing and not servers:
        return launch_ahead(snapshot, needed(snapshot, wanted))
    if is_ending(snapshot):
        return Rest("training is ending, no machine is replaced")
    if (frozen := freeze(snapshot, missing + servers)) is not None:
        return frozen
    if not snapshot.affords(missing, servers):
        return do_without(snapshot, missing + servers)
    beside = f", and {count(servers, 'server')}" if servers else ""
    return Launch(missing, f"{count(missing, 'machine')} for {wanted.config}{beside}", servers)


def launch_ahead(snapshot: Snapshot, config: ClusterConfig) -> Launch | None:
    """Launch the machines of the next probe early; what stands against it stops no probe."""
    missing = missing_workers(snapshot, config)
    if not missing or is_ending(snapshot) or freeze(snapshot, missing) is not None:
        return None
    if not snapshot.affords(missing, 0):
        return None
    return Launch(missing, f"{count(missing, 'machine')} for {config}")


def missing_workers(snapshot: Snapshot, config: ClusterConfig) -> int:
    """Return how many machines of workers a configuration needs besides those there are."""
    return max(config.workers - len(snapshot.available), 0)


def needed(snapshot: Snapshot, wanted: Wanted) -> ClusterConfig:
    """Return the configuration that machines are needed for, now or when the next probe begins."""
    probe = wanted.probe
    if probe is None or probe.then is None or probe.then.workers <= wanted.config.workers:
        return wanted.config
    return probe.then if is_ending_soon(snapshot, probe) else wanted.config


def is_ending_soon(snapshot: Snapshot, probe: Probe) -> bool:
    """Whether a probe of time ends before a machine that is launched now has booted.

    Where machines need no boot, those of the next probe share this one's computer: they would
    disturb what is measured.
    """
    directive, seconds = snapshot.directive, snapshot.steps.step_time
    if not snapshot.boot or directive is None or directive.config != probe.config or not seconds:
        return False
    left = max(PROBE_ITERATIONS + WARM_UP - len(seconds), 0) * median(seconds)
    return left <= snapshot.boot.total_seconds()


def freeze(snapshot: Snapshot, missing: int) -> Action | None:
    """Launch nothing for a while if too much was launched lately: something kills machines."""
    spec = snapshot.job.spec
    most = 2 * (spec.space.workers[-1] + spec.strategy.servers) + 2
    lately = [vm.intended_at for vm in snapshot.vms if snapshot.now - vm.intended_at < FROZEN.after]
    if len(lately) + missing <= most:
        return None
    again_at = lately[min(len(lately) + missing - most, len(lately)) - 1] + FROZEN.after
    return Wait(
        f"{len(lately)} machines were launched within an hour, where {most} are allowed: none "
        f"before {again_at:%H:%M} UTC; read the events for how each ended"
    )


def do_without(snapshot: Snapshot, missing: int) -> Action:
    """The cap does not pay for the machines without which nothing can go on."""
    why = unpaid(missing)
    if not snapshot.alive or missing_servers(snapshot):
        return Finish(Phase.CAPPED, why, remedy="raise limits.max_cost and submit again")
    return Wait(why)


def resize(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """Tell the workers the wanted configuration, once enough of them are ready."""
    directive = snapshot.directive
    if not snapshot.is_applied:
        return Rest("waiting for the workers to regroup")
    missing = wanted.config.workers - len(snapshot.ready)
    if missing > 0:
        return await_boot(snapshot, missing)
    if not are_ready(snapshot):
        return end_late_servers(snapshot) or Rest("waiting for the parameter servers to boot")
    members = choose_members(snapshot, wanted.config.workers)
    told = follow(snapshot, wanted.config, members, wanted.why)
    if wanted.probe is not None:
        split = SPLIT_NOISE if wanted.probe.measures == "noise" else SPLIT_PROBE
        told = replace(told, purpose="probe", split_every=split, report_after=PROBE_ROWS)
    if directive is not None and is_told(directive, told):
        return None
    if wanted.is_search:
        names = [member.worker for member in members]
        aside = tuple(vm.id for vm in snapshot.available if vm.id not in names)
        told = replace(told, standby=aside)
    return Publish(told, wanted.why)


def is_told(directive: Directive, wanted: Directive) -> bool:
    """Whether the workers do already what they are to do."""
    now, then = (
        (d.config, d.purpose, d.members, d.split_every if d.config.workers == 1 else 0)
        for d in (directive, wanted)
    )
    return now == then


def await_boot(snapshot: Snapshot, missing: int) -> Action:
    """Wait for machines that boot, and say so of those that the cloud does not give."""
    asked = [vm.intended_at for vm in snapshot.available if vm.state == "intended"]
    if not asked or snapshot.now - min(asked) < SPEECHLESS:
        return Rest(f"waiting for {count(missing, 'worker')} to boot")
    since = min(asked)
    return Wait(
        f"the cloud has given no machine since {since:%H:%M} UTC: it is asked again twice a "
        f"minute, and for another at {since + UNANSWERED.after:%H:%M} UTC"
    )


def trim(snapshot: Snapshot, wanted: Wanted) -> Action | None:
    """End machines that are neither in use nor awaited, nor worth keeping for another probe."""
    spare = tuple(vm for vm in snapshot.alive if vm.id not in snapshot.members)
    awaited = needed(snapshot, wanted).workers - len(snapshot.members)
    if not spare or len(snapshot.members) < wanted.config.workers:
        return None
    kept = [vm for vm in spare if wanted.is_search and is_worth_keeping(snapshot, vm)]
    released = [vm.id for vm in spare if vm not in kept]
    ended = tuple(released[: len(released) - max(awaited - len(kept), 0)])
    if not ended:
        return None
    published_at = snapshot.published_at or snapshot.now
    if snapshot.now - published_at < FAREWELL.after:
        ended = tuple(vm for vm in ended if is_waiting(snapshot, vm))
    if not ended:
        return Rest("letting released workers end by themselves")
    return Terminate(ended, f"{count(len(ended), 'machine')} released by {wanted.config}")


def is_waiting(snapshot: Snapshot, worker: str) -> bool:
    """Whether a worker waits to be named, so that it will not end by itself."""
    known = snapshot.worker(worker)
    return known is not None and known.is_up and known.generation == 0


def is_worth_keeping(snapshot: Snapshot, vm: Vm) -> bool:
    """Whether an idle machine has cost less since it stood by than a new one would.

    A search may want it again, or not: so long it never costs more than twice what it had to.
    """
    known, boot = snapshot.worker(vm.id), snapshot.boot_seen
    if known is None or boot is None or not vm.price_per_hour:
        return True  # it still boots, or is free
    gone_at = snapshot.now + FAREWELL.after
    kept = vm.terms.price_of(gone_at - vm.paid_from)
    used = vm.terms.price_of(known.hello_at - vm.paid_from)
    return kept - used < vm.terms.price_of(max(boot, snapshot.boot) + FAREWELL.after)
