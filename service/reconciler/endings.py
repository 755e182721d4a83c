"""How a job ends: on request, at a limit, by itself or by failure; and no machine stays."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from scavenger.money import format_dollars
from scavenger.protocol import StopAtMetric, StopRule
from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.db.workers import WorkerRow
from service.errors import LaunchRefused
from service.reconciler.actions import Action, Finish, Idle, Terminate
from service.reconciler.timeouts import COMMAND_TIMEOUT
from service.state.capacity import has_left_in_order, is_preempted, max_launches, taken_machines
from service.state.job_state import JobState, current_divergence, diverged_since, running_machines

TAIL_LINES_SHOWN = 5
MAX_HOPELESS = 5  # refusals that no other place mends
DIVERGENCE_REMEDY = "look at the data of that iteration, lower the learning rate, or clip gradients"


def clean_up(state: JobState) -> Action:
    """After the end: no machine stays."""
    alive = [vm for vm in state.vms if vm.is_alive]
    untold = tuple(vm.id for vm in alive if vm.state != "ending")
    if untold:
        return Terminate(untold, f"job {state.job.phase}: {counted(len(untold), 'machine')} left")
    if alive:
        return Idle(f"job {state.job.phase}: {counted(len(alive), 'machine')} still ending")
    return Idle(f"job {state.job.phase}")


def end_on_request(state: JobState) -> Action | None:
    """The user asked for the end."""
    if state.job.cancel_requested_at is None:
        return None
    return Finish(JobPhase.CANCELLED, "cancelled on request")


def end_at_limit(state: JobState) -> Action | None:
    """The cap leaves no time, or the time is over."""
    limits = state.job.spec.limits
    if limits.max_time is not None and state.elapsed >= limits.max_time:
        took = f"max_time reached after {state.elapsed:.0f} s"
        return Finish(JobPhase.CAPPED, took, remedy="raise limits.max_time and submit again")
    cap = limits.max_cost
    if cap is None or not is_cap_spent(state, cap):
        return None
    return Finish(
        JobPhase.CAPPED,
        f"max_cost reached: {format_dollars(float(state.accrued))} of {format_dollars(float(cap))} "
        "spent, and the rest pays for no further second",
        remedy="raise limits.max_cost and submit again",
    )


def is_cap_spent(state: JobState, cap: Decimal) -> bool:
    """Whether the money left would not pay the machines until they could be stopped."""
    if state.standing.is_paused:
        return False  # its machines leave, and its user may raise the cap
    if not any(vm.price_per_hour for vm in state.vms if vm.is_alive):
        return not state.can_afford(1, 0)
    return ledger.accrued(state.vms, state.now + ledger.POWER_OFF_GRACE) > cap


def end_by_itself(state: JobState) -> Action | None:
    """The leader's command has ended well, or does not end although training is done."""
    leader = state.leader
    if leader is None or leader.finished == "released":
        return None
    vm = next(vm for vm in state.vms if vm.id == leader.worker)
    is_overdue = leader.finished is not None and COMMAND_TIMEOUT.is_over(
        state.not_before_start(leader.seen_at), state.now
    )
    is_running = vm.is_alive and vm.exit_code is None and not is_overdue
    has_failed = vm.exit_code is not None and vm.exit_code > 0
    if is_running or has_failed or (leader.finished is None and vm.exit_code != 0):
        return None
    return judge_command(state, leader)


def judge_command(state: JobState, leader: WorkerRow) -> Finish:
    """Judge a command that ended well by what its session said, or by what it logged last."""
    stop, words = state.job.spec.stop_rule, state.job.spec.target_text
    value = leader.metrics.get(stop.metric) if isinstance(stop, StopAtMetric) else None
    achieved = "" if value is None else f"; the last value was {value:.4g}"
    done = f"{leader.epochs:.2f} reference epochs and {leader.iteration} iterations{achieved}"
    if leader.finished == "target" or is_reached(leader, stop):
        return Finish(JobPhase.SUCCEEDED, f"target {words} reached after {done}", 0, leader.epochs)
    advice = "raise target.max_epochs or lower the goal"
    if isinstance(stop, StopAtMetric) and value is None and stop.metric not in leader.not_finite:
        advice = f"no {stop.metric} was ever seen: call job.log({stop.metric}=...) in the session"
    why = f"the command ended without reaching {words} after {done}"
    return Finish(JobPhase.FAILED, why, 0, remedy=advice)


def is_reached(leader: WorkerRow, stop: StopRule) -> bool:
    """Whether what was logged last reaches the goal; what is no number by now does not."""
    if not isinstance(stop, StopAtMetric) or diverged_since(leader, stop.metric) is not None:
        return False
    value = leader.metrics.get(stop.metric)
    return value is not None and stop.reached(value)


def end_on_failure(state: JobState) -> Action | None:
    """A member's command failed by itself; a signal is the machine's loss, not the script's.

    A parameter server runs no script of the user's: one that ends is lost, and replaced.
    """
    for vm in (vm for vm in state.vms if vm.role == "worker"):
        worker = state.worker(vm.id)
        if vm.exit_code == 0 and worker is None:
            return Finish(
                JobPhase.FAILED,
                f"the command on {vm.id} ended without taking part; does the script open "
                "worker_agent.session() and go through job.batches()?",
                0,
            )
        # A negative code is the signal that ended the command.
        if vm.exit_code is None or vm.exit_code <= 0 or is_released(state, worker):
            continue
        tail = "\n".join(vm.tail.splitlines()[-TAIL_LINES_SHOWN:])
        has_others = any(other.id != vm.id for other in running_machines(state.vms))
        stopped = " (others stopped by Scavenger)" if has_others else ""
        said = f"its last lines:\n{tail}" if tail else "it printed nothing"
        why = f"{vm.id} exited with code {vm.exit_code}{stopped}; {said}"
        return Finish(JobPhase.FAILED, why, vm.exit_code)
    hopeless = [vm for vm in state.vms if vm.refusal_label == LaunchRefused.label]
    if len(hopeless) >= MAX_HOPELESS:
        return Finish(
            JobPhase.FAILED,
            f"the cloud refuses its machines: {hopeless[-1].refusal}; correct the job or the "
            "clouds file and submit again",
        )
    counting = [
        vm
        for vm in state.vms
        if vm.refusal is None
        and not has_left_in_order(state, vm)
        and not state.standing.was_paused_at(vm.ordered_at)
    ]
    limit, launched = max_launches(state), len(counting)
    if launched > limit:
        return Finish(JobPhase.FAILED, f"{launched} machines {launches_reason(state, limit)}")
    return None


def launches_reason(state: JobState, limit: int) -> str:
    """Say why a job used its launches up, and what to do."""
    if all(vm.provider_id is None for vm in state.vms):
        return f"were asked for, and the cloud gave none: submit again later; {limit} are allowed"
    if is_preempted(state):
        taken = f"the clouds took {len(taken_machines(state))} of them back"
        advice = "submit again later, or name another zone, or machine.market: on_demand"
        return f"were needed where {limit} are allowed: {taken}; {advice}"
    return (
        f"were needed where {limit} are allowed: workers keep dying; read the events for how each "
        "ended"
    )


def is_released(state: JobState, worker: WorkerRow | None) -> bool:
    """Whether training goes on without a worker or has ended well, so its exit code is ignored."""
    if worker is None or worker.finished is None:
        return False
    return worker != state.leader or worker.finished == "released"


def has_leader_finished(state: JobState) -> bool:
    """Whether the leader has said that training ended."""
    leader = state.leader
    return leader is not None and leader.finished in ("target", "exhausted")


def counted(number: int, thing: str) -> str:
    """Write a number of things.

    >>> counted(2, "machine")
    '2 machines'
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def has_any_member_finished(state: JobState) -> bool:
    """Whether a member has reached the end of training, as the leader is about to say too."""
    return any(w.finished in ("target", "exhausted") for w in state.member_workers)


def complete_reason(state: JobState, end: Finish) -> Finish:
    """Complete the reason a job ends with: what to do, unless it has diverged, which says more."""
    found = current_divergence(state)
    if found is None:
        return replace(end, why=f"{end.why}; {end.remedy}" if end.remedy else end.why, remedy="")
    has_diverged = end.phase in (JobPhase.FAILED, JobPhase.CAPPED)
    advice = f"; {DIVERGENCE_REMEDY}" if has_diverged else ""
    under = "\n" if "\n" in end.why else "; "  # the last lines of a script are no sentence
    why = f"{end.why}{under}{found}{advice}"
    return replace(end, why=why, remedy="", has_diverged=has_diverged)
