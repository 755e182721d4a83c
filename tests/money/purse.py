"""Purse: a state machine of everything that may happen to a job's money, and what must stay true.

After every step the cloud's own bill, also the one it would write if all went silent now, is beside
what the ledger says and what the job may cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import Engine

from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from service import ledger
from service.background import PRICE_DELAY
from service.db.vms import Vm
from service.reconciler.actions import Launch
from tests.builders import document
from tests.fakecloud.cloud import Truth
from tests.fakecloud.emulator import Emulator
from tests.fakecloud.faults import (
    Duplicate,
    Fault,
    Garbage,
    Ignored,
    Interrupted,
    LateRequest,
    LostRequest,
    LostResponse,
    Operation,
    Refused,
    Slow,
)
from tests.fakecloud.machine import Market, State
from tests.money import promises
from tests.money.stage import Stage, crash
from tests.money.world import EXACTLY, FOREVER, WISHES, Journey, Manners, World

LONGEST_PAUSE = 1.0  # seconds a tick may be held up; max_boot_seconds has room for it
LEAST_SPARE = 4.0
PATIENCE = 5.0
LAST_STEP = 60
LATEST_COPY = 2.0
YEAR = 3.2e7
MARKETS: tuple[Market, ...] = ("on_demand", "spot")
# What the providers of real clouds promise, and a price that exceeds that of disk and address.
LONGEST_BOOT, LEAST_PRICE = 300.0, Decimal("0.036")

QUANTA = [{}, {"quantum": "1s"}, {"quantum": "1m"}, {"quantum": "1h"}]
SECONDS_OF_MONEY = [20, 61, 76, 130, 700, 1340, 4000, 7200, 20_000, None]
STRATEGIES = [
    {},
    {"strategy": {"parameter_server": {"servers": 2}}},
    {"strategy": {"parameter_server": {"servers": 1, "priced": False}}},
    {"limits": {"layout": {"pipeline": 2, "tensor": 2, "micro_batches": 4}}},
]

manners = st.builds(
    Manners,
    boot=st.sampled_from([0.0, 1.0, 30.0]),
    spare=st.sampled_from([LEAST_SPARE, 60.0]),
    ending=st.sampled_from([0.0, 3.0, 6.0]),
    lag=st.sampled_from([0.0, 5.0, 60.0]),
    seed=st.integers(0, 9),
    minimum=st.sampled_from([0.0, 60.0]),
    zones=st.sampled_from(["a", "ab"]),
)
places = st.integers(0, 3)
controllers = st.integers(0, 1)
spans = st.sampled_from([0.001, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 610.0, 3600.0])
seldom = st.sampled_from([False] * 9 + [True])
wishes = st.sampled_from(WISHES)
trifles = st.sampled_from([-0.001, 0.0, 0.001])

faults = st.sampled_from(
    [LostRequest(), LostResponse(), Garbage(), Slow(PATIENCE), Refused("InternalError")]
)
launch_faults = faults | st.sampled_from(
    [
        *(LateRequest(2.0), LateRequest(60.0), LateRequest(250.0)),
        *(Duplicate(2.0), Duplicate(60.0), Duplicate(250.0)),
        *(Refused("InsufficientInstanceCapacity"), Interrupted(5.0, 10.0)),
    ]
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of one size that is known, or one that is searched.

    Attributes:
        workers: Least and most.
        price: Dollars per hour of a machine.
        seconds: For how long the cap pays for the least, besides their boot; None for no cap.
        strategy: Servers, which cost money, or a layout, which costs nothing besides the workers.
    """

    workers: tuple[int, int]
    price: Decimal
    seconds: int | None
    market: str
    quantum: Mapping[str, str]
    strategy: Mapping[str, Any]

    def spec(self) -> JobSpec:
        """Return its document, for the fake cloud as it is."""
        return validate_job(self._document(self.price, 0.0))

    def rented_spec(self) -> JobSpec:
        """Return its document for a real cloud: without a price where nothing is billed at once."""
        told = self._document(max(self.price, LEAST_PRICE), LONGEST_BOOT)
        if not self.quantum:
            del told["price"]
        return validate_job(told)

    def _document(self, price: Decimal, boot: float) -> dict[str, Any]:
        """Return a document whose cap pays for so many seconds more."""
        least, most = self.workers
        limits: dict[str, object] = {"workers": f"{least}..{most}", "batch": [96]}
        if self.seconds is not None:
            seconds = self.seconds + Decimal(boot)
            limits["max_cost"] = f"{price / 3600 * seconds * least:f} USD"
        others = {**self.strategy}
        return document(
            limits={**limits, **others.pop("limits", {})},
            machine={"market": self.market},
            price={"per_hour": f"{price:f} USD/h", **self.quantum},
            **others,
        )


submissions = st.builds(
    Submission,
    workers=st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 2)]),
    price=st.sampled_from([Decimal("3.6"), Decimal("0.72"), Decimal("0.0000036")]),
    seconds=st.sampled_from(SECONDS_OF_MONEY),
    market=st.sampled_from(["on_demand", "spot", "any"]),
    quantum=st.sampled_from(QUANTA),
    strategy=st.sampled_from(STRATEGIES),
)


def has_machines(purse: Purse) -> bool:
    """Whether the cloud has a machine."""
    return bool(purse.world.machines())


def has_running(purse: Purse) -> bool:
    """Whether an agent runs."""
    states = [truth.description.state for truth in purse.world.machines()]
    return State.RUNNING in states


class Purse(RuleBasedStateMachine):
    """Rules are named for what happens.

    Args:
        emulator: Plays the cloud; None for the fake cloud as it is.
    """

    def __init__(
        self,
        engine: Engine,
        stage: Stage,
        counts: Counter[str] | None = None,
        emulator: Emulator | None = None,
    ) -> None:
        super().__init__()
        self.engine, self.stage, self.emulator = engine, stage, emulator
        self.counts = Counter() if counts is None else counts
        self.world: World | None = None
        self.counts["runs"] += 1

    @initialize(job=submissions, how=manners, faults=st.lists(launch_faults, max_size=8))
    def submit_any(self, job: Submission, how: Manners, faults: list[Fault]) -> None:
        """Submit a job whose first launches may go wrong."""
        if self.emulator is None:
            self.submit(job.spec(), how, faults)
            return
        price = max(job.price, LEAST_PRICE)
        how = replace(how, spare=LONGEST_BOOT - how.boot, price_per_hour=price)
        self.submit(job.rented_spec(), how, faults)

    def submit(self, job: JobSpec, how: Manners, faults: list[Fault]) -> None:
        """Submit a job to a cloud that behaves so."""
        self.world = World(self.engine, self.stage, job, how, self.emulator)
        for fault in faults:
            self.world.cloud.faults.next("launch", self._kept(fault))

    # Controllers.

    @rule(controller=controllers)
    def tick(self, controller: int) -> None:
        self.world.take(controller)
        before = len(self.world.rows())
        action = self.world.tick(controller)
        if isinstance(action, Launch):
            planned, written = action.workers + action.servers, len(self.world.rows()) - before
            assert written == planned, f"{written} machines are launched, planned is {action.why}"

    @rule(controller=controllers)
    def act_under_an_old_lease(self, controller: int) -> None:
        self.world.take(1 - controller)
        before = self.world.written()
        self.world.tick(controller)
        assert self.world.written() == before, "a lease that was lost may write"

    @rule(controller=controllers, step=st.integers(1, LAST_STEP))
    def crash(self, controller: int, step: int) -> None:
        self.world.take(controller)
        with self.stage.interrupted(step, crash):
            self.world.tick(controller)
        self.world.provider.restart()

    @rule(controller=controllers, step=st.integers(1, LAST_STEP), pause=st.sampled_from([0.5, 1.0]))
    def pause(self, controller: int, step: int, pause: float) -> None:
        self.world.take(controller)
        with self.stage.interrupted(step, partial(self.world.clock.advance, pause)):
            self.world.tick(controller)

    @rule(controller=controllers, step=st.integers(1, LAST_STEP), place=places)
    def renew_within_a_tick(self, controller: int, step: int, place: int) -> None:
        self.world.take(controller)
        with self.stage.interrupted(step, lambda: self._renew(place)):
            self.world.tick(controller)

    @rule(controller=controllers, step=st.integers(1, LAST_STEP), cancels=seldom)
    def take_over_within_a_tick(self, controller: int, step: int, cancels: bool) -> None:
        written: list[object] = []

        def take_over() -> None:
            if cancels:
                self.world.cancel()
            self.world.take(1 - controller)
            for _ in range(3):
                self.world.tick(1 - controller)
            written.append(self.world.written())

        self.world.take(controller)
        with self.stage.interrupted(step, take_over):
            self.world.tick(controller)
        if written:
            assert self.world.written() == written[0], "a lease that was lost may write"

    @rule(is_meant=seldom)
    def cancel(self, is_meant: bool) -> None:
        if is_meant:
            self.world.cancel()

    # Users.

    @rule(wish=wishes)
    def order(self, wish: str) -> None:
        self.counts[f"{wish}: {'given' if self.world.order(wish) else 'refused'}"] += 1

    @rule(controller=controllers, step=st.integers(1, LAST_STEP), wish=wishes)
    def order_within_a_tick(self, controller: int, step: int, wish: str) -> None:
        self.world.take(controller)
        with self.stage.interrupted(step, lambda: self.world.order(wish)):
            self.world.tick(controller)

    @precondition(has_running)
    @rule(place=places, wish=wishes)
    def order_while_a_lease_is_renewed(self, place: int, wish: str) -> None:
        self.world.order_and_renew(*self._some(place), wish)

    # Time.

    @rule(seconds=spans)
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(place=places, trifle=trifles, bound=st.sampled_from(["boots", "paid", "gone", "told"]))
    def wait_until_something_happens(self, place: int, trifle: float, bound: str) -> None:
        alive = [vm for vm in self.world.rows() if vm.is_alive]
        if not alive:
            return
        vm = alive[place % len(alive)]
        lag, boot = (
            self.world.provider.traits.max_list_lag_seconds,
            self.world.provider.traits.max_boot_seconds,
        )
        at = {
            "boots": (vm.attempted_at or vm.intended_at) + timedelta(seconds=boot),
            "paid": vm.prepaid_until,
            "gone": vm.prepaid_until + ledger.POWER_OFF_GRACE,
            "told": (vm.missed_at or vm.ordered_at or vm.intended_at) + timedelta(seconds=lag),
        }[bound]
        self.world.clock.advance((at - self.world.clock.moment()).total_seconds() + trifle)

    @rule(trifle=trifles, slice_too=st.booleans())
    def wait_until_the_money_ends(self, trifle: float, slice_too: bool) -> None:
        cap, rows = self.world.cap, self.world.rows()
        rate = sum((vm.price_per_hour for vm in rows if vm.is_alive), Decimal(0))
        if cap is None or not rate:
            return
        left = (cap - ledger.accrued(rows, self.world.clock.moment())) / rate * 3600
        seconds = round(float(left), 3) - ledger.POWER_OFF_GRACE.total_seconds()
        if slice_too:
            seconds -= ledger.RENEWAL_SPAN.total_seconds()
        if seconds < YEAR:
            self.world.clock.advance(seconds + trifle)

    # Machines.

    @precondition(has_running)
    @rule()
    def all_speak(self) -> None:
        for truth, vm in self.world.running():
            self.world.speak(truth, vm)

    @precondition(has_running)
    @rule(place=places)
    def speak(self, place: int) -> None:
        self.world.speak(*self._some(place))

    @precondition(has_running)
    @rule(
        place=places,
        there=st.sampled_from([0.0, 0.5, 20.0]),
        back=st.sampled_from([0.0, 0.5, 20.0]),
        is_lost=st.booleans(),
        ticks=st.tuples(st.booleans(), st.booleans()),
    )
    def renew(
        self, place: int, there: float, back: float, is_lost: bool, ticks: tuple[bool, bool]
    ) -> None:
        truth, vm = self._some(place)
        before, after = (self._tick if does else nothing for does in ticks)
        self.world.renew(truth, vm, Journey(there, back, is_lost, (before, after)))

    @precondition(has_running)
    @rule(back=st.sampled_from([7.0, 20.0]))
    def all_are_answered_late(self, back: float) -> None:
        """The answers arrive, each later than the seconds that a machine has to power off."""
        for place, _ in enumerate(list(self.world.running())):
            truth, vm = self._some(place)
            self.world.renew(truth, vm, Journey(0.0, back, False, (nothing, nothing)))
            if not has_running(self):
                return

    @precondition(has_running)
    @rule()
    def all_renew(self) -> None:
        """Nothing is left to grant when the last was answered, if the cap is near."""
        for place, _ in enumerate(self.world.running()):
            self._renew(place)

    @precondition(has_running)
    @rule(place=places)
    def renew_two_at_once(self, place: int) -> None:
        running = list(self.world.running())
        if len(running) > 1:
            first, second = place % len(running), (place + 1) % len(running)
            self.world.renew_both(running[first], running[second])

    @precondition(has_machines)
    @rule(place=places, notice=st.sampled_from([0.0, 30.0]))
    def interrupt(self, place: int, notice: float) -> None:
        machines = self.world.machines()
        self.world.cloud.interrupt(machines[place % len(machines)].description.id, notice)

    @precondition(has_running)
    @rule(place=places)
    def hear_notice(self, place: int) -> None:
        self.world.hear_notice(self._some(place)[1])

    @precondition(has_running)
    @rule(place=places, is_over=seldom)
    def end_command(self, place: int, is_over: bool) -> None:
        truth, vm = self._some(place)
        self.world.end_command(truth, vm, 1 if is_over else -9)

    # The cloud.

    @rule(operation=st.sampled_from(["list", "terminate"]), fault=faults, times=st.integers(1, 3))
    def go_wrong(self, operation: Operation, fault: Fault, times: int) -> None:
        self.world.cloud.faults.next(operation, fault, None, times)

    @rule(fault=launch_faults)
    def launch_in_vain(self, fault: Fault) -> None:
        self.world.cloud.faults.next("launch", self._kept(fault))

    @rule(place=places)
    def refuse_a_key_for_ever(self, place: int) -> None:
        alive = [vm for vm in self.world.rows() if vm.is_alive]
        if not alive:
            return
        token = self.world.habits.token(alive[place % len(alive)].launch_key)
        self.world.cloud.faults.always("launch", Refused("UnauthorizedOperation"), token)

    @rule(times=st.integers(1, 4))
    def ignore_an_end(self, times: int) -> None:
        self.world.cloud.faults.next("terminate", Ignored(), None, times)

    @rule(
        machines=st.sampled_from([0, 1, 2, 100]),
        zone=st.sampled_from("ab"),
        market=st.sampled_from(MARKETS),
    )
    def stock(self, machines: int, zone: str, market: Market) -> None:
        self.world.stock(zone, market, machines)

    @rule(zone=st.sampled_from("ab"), is_meant=seldom)
    def break_a_zone(self, zone: str, is_meant: bool) -> None:
        if is_meant:
            self.world.break_zone(zone)

    @rule()
    def repair_all_zones(self) -> None:
        self.world.repair_zones()

    @rule()
    def look_up_prices(self) -> None:
        self.world.look_up_prices()

    @precondition(has_machines)
    @rule(place=places, ticks=st.booleans())
    def omit(self, place: int, ticks: bool) -> None:
        machines = self.world.machines()
        self.world.provider.omitted = self.world.key_of(machines[place % len(machines)])
        if ticks:
            self.tick(0)

    @precondition(has_machines)
    @rule(place=places, pause=st.sampled_from([1.0, 4.0, 59.0]))
    def flap(self, place: int, pause: float) -> None:
        """A list leaves a machine out, the next shows it, and one after that does not again."""
        machines = self.world.machines()
        launch_key = self.world.key_of(machines[place % len(machines)])
        for omitted in (launch_key, None, launch_key):
            self.world.provider.omitted = omitted
            self.tick(0)
            self.world.clock.advance(pause)

    # What must stay true.

    @precondition(lambda self: self.world is not None)
    @invariant()
    def promises_are_kept(self) -> None:
        promises.check(self.world)

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            self._calm_down()
            for name, count in self.world.cloud.faults.counts().items():
                self.counts[name] += count
        finally:
            self.world.close()

    def _calm_down(self) -> None:
        """Cancel the job and let nothing go wrong any more: everything is gone at last."""
        world = self.world
        world.cancel()
        world.clock.advance(world.manners.spare)  # requests that stray arrive or are refused
        world.cloud.machines()
        world.cloud.faults.calm()
        world.repair_zones()
        for zone, market in product("ab", MARKETS):
            world.stock(zone, market, 100)
        traits = world.provider.traits
        longest = traits.max_boot_seconds + traits.max_list_lag_seconds
        for _ in range(30 + round(longest / 10.0)):
            self.tick(0)
            if not any(vm.is_alive for vm in world.rows()):
                break
            world.clock.advance(10.0)
        rows = world.rows()
        assert not any(vm.is_alive for vm in rows), "a row stays"
        promises.check(world)
        assert not world.machines(), "a machine stays"
        assert not world.open_orders(), "an order stays open"
        world.clock.advance(PRICE_DELAY.total_seconds())
        world.look_up_prices()
        rows = world.rows()
        assert world.bill(FOREVER, rows) <= ledger.accrued(rows, world.clock.moment()) + EXACTLY

    def _kept(self, fault: Fault) -> Fault:
        """Return a fault as late as the provider's promise allows, but no later.

        Where names are free again, a copy of a launch that was answered is not later than seconds:
        it travels on the connection of the answer.
        """
        most = self.world.manners.spare - LONGEST_PAUSE
        is_free_again = self.world.cloud.settings.are_tokens_free_again
        match fault:
            case Duplicate(after) if is_free_again:
                return Duplicate(min(after, LATEST_COPY))
            case LateRequest(after) | Duplicate(after):
                return type(fault)(min(after, most))
            case _:
                return fault

    def _tick(self) -> None:
        self.tick(0)

    def _renew(self, place: int) -> None:
        running = list(self.world.running())
        if running:
            truth, vm = running[place % len(running)]
            self.world.renew(truth, vm, Journey(0.0, 0.0, False, (nothing, nothing)))

    def _some(self, place: int) -> tuple[Truth, Vm]:
        running = list(self.world.running())
        return running[place % len(running)]


def nothing() -> None:
    """Let nothing happen."""
