"""Oracle: what must be true of a world whose controllers were killed, beside one where none was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from sqlalchemy import func, select

from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.db import schema
from service.db.vms import Vm
from tests.builders import NOW
from tests.crash.world import World
from tests.fakecloud.cloud import Truth

LONGEST = 60.0  # RELIABILITY, P4
EXACTLY = Decimal("1e-9")  # dollars; bills are sums of floats
ONCE = (
    *("launch", "probe", "choice", "resize", "order", "succeeded", "cancelled", "failed"),
    *("vm_gone", "layouts"),
)

# A controller that died between a refusal and its row cannot know that there is no machine.
UNSEEN = ("never_seen", "never_asked")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a story comes to, whenever its controllers died.

    Attributes:
        machines: How many were launched for the job.
        said: How often each thing that happens once was said.
        lessons: How many jobs the stored models count.
        orders: What became of each order.
        end: When it was over.
    """

    phase: JobPhase
    reason: str
    machines: int
    said: Mapping[str, int]
    lessons: int
    orders: tuple[tuple[int, str, str], ...]
    end: float


def facts_of(world: World) -> Facts:
    """Return what the story of a world came to."""
    job = world.job()
    said = Counter(
        event.kind
        for event in world.said()
        if event.kind in ONCE and event.data.get("reason") not in UNSEEN
    )
    with world.engine.connect() as connection:
        lessons = connection.execute(select(func.sum(schema.models.c.jobs))).scalar()
    return Facts(
        job.phase,
        job.reason,
        len(world.ours()),
        dict(said),
        lessons or 0,
        tuple((order.number, order.kind, order.state) for order in world.ordered()),
        world.clock.now(),
    )


def objections(world: World, plain: Facts) -> Iterator[str]:
    """Say everything that is wrong at the end of a world, beside the plain story."""
    yield from world.complaints
    if world.agents.processes is not None:
        yield from world.agents.processes.mishaps
    found = facts_of(world)
    if not world.is_told():
        yield f"it has not converged after {found.end - plain.end:.0f} s"
    if found.end - plain.end > LONGEST + world.proof:
        yield f"it took {found.end - plain.end:.0f} s longer"
    if (found.phase, found.reason) != (plain.phase, plain.reason):
        yield f"the job ended {found.phase} ({found.reason}), not {plain.phase} ({plain.reason})"
    is_enough = world.scenario.may_be_shorter and found.machines < plain.machines
    if found.machines != plain.machines and not is_enough:
        yield f"{found.machines} machines were launched, where {plain.machines} are needed"
    if found.said != plain.said and not is_enough:
        yield f"said {found.said}, where the story has {plain.said}"
    if found.lessons != plain.lessons:
        yield f"{found.lessons} jobs were learned from, not {plain.lessons}"
    if found.orders != plain.orders:
        yield f"the orders came to {found.orders}, not {plain.orders}"
    if world.cloud.faults.unfired():
        yield f"never went wrong: {world.cloud.faults.unfired()}"
    yield from strays(world)
    yield from wrong_books(world)


def strays(world: World) -> Iterator[str]:
    """Say which machines are unknown, known twice, or still there."""
    rows = {vm.launch_key: vm for vm in world.rows()}
    yield from twins(world)
    for truth in world.ours():
        machine, vm = truth.description, rows.get(world.key_of(truth))
        if vm is None:
            yield f"{machine.id} was launched and not intended"
        elif vm.provider_id not in (None, world.habits.provider_id(machine.id)):
            yield f"{machine.id} is known as {vm.provider_id}"
        if truth.gone_at is None:
            yield f"{machine.id} still is {machine.state}"
    for vm in rows.values():
        if vm.state != "gone":
            yield f"{vm.id} is left {vm.state}"
    gone = {one.description.id for one in world.cloud.machines() if one.gone_at is not None}
    if gone & set(world.foreign):
        yield f"machines of others were ended: {gone & set(world.foreign)}"
    if world.orphans_alive():
        yield f"no controller ended {world.orphans_alive()}"


def twins(world: World) -> Iterator[str]:
    """Say which launch keys had two machines, at once where a name is free again."""
    latest: dict[str, Truth] = {}
    for truth in world.ours():  # in the order of their launch
        before = latest.get(truth.description.token)
        latest[truth.description.token] = truth
        if before is None:
            continue
        is_after = before.gone_at is not None and before.gone_at <= truth.created_at
        if not (world.cloud.settings.are_tokens_free_again and is_after):
            yield f"two machines for one launch key: {truth.description.token}"


def wrong_books(world: World) -> Iterator[str]:
    """Say where the cloud's bill and ours differ by more than the seconds that are not seen."""
    cap, now = world.spec.limits.max_cost, world.now
    rows = {vm.launch_key: vm for vm in world.rows()}
    ours = {truth.description.id for truth in world.ours()}
    lines = [line for line in world.bill().lines if line.machine in ours]
    billed = sum((Decimal(line.dollars) for line in lines), Decimal(0))
    machines = tuple(rows.values())
    booked, committed = ledger.accrued(machines, now), ledger.committed(machines)
    if cap is not None and max(billed, booked, committed) > cap + EXACTLY:
        yield f"${billed} billed, ${booked} booked, ${committed} committed, of ${cap}"
    for line in lines:
        vm = rows.get(world.habits.launch_key(line.token))
        if vm is not None:
            # Where a name is free again, an ask without an answer may still make another machine.
            late = timedelta(seconds=world.proof if vm.open_asks > 1 else 0.0)
            yield from wrong_entry(vm, Decimal(line.dollars), now - NOW, world.unseen + late)


def wrong_entry(vm: Vm, billed: Decimal, now: timedelta, unseen: timedelta) -> Iterator[str]:
    """Say whether a machine is booked below its bill, or far above it."""
    booked = vm.cost(NOW + now)
    most = billed + vm.terms.price_of(unseen)
    if vm.market == "spot":
        most = booked  # at the on-demand price until the price is looked up
    if not billed - EXACTLY <= booked <= most + EXACTLY:
        yield f"{vm.id} is billed ${billed:.6f} and booked ${booked:.6f}, at most ${most:.6f}"
