"""plan(): from the state of a job to the one action to do now. Pure.

The first concern that has an action wins. Concerns are listed in order of urgency: a job that ends
ends before it grows, a lost worker is left behind before a new one is awaited, growing precedes
using, and machines are deleted only after their workers have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.measurement.profiling import (
    MAX_NOISE_ROWS,
    PROBE_ITERATIONS,
    WARM_UP_ITERATIONS,
    ProbeComplete,
    ProbeIncomplete,
    evaluate_probe,
)
from scavenger.planning.decision import choose_without_further_probes
from scavenger.planning.search.strategy import Probe
from scavenger.protocol import Directive
from scavenger.schemas.jobs import JobPhase
from service.db.vms import Vm
from service.reconciler.actions import (
    Action,
    Blocked,
    ChooseConfig,
    EndOrder,
    Finish,
    Idle,
    KeepConfig,
    Launch,
    NoteBudget,
    NoteFramework,
    ObeyOrder,
    PublishDirective,
    RefuseLayout,
    SearchAnew,
    StoreProbe,
    Terminate,
    Unblocked,
)
from service.reconciler.budget import note_budget
from service.reconciler.directives import choose_members, next_directive, shrink_config
from service.reconciler.endings import (
    clean_up,
    complete_reason,
    counted,
    end_at_limit,
    end_by_itself,
    end_on_failure,
    end_on_request,
    has_any_member_finished,
    has_leader_finished,
)
from service.reconciler.framework import note_framework
from service.reconciler.orders import (
    end_needless_order,
    hold_paused,
    obey_change,
    obey_resize,
)
from service.reconciler.places import is_shortage_reason, next_offer, shortage_reason
from service.reconciler.repair import repair
from service.reconciler.servers import are_servers_ready, end_late_servers, missing_servers
from service.reconciler.target import (
    NOISE_SPLIT_EVERY,
    PROBE_SPLIT_EVERY,
    WantedConfig,
    advise,
    choose_wanted_config,
    is_searched,
    replan,
    unaffordable_reason,
)
from service.reconciler.timeouts import (
    BOOT_TIMEOUT,
    LAUNCH_EVENT_DELAY,
    LAUNCH_FREEZE_TIMEOUT,
    LAUNCH_UNANSWERED_TIMEOUT,
    PROBE_TIMEOUT,
    RELEASE_TIMEOUT,
    STANDBY_TIMEOUT,
    directive_deliverable_since,
    ignores_standby,
    is_boot_late,
)
from service.state.job_state import JobState

PROBE_REPORT_ROWS = (PROBE_ITERATIONS + WARM_UP_ITERATIONS) * (
    PROBE_SPLIT_EVERY + 1
) // PROBE_SPLIT_EVERY + 1


def plan(state: JobState) -> Action:
    """Return the one thing to do for this job now; what it waits for is said once."""
    action, said = hold_while_hidden(state, decide_action(state)), state.job.waiting
    match action:
        case Launch() if said is not None and is_shortage_reason(state, said):
            return action
        case Blocked(why) if why == said:
            return Idle(why)
        case Blocked():
            return action
        case Finish():
            return complete_reason(state, action)
        case EndOrder() | ObeyOrder() | NoteBudget() | NoteFramework() | RefuseLayout():
            return action
        case _ if said is not None and not state.job.phase.is_final:
            return Unblocked(f"going on, after: {said}")
        case _:
            return action


def hold_while_hidden(state: JobState, action: Action) -> Action:
    """Make and end no machines of a job that goes on while the cloud does not show them."""
    is_held = state.is_hidden and not state.job.phase.is_final
    if is_held and isinstance(action, Launch | Terminate):
        return Blocked(f"{state.hidden_reason}; no machine is made or ended there until it does")
    return action


def decide_action(state: JobState) -> Action:
    """Return what to do, regardless of what was reported before."""
    if state.job.phase.is_final:
        return clean_up(state)
    for concern in (
        end_on_request,
        end_needless_order,
        end_at_limit,
        end_by_itself,
        end_on_failure,
        note_budget,
        note_framework,
        obey_change,
        hold_paused,
        repair,
    ):
        action = concern(state)
        if action is not None:
            return action
    if has_leader_finished(state):
        return Idle("training is done, its command is still ending")
    try:
        return advance(state)
    except NothingFeasible as error:
        return Finish(JobPhase.FAILED, f"{error}; raise the limit named and submit again")


def advance(state: JobState) -> Action:
    """Move a healthy job towards the configuration it should be in."""
    ordered = obey_resize(state)
    if ordered is not None:
        return ordered
    aged = replan(state)
    if aged is not None:
        return aged
    advice = advise(state)
    if advice is not None:
        return advice
    wanted = choose_wanted_config(state)
    if isinstance(wanted, ChooseConfig | KeepConfig | SearchAnew):
        return wanted
    concerns: tuple[Callable[[JobState, WantedConfig], Action | None], ...] = (
        settle_running_probe,
        leave_out_unreachable,
        launch_missing,
        publish_target,
        end_spare_machines,
    )
    for concern in concerns:
        action = concern(state, wanted)
        if action is not None:
            return action
    shortfall = wanted.shortfall_reason
    return Idle(f"running {wanted.config}") if shortfall is None else Blocked(shortfall)


def settle_running_probe(state: JobState, wanted: WantedConfig) -> Action | None:
    """A probe has been measured for long enough."""
    directive, probe = state.directive, wanted.probe
    if directive is None or directive.purpose != "probe" or probe is None:
        return None
    if directive.config != probe.config:
        return None
    settled = settle_probe(state, probe, MAX_NOISE_ROWS)
    if isinstance(settled, ProbeIncomplete):
        return give_up_probe(state, wanted, probe, settled.why)
    return StoreProbe(
        settled, f"probe {len(state.probes) + 1} settled: {settled.why}", wanted.order
    )


def settle_probe(
    state: JobState, probe: Probe, max_noise_rows: int
) -> ProbeComplete | ProbeIncomplete:
    """Condense what was measured of a probe, or say what is missing."""
    return evaluate_probe(
        state.steps,
        probe.config,
        measures=probe.measures,
        has_settled_noise=state.knowledge.has_settled_noise,
        losses_before=state.losses_before,
        max_noise_rows=max_noise_rows,
    )


def give_up_probe(state: JobState, wanted: WantedConfig, probe: Probe, why: str) -> Action | None:
    """A probe that does not settle is settled with what there is, or ends the search."""
    config = probe.config
    if not PROBE_TIMEOUT.is_over(directive_deliverable_since(state), state.now):
        return None
    settled = settle_probe(state, probe, 0)
    if not isinstance(settled, ProbeIncomplete):
        took = f"probe {len(state.probes) + 1} took {PROBE_TIMEOUT.limit_text}"
        return StoreProbe(settled, f"{took}: {settled.why}", wanted.order)
    said = f"no probe of {config} within {PROBE_TIMEOUT.limit_text}: {why}"
    if wanted.order is not None:
        return EndOrder(wanted.order, "refused", said)
    if not (state.probes and is_searched(state.job.spec)):
        return KeepConfig(config, f"{said}; training on it")
    run = choose_without_further_probes(state.knowledge)
    return ChooseConfig(run, f"{said}, so the search ends {run.why}")


def leave_out_unreachable(state: JobState, wanted: WantedConfig) -> Action | None:
    """The leader could not reach the newcomers: go on with those it had."""
    directive = state.directive
    # The leader before refuses, which need not be a member of the new generation.
    if directive is None or all(w.refused != directive.generation for w in state.workers):
        return None
    members = tuple(
        m for m in directive.members if (w := state.worker(m.worker)) and w.generation > 0
    )
    newcomers = tuple(m.worker for m in directive.members if m not in members)
    alive = tuple(vm.id for vm in state.live_worker_vms if vm.id in newcomers)
    if alive:
        return Terminate(alive, f"{', '.join(alive)} cannot be reached by the leader")
    if not members:
        return None
    config = shrink_config(state, directive.config, len(members))
    why = f"newcomers cannot be reached: going on with {config}"
    return PublishDirective(next_directive(state, config, members, why, repairs=True), why)


def launch_missing(state: JobState, wanted: WantedConfig) -> Action | None:
    """Launch what is missing; training goes on meanwhile."""
    late = tuple(vm.id for vm in state.unfinished_worker_vms if is_boot_late(state, vm))
    if late:
        return Terminate(late, f"{', '.join(late)} did not say hello in {BOOT_TIMEOUT.limit}")
    astray = tuple(vm.id for vm in state.unfinished_worker_vms if ignores_standby(state, vm))
    if astray:
        return Terminate(astray, f"{', '.join(astray)} did not stand by in {STANDBY_TIMEOUT.limit}")
    missing = missing_worker_machines(state, wanted.config)
    servers = missing_servers(state)
    if not missing and not servers:
        return launch_for_next_probe(state, config_to_launch_for(state, wanted))
    if has_any_member_finished(state):
        return Idle("training is ending, no machine is replaced")
    if (frozen := freeze_launches(state, missing + servers)) is not None:
        return frozen
    if not state.can_afford(missing, servers):
        return block_or_finish_unaffordable(state, missing + servers)
    if (offer := next_offer(state, missing + servers)) is None:
        return Blocked(shortage_reason(state))
    beside = f", and {counted(servers, 'server')}" if servers else ""
    why = f"{counted(missing, 'machine')} for {wanted.config}{beside}"
    return Launch(missing, offer, why, servers)


def launch_for_next_probe(state: JobState, config: ClusterConfig) -> Launch | None:
    """Launch the machines of the next probe early; where it cannot, the probe only starts later."""
    missing = missing_worker_machines(state, config)
    if not missing or has_any_member_finished(state) or freeze_launches(state, missing) is not None:
        return None
    offer = next_offer(state, missing)
    if offer is None or not state.can_afford(missing, 0):
        return None
    return Launch(missing, offer, f"{counted(missing, 'machine')} for {config}")


def missing_worker_machines(state: JobState, config: ClusterConfig) -> int:
    """Return how many machines of workers a configuration needs besides those there are."""
    return max(config.workers - len(state.unfinished_worker_vms), 0)


def config_to_launch_for(state: JobState, wanted: WantedConfig) -> ClusterConfig:
    """Return the configuration that machines are needed for, now or when the next probe begins."""
    probe = wanted.probe
    if (
        probe is None
        or probe.next_config is None
        or probe.next_config.workers <= wanted.config.workers
    ):
        return wanted.config
    return probe.next_config if is_ending_soon(state, probe) else wanted.config


def is_ending_soon(state: JobState, probe: Probe) -> bool:
    """Whether a probe of time ends before a machine that is launched now has booted.

    Where machines need no boot, those of the next probe share this one's computer: they would
    disturb what is measured.
    """
    directive, seconds = state.directive, state.steps.step_time
    if not state.boot or directive is None or directive.config != probe.config or not seconds:
        return False
    left = max(PROBE_ITERATIONS + WARM_UP_ITERATIONS - len(seconds), 0) * median(seconds)
    return left <= state.boot.total_seconds()


def freeze_launches(state: JobState, missing: int) -> Action | None:
    """Launch nothing for a while if too much was launched lately: something kills machines."""
    spec = state.job.spec
    most = 2 * (spec.space.workers[-1] + spec.strategy.servers) + 2
    freeze = LAUNCH_FREEZE_TIMEOUT.limit
    came = [vm for vm in state.vms if vm.refusal is None]
    lately = [
        vm.intended_at
        for vm in came
        if state.now - vm.intended_at < freeze and not state.standing.was_paused_at(vm.ordered_at)
    ]
    if len(lately) + missing <= most:
        return None
    again_at = lately[min(len(lately) + missing - most, len(lately)) - 1] + freeze
    return Blocked(
        f"{len(lately)} machines were launched within an hour, where {most} are allowed: none "
        f"before {again_at:%H:%M} UTC; read the events for how each ended"
    )


def block_or_finish_unaffordable(state: JobState, missing: int) -> Action:
    """The cap does not pay for the missing machines.

    End the job if it cannot train without them, else report it as blocked.
    """
    why = unaffordable_reason(missing)
    if not state.live_worker_vms or missing_servers(state):
        return Finish(JobPhase.CAPPED, why, remedy="raise limits.max_cost and submit again")
    return Blocked(why)


def publish_target(state: JobState, wanted: WantedConfig) -> Action | None:
    """Tell the workers the wanted configuration, once enough of them are ready."""
    directive = state.directive
    if not state.is_applied:
        return Idle("waiting for the workers to regroup")
    missing = wanted.config.workers - len(state.ready_workers)
    if missing > 0:
        return await_boot(state, missing)
    if not are_servers_ready(state):
        return end_late_servers(state) or Idle("waiting for the parameter servers to boot")
    members = choose_members(state, wanted.config.workers)
    proposed = next_directive(state, wanted.config, members, wanted.why)
    if wanted.probe is not None:
        split = NOISE_SPLIT_EVERY if wanted.probe.measures == "noise" else PROBE_SPLIT_EVERY
        proposed = replace(
            proposed, purpose="probe", split_every=split, report_after=PROBE_REPORT_ROWS
        )
    if directive is not None and is_same_assignment(directive, proposed):
        return None
    if wanted.is_time_probe:
        names = [member.worker for member in members]
        standby = tuple(vm.id for vm in state.unfinished_worker_vms if vm.id not in names)
        proposed = replace(proposed, standby=standby)
    return PublishDirective(proposed, wanted.why)


def is_same_assignment(directive: Directive, wanted: Directive) -> bool:
    """Whether the workers do already what they are to do."""
    now, then = (
        (d.config, d.purpose, d.members, d.split_every if d.config.workers == 1 else 0)
        for d in (directive, wanted)
    )
    return now == then


def await_boot(state: JobState, missing: int) -> Action:
    """Wait for machines that boot, and say so of those that the cloud does not give."""
    asked = [vm.intended_at for vm in state.unfinished_worker_vms if vm.state == "intended"]
    if not asked or state.now - min(asked) <= LAUNCH_EVENT_DELAY:
        return Idle(f"waiting for {counted(missing, 'worker')} to boot")
    since = min(asked)
    return Blocked(
        f"the cloud has given no machine since {since:%H:%M} UTC: it is asked again twice a "
        f"minute, and for another at {since + LAUNCH_UNANSWERED_TIMEOUT.limit:%H:%M} UTC"
    )


def end_spare_machines(state: JobState, wanted: WantedConfig) -> Action | None:
    """End machines that are neither in use nor awaited, nor worth keeping for another probe."""
    spare = tuple(vm for vm in state.live_worker_vms if vm.id not in state.member_ids)
    awaited = config_to_launch_for(state, wanted).workers - len(state.member_ids)
    if not spare or len(state.member_ids) < wanted.config.workers:
        return None
    kept = [vm for vm in spare if wanted.is_time_probe and is_worth_keeping(state, vm)]
    released = [vm.id for vm in spare if vm not in kept]
    ended = tuple(released[: len(released) - max(awaited - len(kept), 0)])
    if not ended:
        return None
    published_at = state.published_at or state.now
    if state.now - published_at < RELEASE_TIMEOUT.limit:
        ended = tuple(vm for vm in ended if is_unassigned(state, vm))
    if not ended:
        return Idle("letting released workers end by themselves")
    return Terminate(ended, f"{counted(len(ended), 'machine')} released by {wanted.config}")


def is_unassigned(state: JobState, worker: str) -> bool:
    """Whether a worker waits to be named, so that it will not end by itself."""
    known = state.worker(worker)
    return known is not None and known.is_up and known.generation == 0


def is_worth_keeping(state: JobState, vm: Vm) -> bool:
    """Whether an idle machine has cost less since it stood by than a new one would.

    Kept until then (ski-rental rule), it costs at most twice the better of keeping it and of
    launching another.
    """
    known, boot = state.worker(vm.id), state.fastest_boot
    if known is None or boot is None or not vm.price_per_hour:
        return True  # it still boots, or is free
    gone_at = state.now + RELEASE_TIMEOUT.limit
    kept = vm.terms.price_of(gone_at - vm.paid_from)
    used = vm.terms.price_of(known.hello_at - vm.paid_from)
    return kept - used < vm.terms.price_of(max(boot, state.boot) + RELEASE_TIMEOUT.limit)
