"""Parameter servers: machines that serve the workers, from the first of them to the end.

They are no members and count for no configuration. Without one of them a generation cannot go on.
"""

from __future__ import annotations

from scavenger.protocol import Directive
from scavenger.view import Phase
from service.reconciler.action import Action, Finish, Launch, Publish, Rest, Terminate
from service.reconciler.deadline import BOOT, is_late
from service.reconciler.ending import count
from service.reconciler.snapshot import Snapshot
from service.reconciler.succession import follow, shrink, survivors_of


def replace_servers(snapshot: Snapshot, directive: Directive) -> Action | None:
    """Servers were lost: new ones take their shards, and the workers hand them what they hold."""
    missing = missing_servers(snapshot)
    if missing:
        return launch_servers(snapshot, missing)
    if not are_ready(snapshot):
        return end_late_servers(snapshot) or Rest("waiting for the parameter servers to boot")
    survivors = survivors_of(snapshot, directive)
    if not survivors:
        return None
    config = shrink(snapshot, directive.config, len(survivors))
    lost = ", ".join(snapshot.lost_servers)
    why = f"lost {lost}: the workers go on with {config} and other servers"
    return Publish(follow(snapshot, config, survivors, why, repairs=True), why)


def launch_servers(snapshot: Snapshot, missing: int) -> Action:
    """Launch servers, or end the job: without them no worker can go on."""
    if snapshot.affords(0, missing):
        instead = f"{count(missing, 'server')} instead of {', '.join(snapshot.lost_servers)}"
        return Launch(0, instead, missing)
    why = f"max_cost leaves no room for {count(missing, 'more server')}"
    return Finish(Phase.CAPPED, f"{why}; raise limits.max_cost and submit again")


def end_late_servers(snapshot: Snapshot) -> Action | None:
    """End servers that have existed for longer than any boot takes and never said hello."""
    late = tuple(vm.id for vm in snapshot.servers if is_late(snapshot, vm))
    return Terminate(late, f"{', '.join(late)} did not say hello in {BOOT.after}") if late else None


def silent_servers(snapshot: Snapshot) -> tuple[str, ...]:
    """Servers that have stopped speaking while a worker still does; some never speak at all."""
    if all(snapshot.is_silent(member) for member in snapshot.members):
        return ()
    greeted = [(vm.id, snapshot.worker(vm.id)) for vm in snapshot.servers]
    return tuple(
        server
        for server, agent in greeted
        if agent is not None and agent.seen_at > agent.hello_at and snapshot.is_silent(server)
    )


def missing_servers(snapshot: Snapshot) -> int:
    """Return how many servers the job lacks."""
    return snapshot.job.spec.strategy.servers - len(snapshot.servers)


def are_ready(snapshot: Snapshot) -> bool:
    """Whether all servers of the job have said hello."""
    return len(snapshot.serving) >= snapshot.job.spec.strategy.servers
