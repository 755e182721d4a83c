"""How a job ends: by wish, by a limit, by itself or by failure, and that no machine stays."""

from __future__ import annotations

from decimal import Decimal

from scavenger.protocol import StopAtMetric, StopRule
from scavenger.view import Phase
from service import ledger
from service.db.vms import Vm
from service.db.workers import Worker
from service.reconciler.action import Action, Finish, Rest, Terminate
from service.reconciler.deadline import COMMAND
from service.reconciler.divergence import since
from service.reconciler.snapshot import Snapshot

TAIL_LINES = 5


def clean_up(snapshot: Snapshot) -> Action:
    """After the end: no machine stays."""
    alive = [vm for vm in snapshot.vms if vm.is_alive]
    untold = tuple(vm.id for vm in alive if vm.state != "ending")
    if untold:
        return Terminate(untold, f"job {snapshot.job.phase}: {count(len(untold), 'machine')} left")
    if alive:
        return Rest(f"job {snapshot.job.phase}: {count(len(alive), 'machine')} still ending")
    return Rest(f"job {snapshot.job.phase}")


def end_by_wish(snapshot: Snapshot) -> Action | None:
    """The user asked for the end."""
    if snapshot.job.cancel_requested_at is None:
        return None
    return Finish(Phase.CANCELLED, "cancelled on request")


def end_by_limit(snapshot: Snapshot) -> Action | None:
    """The cap leaves no time, or the time is over."""
    limits = snapshot.job.spec.limits
    if limits.max_time is not None and snapshot.elapsed >= limits.max_time:
        took = f"max_time reached after {snapshot.elapsed:.0f} s"
        return Finish(Phase.CAPPED, took, remedy="raise limits.max_time and submit again")
    cap = limits.max_cost
    if cap is None or not is_spent(snapshot, cap):
        return None
    return Finish(
        Phase.CAPPED,
        f"max_cost reached: ${snapshot.accrued:.4f} of ${cap:.4f} spent, and the rest pays for no "
        "further second",
        remedy="raise limits.max_cost and submit again",
    )


def is_spent(snapshot: Snapshot, cap: Decimal) -> bool:
    """Whether the money left would not pay the machines until they could be stopped."""
    if not any(vm.price_per_hour for vm in snapshot.vms if vm.is_alive):
        return not snapshot.affords(1, 0)
    return ledger.accrued(snapshot.vms, snapshot.now + ledger.GRACE) > cap


def end_by_itself(snapshot: Snapshot) -> Action | None:
    """The leader's command has ended well, or does not end although training is done."""
    leader = snapshot.leader
    if leader is None or leader.finished == "released":
        return None
    vm = machine(snapshot, leader.worker)
    is_overdue = leader.finished is not None and COMMAND.is_over(
        snapshot.audible(leader.seen_at), snapshot.now
    )
    is_running = vm.is_alive and vm.exit_code is None and not is_overdue
    has_failed = vm.exit_code is not None and vm.exit_code > 0
    if is_running or has_failed or (leader.finished is None and vm.exit_code != 0):
        return None
    return verdict(snapshot, leader)


def verdict(snapshot: Snapshot, leader: Worker) -> Finish:
    """Judge a command that ended well by what its session said, or by what it logged last."""
    stop, words = snapshot.job.spec.stop_rule, snapshot.job.spec.target_in_words
    value = leader.metrics.get(stop.metric) if isinstance(stop, StopAtMetric) else None
    achieved = "" if value is None else f"; the last value was {value:.4g}"
    done = f"{leader.epochs:.2f} reference epochs and {leader.iteration} iterations{achieved}"
    if leader.finished == "target" or is_reached(leader, stop):
        return Finish(Phase.SUCCEEDED, f"target {words} reached after {done}", 0, leader.epochs)
    advice = "raise target.max_epochs or lower the goal"
    if isinstance(stop, StopAtMetric) and value is None and stop.metric not in leader.not_finite:
        advice = f"no {stop.metric} was ever seen: call job.log({stop.metric}=...) in the session"
    why = f"the command ended without reaching {words} after {done}"
    return Finish(Phase.FAILED, why, 0, remedy=advice)


def is_reached(leader: Worker, stop: StopRule) -> bool:
    """Whether what was logged last reaches the goal; what is no number by now does not."""
    if not isinstance(stop, StopAtMetric) or since(leader, stop.metric) is not None:
        return False
    value = leader.metrics.get(stop.metric)
    return value is not None and stop.reached(value)


def end_by_failure(snapshot: Snapshot) -> Action | None:
    """A member's command failed by itself; a signal is the machine's loss, not the script's.

    A parameter server runs no script of the user's: one that ends is lost, and replaced.
    """
    for vm in (vm for vm in snapshot.vms if vm.role == "worker"):
        worker = snapshot.worker(vm.id)
        if vm.exit_code == 0 and worker is None:
            return Finish(
                Phase.FAILED,
                f"the command on {vm.id} ended without taking part; does the script open "
                "worker_agent.session() and go through job.batches()?",
                0,
            )
        if vm.exit_code is None or vm.exit_code <= 0 or is_released(snapshot, worker):
            continue
        tail = "\n".join(vm.tail.splitlines()[-TAIL_LINES:])
        why = f"{vm.id} exited with code {vm.exit_code}; its last lines:\n{tail}"
        return Finish(Phase.FAILED, why, vm.exit_code)
    limit = most_launches(snapshot)
    if len(snapshot.vms) > limit:
        return Finish(Phase.FAILED, f"{len(snapshot.vms)} machines {why_so_many(snapshot, limit)}")
    return None


def why_so_many(snapshot: Snapshot, limit: int) -> str:
    """Say why a job used its launches up, and what to do."""
    if all(vm.provider_id is None for vm in snapshot.vms):
        return f"were asked for, and the cloud gave none: submit again later; {limit} are allowed"
    return (
        f"were needed where {limit} are allowed: workers keep dying; read the events for how each "
        "ended"
    )


def most_launches(snapshot: Snapshot) -> int:
    """Launches a job may use: an adversary that kills every machine must not empty a purse."""
    spec = snapshot.job.spec
    return 4 * (spec.space.workers[-1] + spec.strategy.servers) + 8


def is_released(snapshot: Snapshot, worker: Worker | None) -> bool:
    """Whether training goes on without a worker, or has ended well, whatever its exit code."""
    if worker is None or worker.finished is None:
        return False
    return worker != snapshot.leader or worker.finished == "released"


def is_done(snapshot: Snapshot) -> bool:
    """Whether the leader has said that training ended."""
    leader = snapshot.leader
    return leader is not None and leader.finished in ("target", "exhausted")


def machine(snapshot: Snapshot, worker: str) -> Vm:
    """Return the machine a worker runs on."""
    return next(vm for vm in snapshot.vms if vm.id == worker)


def count(number: int, thing: str) -> str:
    """Write a number of things.

    >>> count(2, "machine")
    '2 machines'
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def is_ending(snapshot: Snapshot) -> bool:
    """Whether a member has reached the end of training, as the leader is about to say too."""
    members = [snapshot.worker(member) for member in snapshot.members]
    return any(w is not None and w.finished in ("target", "exhausted") for w in members)
