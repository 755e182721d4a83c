"""Whether an order can be obeyed: the API asks before it stores one, and a tick before it obeys.

Time passes in between, and machines cost money meanwhile, so both judge by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Literal, assert_never

from scavenger.cluster import ClusterConfig
from scavenger.job.fields import format_duration, format_money
from scavenger.planning.replanning import preview_rest
from scavenger.schemas.orders import (
    ChangeWish,
    GridPoint,
    PauseWish,
    ProbeWish,
    ResizeWish,
    ResumeWish,
    Wish,
)
from scavenger.stack import EAGER_NAME
from service import ledger
from service.db.jobs import StoredJob
from service.state.job_state import JobState

CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class OrderObjection:
    """Why an order cannot be obeyed.

    Attributes:
        about: The job, which is in no state for it, or the wish, which can never be met like this.
        why: What is wrong, and what to do.
        field: The field of the wish that is wrong, as a dotted path.
    """

    about: Literal["job", "wish"]
    why: str
    field: str = ""


def find_objection(
    state: JobState, wish: Wish, checkpoints: str | None = None
) -> OrderObjection | None:
    """Return why an order cannot be obeyed now; None if it can.

    Args:
        state: The job.
        wish: What is asked for.
        checkpoints: Where its checkpoints outlive its machines; None where they do not.
    """
    if (over := over_objection(state.job)) is not None:
        return over
    match wish:
        case ResizeWish() | ProbeWish():
            return resize_objection(state) or target_objection(state, wish)
        case PauseWish():
            return pause_objection(state, checkpoints)
        case ResumeWish():
            return resume_objection(state)
        case ChangeWish():
            return change_objection(state, wish)
        case _:
            assert_never(wish)


def over_objection(job: StoredJob) -> OrderObjection | None:
    """Return why a job takes no order any more; None if it does."""
    if job.phase.is_final:
        return OrderObjection("job", f"{job.id} has ended already: {job.phase}")
    if job.cancel_requested_at is not None:
        return OrderObjection("job", f"{job.id} is being cancelled")
    return None


def resize_objection(state: JobState) -> OrderObjection | None:
    """Return why a job is never resized; None if it may be."""
    spec = state.job.spec
    if not spec.strategy.is_searched:
        why = f"{spec.strategy.name} trains on one configuration: submit the job again with another"
        return OrderObjection("wish", why)
    if spec.level != "control":
        why = f"the job's level is {spec.level}, so it is never resized: submit it again with level"
        return OrderObjection("job", f"{why}: control")
    return None


def target_objection(state: JobState, wish: ResizeWish | ProbeWish) -> OrderObjection | None:
    """Return why a job cannot move to the configuration that is asked for."""
    if isinstance(wish, ProbeWish):
        if state.standing.is_paused:
            why = "the job is paused: resume it first, then order the probe"
            return OrderObjection("job", why)
        return config_objection(state, wish, "")
    if isinstance(wish.to, GridPoint):
        return config_objection(state, wish.to, "to") or forecast_objection(state, wish.to.config)
    return None


def config_objection(state: JobState, point: GridPoint, field: str) -> OrderObjection | None:
    """Return why a configuration is none of the job's, or more than its money pays."""
    space = state.knowledge.space  # without stacks that its workers have refused
    name = point.stack or EAGER_NAME
    stack = "" if name == EAGER_NAME else f" {name}"
    named = f"K={point.workers} B={point.global_batch}{stack}"
    if point.global_batch < point.workers or point.config not in space:
        near = nearest(point, space)
        why = f"{named} is not among the configurations that the limits allow"
        usable = [each.name for each in space.stacks]
        if name not in usable:
            why = f"the job cannot use the stack {name}, but {', '.join(usable)}"
        is_on_grid = point.workers in space.workers and point.global_batch in space.global_batches
        if is_on_grid and name in usable:
            part = -(-point.global_batch // point.workers)
            why = f"{named} does not fit limits.memory, with {part} samples a worker"
        return OrderObjection("wish", f"{why}: the nearest is {near}", field)
    if is_affordable(state, point.config):
        return None
    paid = [config for config in space if is_affordable(state, config)]
    instead = f"the nearest that it pays is {nearest(point, paid)}" if paid else "raise it first"
    why = f"max_cost leaves no room for the machines of {named}: {instead}"
    return OrderObjection("wish", why, field)


def nearest(point: GridPoint, configs: Iterable[ClusterConfig]) -> ClusterConfig:
    """Return the configuration that differs least, in doublings of workers and of batch.

    One with the same stack is nearer than any other.

    >>> wanted = GridPoint(workers=3, global_batch=100)
    >>> str(nearest(wanted, [ClusterConfig(1, 96), ClusterConfig(4, 96)]))
    'K=4 B=96'
    """
    name = point.stack or EAGER_NAME

    def distance(config: ClusterConfig) -> tuple[bool, float]:
        workers, batch = config.workers / point.workers, config.global_batch / point.global_batch
        return config.stack != name, abs(math.log2(workers)) + abs(math.log2(batch))

    return min(configs, key=lambda config: (distance(config), config))


def is_affordable(state: JobState, config: ClusterConfig) -> bool:
    """Whether the cap pays for the machines that a configuration needs besides those there are."""
    servers = max(state.job.spec.strategy.servers - len(state.servers), 0)
    workers = max(config.workers - len(state.unfinished_worker_vms), 0)
    return not (workers or servers) or state.can_afford(workers, servers)


def forecast_objection(state: JobState, config: ClusterConfig) -> OrderObjection | None:
    """Return by how much a configuration would pass the cap; None where it should not.

    Where every configuration is expected to pass it, none is refused: the cap ends the job. Nor is
    one whose stack was not measured: nothing tells what it costs.
    """
    left = state.what_is_left
    if left.money is None or left.epochs is None or left.is_over:
        return None
    preview = preview_rest(state.knowledge, left)
    if preview is None or preview.curve.basis != "total":
        return None
    costs = {point.config: point.cost for point in preview.curve.points}
    within = [each for each, cost in costs.items() if cost <= left.money]
    if config not in costs or config in within or not within:
        return None
    wanted = GridPoint(workers=config.workers, global_batch=config.global_batch, stack=config.stack)
    near = nearest(wanted, within)
    why = (
        f"{config} is expected to cost ${costs[config]:.2f} more, and max_cost leaves "
        f"${left.money:.2f}: the nearest within it is {near}"
    )
    return OrderObjection("wish", why, "to")


def pause_objection(state: JobState, checkpoints: str | None) -> OrderObjection | None:
    """Return why a job cannot be paused."""
    strategy = state.job.spec.strategy
    if state.standing.is_paused:
        return OrderObjection("job", "the job is paused already")
    if strategy.servers:
        why = f"{strategy.name} keeps its state on servers, which a pause would end: let it train"
        return OrderObjection("wish", f"{why}, or cancel it")
    if checkpoints is None:
        why = (
            "its checkpoints end with its machines, so that training would start over: submit it "
            "with run.checkpoints.directory on storage that all machines reach, or name a bucket "
            "in the clouds file"
        )
        return OrderObjection("job", why)
    return None


def resume_objection(state: JobState) -> OrderObjection | None:
    """Return why a job cannot be resumed."""
    if not state.standing.is_paused:
        return OrderObjection("job", "the job is not paused")
    return money_for_resume_objection(state)


def money_for_resume_objection(state: JobState) -> OrderObjection | None:
    """Return what a job lacks that has no machine and is to get one."""
    if state.unfinished_worker_vms or state.can_afford(1, 0):
        return None
    why = "max_cost leaves no room for a machine: raise it first with PATCH, then resume the job"
    return OrderObjection("wish", why)


def change_objection(state: JobState, change: ChangeWish) -> OrderObjection | None:
    """Return why limits or objective cannot be changed like this."""
    given, limits = change.subjects, change.limits
    if "objective" in given and not state.job.spec.strategy.is_searched:
        name = state.job.spec.strategy.name
        why = f"{name} trains on one configuration, so there is nothing to choose"
        return OrderObjection("wish", why, "objective")
    least = ledger.committed(state.vms)
    if "max_cost" in given and limits.max_cost is not None and limits.max_cost < least:
        why = (
            f"{format_money(limits.max_cost)} is less than what is spent and reserved by now: "
            f"write at least {format_money(least.quantize(CENT, ROUND_CEILING))}"
        )
        return OrderObjection("wish", why, "limits.max_cost")
    if "max_time" in given and limits.max_time is not None and limits.max_time <= state.elapsed:
        why = (
            f"the job has taken {format_duration(state.elapsed)} by now: write a max_time above "
            f"{math.ceil(state.elapsed)}s"
        )
        return OrderObjection("wish", why, "limits.max_time")
    return None
