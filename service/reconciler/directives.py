"""Compose the next Directive: configuration, members, servers, and whose state is taken over."""

from __future__ import annotations

import math
from dataclasses import replace

from scavenger.cluster import ClusterConfig
from scavenger.planning.decision import progress_per_iteration
from scavenger.protocol import Directive, Member
from scavenger.stack import Stack
from service.state.job_state import JobState

TRAIN_SPLIT_EVERY = 25


def next_directive(
    state: JobState,
    config: ClusterConfig,
    members: tuple[Member, ...],
    why: str,
    *,
    repairs: bool = False,
) -> Directive:
    """Compose the Directive that comes after the newest one, for training."""
    knowledge, directive = state.knowledge, state.directive
    is_settled = state.job.chosen is not None or knowledge.is_noise_known
    strategy = state.job.spec.strategy
    return Directive(
        generation=1 if directive is None else directive.generation + 1,
        config=config,
        members=members,
        purpose="train",
        progress_per_iteration=progress_per_iteration(knowledge, config),
        learning_rate=state.job.spec.learning_rate_scaling,
        stop=state.job.spec.stop_rule,
        split_every=TRAIN_SPLIT_EVERY,
        report_after=0,
        why=why,
        repairs=repairs,
        fence=0 if directive is None else directive.fence,
        strategy=strategy.name,
        servers=choose_servers(state) if strategy.servers else (),
        exchange=strategy.exchange,
        lbfgs=strategy.lbfgs,
        handover=None if repairs else handover_source(state),
        most_local_batch=most_local_batch(state, config.stack),
        is_provisional=not is_settled,
        correction=progress_correction(state) if is_settled else 1.0,
        nan_guard=state.job.spec.nan_guard == "on",
        layout=layout_of_workers(state, config),
        restarts=is_layout_changing(state, config),
    )


def layout_of_workers(state: JobState, config: ClusterConfig) -> str:
    """Return how processes share the model, for workers to compare; empty if that never changes."""
    if state.job.spec.limits.layout_search is None:
        return ""
    return str(Stack.parse(config.stack).layout)


def layout_objection(state: JobState, config: ClusterConfig) -> str | None:
    """Say why the job does without the layout of a configuration; None where it does not."""
    layout = Stack.parse(config.stack).layout
    why = state.refused_layouts.get(layout)
    return None if why is None else f"the job does without {layout}: {why}"


def in_usable_layout(state: JobState, config: ClusterConfig) -> ClusterConfig:
    """Return a configuration with the layout that the job trained in, or the one it begins with."""
    trained, usable = state.trained_layout, state.knowledge.space.stacks
    found = next((option for option in usable if str(option.layout) == trained), usable[0])
    return replace(config, stack=found.name)


def is_layout_changing(state: JobState, config: ClusterConfig) -> bool:
    """Whether the workers have to start again before they can train in a configuration.

    That they had to for the Directive before holds as long as none of them has entered it.
    """
    before, layout = state.directive, layout_of_workers(state, config)
    if before is None or "" in (before.layout, layout):
        return False
    entered = [worker.generation >= before.generation for worker in state.member_workers]
    return before.layout != layout or (before.restarts and not any(entered))


def progress_correction(state: JobState) -> float:
    """Return the factor on what was counted as progress before the noise had settled.

    It is repeated in every Directive from then on: a worker may go back to an old checkpoint.
    """
    directive = state.directive
    if directive is None or not directive.is_provisional:
        return 1.0 if directive is None else directive.correction
    counted = directive.progress_per_iteration
    return progress_per_iteration(state.knowledge, directive.config) / counted


def handover_source(state: JobState) -> Member | None:
    """Return the leader whose state the next generation takes over, if it still lives."""
    directive = state.directive
    if directive is None or directive.members[0].worker in state.departed_members:
        return None
    return directive.members[0]


def most_local_batch(state: JobState, stack: str) -> int | None:
    """Samples that a worker's memory holds with a stack; None when that is not known."""
    most = state.knowledge.space.most_local_batch_with(stack)
    return None if math.isinf(most) else int(most)


def surviving_members(state: JobState, directive: Directive) -> tuple[Member, ...]:
    """Return the members that neither died nor were told to leave, in rank order.

    Those whose process was started again come last, at their new addresses, once they are up. Where
    the others are newcomers without a state, ranks stay as they are: the leader has the checkpoint.
    """
    again = state.restarted_members
    stayed = tuple(
        member for member in directive.members if member.worker not in state.departed_members
    )
    back = {worker.worker: worker for worker in state.ready_workers if worker.worker in again}
    found = {name: Member(name, worker.address) for name, worker in back.items()}
    returned = tuple(found[each.worker] for each in directive.members if each.worker in found)
    if any(has_state(state, member.worker) for member in stayed):
        return (*stayed, *returned)
    rank = {member.worker: place for place, member in enumerate(directive.members)}
    return tuple(sorted((*stayed, *returned), key=lambda member: rank[member.worker]))


def has_state(state: JobState, worker: str) -> bool:
    """Whether a worker has trained in some generation since its process began."""
    known = state.worker(worker)
    return known is not None and known.generation > 0


def choose_members(state: JobState, workers: int) -> tuple[Member, ...]:
    """Keep ranks where they are and append newcomers, so that the leader stays the leader."""
    ready = {worker.worker: worker for worker in state.ready_workers}
    order = [m for m in state.member_ids if m in ready]
    order += [w for w in ready if w not in order]
    return tuple(Member(w, ready[w].address) for w in order[:workers])


def choose_servers(state: JobState) -> tuple[Member, ...]:
    """Keep servers at their shards, and seat newcomers where one is missing.

    Raises:
        ValueError: Fewer are there than the job needs: wait for them first.
    """
    serving = {member.worker: member for member in state.ready_servers}
    servers = () if state.directive is None else state.directive.servers
    needed = state.job.spec.strategy.servers
    if len(serving) < needed:
        raise ValueError(f"{len(serving)} of {needed} servers are there")
    seats = [serving.pop(member.worker, None) for member in servers] or [None] * needed
    spare = iter(serving.values())
    return tuple(seat or next(spare) for seat in seats)


def shrink_config(state: JobState, config: ClusterConfig, workers: int) -> ClusterConfig:
    """Return a configuration for fewer workers, none of which gets more than its memory holds."""
    most = state.knowledge.space.most_local_batch_with(config.stack)
    batch = int(min(config.global_batch, workers * most))
    return replace(config, workers=workers, global_batch=max(batch, workers))
