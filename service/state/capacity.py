"""What clouds gave a job, and what they took back: how many launches it has, and what it lacks."""

from __future__ import annotations

from scavenger.schemas.jobs import JobPhase
from service.db.vms import Vm
from service.errors import MachineTypeUnsold, OutOfCapacity, QuotaReached
from service.state.job_state import JobState

# Of refusals that another cloud, another machine type or another hour may mend.
SHORTAGE_LABELS = frozenset(each.label for each in (OutOfCapacity, MachineTypeUnsold, QuotaReached))


def lacks_capacity(state: JobState) -> bool:
    """Tell whether a job has no machine, or had none at its end, since the clouds gave none.

    What they answered last counts, and what they took back is not given. A job whose command
    failed had machines.
    """
    job = state.job
    if job.phase in (JobPhase.SUCCEEDED, JobPhase.CANCELLED) or job.worker_exit_code is not None:
        return False
    if job.phase is JobPhase.FAILED and is_preempted(state):
        return True
    given = [vm for vm in state.vms if vm.provider_id is not None]
    end = job.finished_at or state.now
    if any(vm.is_alive or (vm.ended_at is not None and vm.ended_at >= end) for vm in given):
        return False
    answered = [vm for vm in state.vms if vm.provider_id or vm.refusal_label]
    if not answered:
        # Machines that the cloud accepted and never showed, until the job gave up.
        return job.phase is JobPhase.FAILED and bool(state.vms)
    was_taken = job.phase is JobPhase.CAPPED and answered[-1].warned_at is not None
    return was_taken or answered[-1].refusal_label in SHORTAGE_LABELS


def is_preempted(state: JobState) -> bool:
    """Tell whether clouds took back most of the machines that a job may launch."""
    return 2 * len(taken_machines(state)) > max_launches(state)


def taken_machines(state: JobState) -> tuple[Vm, ...]:
    """Return the machines that clouds took back before their workers left in order."""
    end = state.job.finished_at or state.now
    return tuple(
        vm
        for vm in state.vms
        if vm.warned_at is not None
        and vm.ended_at is not None
        and vm.ended_at <= end
        and not has_left_in_order(state, vm)
    )


def max_launches(state: JobState) -> int:
    """Return how many machines a job may launch, without those that a cloud refused.

    Without a limit, machines which keep dying could cost without end. Machines whose clouds took
    them back in order do not count: training has got further on each of them. Nor do those that a
    pause has ended.
    """
    spec = state.job.spec
    return 4 * (spec.space.workers[-1] + spec.strategy.servers) + 8


def has_left_in_order(state: JobState, vm: Vm) -> bool:
    """Whether the worker of a machine had trained, and left because of a notice."""
    worker = state.worker(vm.id)
    has_left = worker is not None and worker.finished == "released" and worker.generation > 0
    return has_left and vm.warned_at is not None
