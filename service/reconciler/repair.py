"""Repair: what to do about a generation that cannot go on."""

from __future__ import annotations

from dataclasses import replace

from scavenger.layout import Layout
from scavenger.protocol import Directive, Member
from scavenger.schemas.jobs import JobPhase
from service.db.workers import WorkerRow
from service.reconciler.actions import (
    Action,
    Finish,
    Idle,
    PublishDirective,
    RefuseLayout,
    Terminate,
)
from service.reconciler.directives import (
    choose_members,
    has_state,
    in_usable_layout,
    layout_objection,
    next_directive,
    shrink_config,
    surviving_members,
)
from service.reconciler.endings import has_leader_finished
from service.reconciler.servers import replace_servers, stuck_servers
from service.reconciler.timeouts import (
    ALL_WORKERS_SILENT_TIMEOUT,
    ENTRY_TIMEOUT,
    FIRST_ITERATION_TIMEOUT,
    has_entry_timed_out,
    has_first_iteration_timed_out,
    is_boot_late,
    is_fruitless,
    regroup_delay,
)
from service.state.job_state import JobState

MAX_LAYOUT_CHANGES = 5  # that a leader may refuse before the job does without the layout


def repair(state: JobState) -> Action | None:
    """Return what lets a job go on whose generation cannot, with the workers that can.

    None if nothing is to be repaired.
    """
    directive = state.directive
    if directive is None or has_leader_finished(state):
        return None
    # Silent machines first: any generation that is formed anew would wait for them again.
    hung = hung_members(state)
    if hung:
        are_all = are_all_silent(state, state.member_ids)
        how = f"for {ALL_WORKERS_SILENT_TIMEOUT.limit}" if are_all else "while the others wait"
        return Terminate(hung, f"{', '.join(hung)} silent {how}")
    stuck = stuck_servers(state)
    if stuck:
        return Terminate(stuck, f"{', '.join(stuck)} silent while the workers wait")
    if state.lost_servers:
        return replace_servers(state, directive)
    if directive.layout and layout_objection(state, directive.config) is not None:
        return leave_failed_layout(state, directive)
    leader = refusing_leader(state, directive) if directive.restarts else None
    if leader is not None:
        return ask_again(state, directive, leader)
    if state.lost_members or state.restarted_members:
        return leave_lost_behind(state, directive)
    if state.released_members:
        return replace_released(state, directive)
    if is_broken(state):
        return regroup(state, directive, "the workers lost touch")
    if has_entry_timed_out(state):
        return enforce_entry(state, directive)
    return replace_never_started(state, directive)


def regroup(state: JobState, directive: Directive, what: str) -> Action:
    """Tell the same workers again, unless that was in vain too often."""
    if is_fruitless(state):
        return Finish(JobPhase.FAILED, f"{what}, {fruitless_reason(state, directive)}")
    why = f"{what}: forming {directive.config} anew"
    again = next_directive(state, directive.config, directive.members, why, repairs=True)
    return PublishDirective(again, why)


def fruitless_reason(state: JobState, directive: Directive) -> str:
    """Say what was tried and who did not follow."""
    published = state.published_without_iteration
    minutes = (state.now - published[0]).total_seconds() / 60
    outside = [w.worker for w in living_members(state) if w.generation < directive.generation]
    missing = f", the newest not entered by {', '.join(outside)}" if outside else ""
    return (
        f"and no iteration came of {len(published)} directives within {minutes:.0f} min{missing}; "
        "read what these workers printed, and whether they can reach each other"
    )


def enforce_entry(state: JobState, directive: Directive) -> Action:
    """Some have not entered the generation for too long: go back to those it had, or try again."""
    members = living_members(state)
    newcomers = tuple(worker.worker for worker in members if worker.generation == 0)
    if newcomers and len(newcomers) < len(members):
        return Terminate(
            newcomers, f"{', '.join(newcomers)} did not join in {ENTRY_TIMEOUT.limit_text}"
        )
    return regroup(state, directive, f"directive {directive.generation} was not entered")


def replace_never_started(state: JobState, directive: Directive) -> Action | None:
    """Members that entered a generation and never finished an iteration get new machines."""
    idle = tuple(worker.worker for worker in living_members(state))
    if not (idle and state.published_without_iteration and has_first_iteration_timed_out(state)):
        return None
    if is_fruitless(state):
        return Finish(JobPhase.FAILED, f"no worker trains, {fruitless_reason(state, directive)}")
    return Terminate(
        idle, f"{', '.join(idle)} finished no iteration in {FIRST_ITERATION_TIMEOUT.limit_text}"
    )


def living_members(state: JobState) -> tuple[WorkerRow, ...]:
    """Return the members whose machine runs, in rank order."""
    alive = {vm.id for vm in state.live_worker_vms}
    return tuple(worker for worker in state.member_workers if worker.worker in alive)


def leave_lost_behind(state: JobState, directive: Directive) -> Action | None:
    """Members died: the survivors go on without them, and with those that are back already."""
    # Before all else: a worker that stands by would go on without what the others have trained.
    if directive.restarts and is_starting_again(state, directive):
        return Idle(f"waiting for the workers to start again with {directive.layout}")
    survivors = surviving_members(state, directive)
    if not survivors:
        return None
    config = shrink_config(state, directive.config, len(survivors))
    why = f"{loss_reason(state)} with {config}"
    again = next_directive(state, config, survivors, why, repairs=True)
    if not state.lost_members and config == directive.config:  # what they were told still holds
        again = with_purpose_of(directive, again)
    return PublishDirective(again, why)


def leave_failed_layout(state: JobState, directive: Directive) -> Action | None:
    """The job does without the layout it was told: all go on in one that is left."""
    leader = refusing_leader(state, directive)
    if leader is not None:
        return stay_in_layout(state, directive, leader)
    if is_starting_again(state, directive):
        return Idle(f"waiting for the workers to start again without {directive.layout}")
    survivors = surviving_members(state, directive)
    if not survivors:
        return None
    config = shrink_config(state, in_usable_layout(state, directive.config), len(survivors))
    why = f"the job does without {directive.layout}: going on with {config}"
    return PublishDirective(next_directive(state, config, survivors, why, repairs=True), why)


def refusing_leader(state: JobState, directive: Directive) -> WorkerRow | None:
    """Return who trains on as its state cannot be kept for another layout; None where none does.

    The leader before refuses, which need not be a member of the new generation.
    """
    for worker in state.workers:
        is_there = worker.is_up and worker.worker not in state.departed_members
        if is_there and worker.generation > 0 and worker.refused == directive.generation:
            return worker
    return None


def ask_again(state: JobState, directive: Directive, leader: WorkerRow) -> Action:
    """The leader could not keep its state for another layout: ask again, ever more rarely.

    The workers train on meanwhile. A repair would end their processes, and lose what the leader
    could not keep. After some times, or once a member is lost, the job does without the layout.
    """
    asked = len(state.published_without_iteration)
    if asked >= MAX_LAYOUT_CHANGES or state.lost_members:
        why = f"{leader.worker} could not keep its state for a change to it"
        return RefuseLayout(Layout.parse(directive.layout), leader.worker, why)
    if state.now - (state.published_at or state.now) <= regroup_delay(state):
        return Idle(f"{leader.worker} trains on, and is asked for {directive.layout} again soon")
    why = f"the workers train on, since the leader cannot start again yet: {directive.config} later"
    again = next_directive(state, directive.config, directive.members, why)
    return PublishDirective(with_purpose_of(directive, again), why)


def stay_in_layout(state: JobState, directive: Directive, leader: WorkerRow) -> Action:
    """Those that train on stay in their layout; newcomers join them there later."""
    departed = state.departed_members
    training = tuple(
        member
        for member in directive.members
        if member.worker not in departed and has_state(state, member.worker)
    ) or (Member(leader.worker, leader.address),)
    config = shrink_config(state, in_usable_layout(state, directive.config), len(training))
    why = f"the job does without {directive.layout}: staying with {config}"
    repairs = bool(state.lost_members)
    again = next_directive(state, config, training, why, repairs=repairs)
    return PublishDirective(replace(again, restarts=again.layout != state.trained_layout), why)


def with_purpose_of(directive: Directive, again: Directive) -> Directive:
    """Return a Directive that measures what the one before was to measure."""
    return replace(
        again,
        purpose=directive.purpose,
        split_every=directive.split_every,
        report_after=directive.report_after,
    )


def is_starting_again(state: JobState, directive: Directive) -> bool:
    """Whether a member still is in the layout before, or its process is not up in the next one.

    Those that are back wait: without the leader they would begin from an older checkpoint.
    """
    if has_entry_timed_out(state):
        return False
    late = [vm.id for vm in state.live_worker_vms if is_boot_late(state, vm)]
    gone = (*state.lost_members, *state.released_members, *late)
    members = [worker for worker in state.member_workers if worker.worker not in gone]
    if any(worker.generation >= directive.generation for worker in members):
        return False
    again = state.restarted_members  # whose first report may still tell of the process before
    return any(
        not worker.is_up or (worker.generation > 0 and worker.worker not in again)
        for worker in members
    )


def loss_reason(state: JobState) -> str:
    """Say what befell the members, and who goes on."""
    again = f"{', '.join(state.restarted_members)} started again"
    if not state.lost_members:
        return f"{again}: going on"
    lost = f"lost {', '.join(state.lost_members)}"
    if state.restarted_members:
        return f"{lost}; {again}: going on"
    return f"{lost}: the survivors go on"


def replace_released(state: JobState, directive: Directive) -> Action | None:
    """Members' machines were told to end: the others go on, with workers that are ready.

    Nothing is broken: the others have left them out at an iteration boundary already.
    """
    members = choose_members(state, directive.config.workers)
    # A survivor whose machine its cloud takes back is no member of what comes next.
    if not members or not surviving_members(state, directive):
        return None
    config = shrink_config(state, directive.config, len(members))
    why = f"{', '.join(state.released_members)} was told to leave: the others go on with {config}"
    return PublishDirective(next_directive(state, config, members, why), why)


def is_broken(state: JobState) -> bool:
    """Whether a member waits for a new generation, for long enough that it is no accident."""
    age = state.now - (state.published_at or state.now)
    waits = any(worker.broken is not None for worker in state.member_workers)
    return waits and age > regroup_delay(state)


def hung_members(state: JobState) -> tuple[str, ...]:
    """Members that have said nothing for long while another still speaks, or all for longer."""
    alive = [vm.id for vm in state.live_worker_vms if vm.id in state.member_ids]
    # A process that starts again has longer to say hello.
    starting = {worker.worker for worker in state.member_workers if not worker.is_up}
    silent = tuple(w for w in alive if state.is_silent(w) and w not in starting)
    if len(silent) < len(alive):
        return silent
    return silent if are_all_silent(state, silent) else ()


def are_all_silent(state: JobState, workers: tuple[str, ...]) -> bool:
    """Whether none of these processes has spoken for so long that none will."""
    known = [state.worker(worker) for worker in workers]
    return all(
        w is not None and w.is_up and state.silence(w.worker) > ALL_WORKERS_SILENT_TIMEOUT.limit
        for w in known
    )
