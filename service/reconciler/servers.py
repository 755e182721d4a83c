"""Parameter servers: machines that hold the weights for the workers until the job ends.

Servers are not members and do not count as workers. A generation cannot go on while one of them is
missing.
"""

from __future__ import annotations

from scavenger.protocol import Directive
from scavenger.schemas.jobs import JobPhase
from service.reconciler.actions import (
    Action,
    Blocked,
    Finish,
    Idle,
    Launch,
    PublishDirective,
    Terminate,
)
from service.reconciler.directives import next_directive, shrink_config, surviving_members
from service.reconciler.endings import counted
from service.reconciler.places import next_offer, shortage_reason
from service.reconciler.timeouts import BOOT_TIMEOUT, is_boot_late
from service.state.job_state import JobState


def replace_servers(state: JobState, directive: Directive) -> Action | None:
    """Servers were lost: new ones take their shards, and the workers hand them what they hold."""
    missing = missing_servers(state)
    if missing:
        return launch_servers(state, missing)
    if not are_servers_ready(state):
        return end_late_servers(state) or Idle("waiting for the parameter servers to boot")
    survivors = surviving_members(state, directive)
    if not survivors:
        return None
    config = shrink_config(state, directive.config, len(survivors))
    lost = ", ".join(state.lost_servers)
    why = f"lost {lost}: the workers go on with {config} and other servers"
    return PublishDirective(next_directive(state, config, survivors, why, repairs=True), why)


def launch_servers(state: JobState, missing: int) -> Action:
    """Launch servers, or end the job: without them no worker can go on."""
    if state.can_afford(0, missing):
        if (offer := next_offer(state, missing)) is None:
            return Blocked(shortage_reason(state))
        instead = f"{counted(missing, 'server')} instead of {', '.join(state.lost_servers)}"
        return Launch(0, offer, instead, missing)
    why = f"max_cost leaves no room for {counted(missing, 'more server')}"
    return Finish(JobPhase.CAPPED, f"{why}; raise limits.max_cost and submit again")


def end_late_servers(state: JobState) -> Action | None:
    """End servers that have existed for longer than any boot takes and never said hello."""
    late = tuple(vm.id for vm in state.servers if is_boot_late(state, vm))
    return (
        Terminate(late, f"{', '.join(late)} did not say hello in {BOOT_TIMEOUT.limit}")
        if late
        else None
    )


def stuck_servers(state: JobState) -> tuple[str, ...]:
    """Servers that have stopped speaking while a worker still does; some never speak at all."""
    if all(state.is_silent(member) for member in state.member_ids):
        return ()
    greeted = [(vm.id, state.worker(vm.id)) for vm in state.servers]
    return tuple(
        server
        for server, agent in greeted
        if agent is not None and agent.seen_at > agent.hello_at and state.is_silent(server)
    )


def missing_servers(state: JobState) -> int:
    """Return how many servers the job lacks, those that their clouds take back among them."""
    staying = [vm for vm in state.servers if vm.warned_at is None]
    return state.job.spec.strategy.servers - len(staying)


def are_servers_ready(state: JobState) -> bool:
    """Whether all servers of the job have said hello."""
    return len(state.ready_servers) >= state.job.spec.strategy.servers
