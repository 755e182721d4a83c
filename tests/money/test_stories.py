"""Stories that the state machine found, each told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal
from functools import partial
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.orders import ChangeWish
from service import ledger
from service.reconciler.diff import PAID_LATE
from tests.builders import spec
from tests.fakecloud.emulator import open_emulator
from tests.fakecloud.faults import Ignored, LateRequest, LostRequest, Omitted, Refused
from tests.money import promises
from tests.money.purse import Purse
from tests.money.runs import prepare_price_watch
from tests.money.stage import Stage
from tests.money.world import TRIFLE, Journey, Manners

Make = Callable[..., Purse]
RENTED = Manners(boot=0.0, spare=300.0, ending=6.0, lag=0.0, seed=0, minimum=60.0)


@pytest.fixture
def make(engine: Engine) -> Iterator[Make]:
    """Submit a job of two machines at a tenth of a cent per second, and tick as often as said."""
    made: list[Purse] = []

    def submit(max_cost: str = "2 USD", *, servers: int = 0, **manners: float) -> Purse:
        how = {"boot": 0.0, "spare": 4.0, "ending": 6.0, "lag": 0.0, "seed": 0, **manners}
        workers = 2 - servers
        limits = {"workers": f"{workers}..{workers}", "batch": [96], "max_cost": max_cost}
        served = {"strategy": {"parameter_server": {"servers": servers}}} if servers else {}
        purse = Purse(engine, Stage(engine))
        purse.submit(spec(limits=limits, price="3.6 USD/h", **served), Manners(**how), [])
        made.append(purse)
        return purse

    yield submit
    for purse in made:
        purse.teardown()


@pytest.fixture
def rent(engine: Engine) -> Iterator[Make]:
    """Submit a job of one machine to an emulated cloud."""
    with ExitStack() as opened:

        def submit(cloud: str, **changes: Any) -> Purse:
            emulator = opened.enter_context(open_emulator(cloud))
            assert emulator is not None
            prepare_price_watch(engine, emulator)
            purse = Purse(engine, Stage(engine), emulator=emulator)
            limits = {"workers": "1..1", "batch": [96], "max_cost": "2 USD"}
            purse.submit(spec(limits=limits, price="3.6 USD/h"), replace(RENTED, **changes), [])
            opened.callback(purse.teardown)
            return purse

        yield submit


def ask_in_vain(purse: Purse) -> None:
    """Cancel a job whose machines were not seen yet; they come 50 s after they were asked for."""
    purse.world.cloud.faults.next("launch", LateRequest(50.0), None, 2)
    purse.tick(0)
    purse.world.cloud.faults.next("launch", LostRequest(), None, 2)
    purse.world.cancel()
    for _ in range(4):
        purse.tick(0)


def test_a_machine_that_may_still_come_is_not_gone(make: Make) -> None:
    purse = make(spare=60.0)
    ask_in_vain(purse)
    purse.wait(51.0)
    promises.check(purse.world)


def test_lists_from_before_a_machine_could_be_there_prove_nothing(make: Make) -> None:
    purse = make(spare=60.0, lag=5.0)
    ask_in_vain(purse)
    purse.wait(100.0)  # both came meanwhile, and no controller looked
    purse.omit(0, ticks=True)
    promises.check(purse.world)


def test_a_launch_that_waits_for_an_order_is_paid_by_the_new_cap(make: Make) -> None:
    """The controller has just taken the job, so that the order found no lease to wait for."""
    purse = make("2 USD")
    world = purse.world
    world.cloud.faults.next("launch", LostRequest(), None, 2)
    purse.tick(0)
    purse.wait(60.0)
    least = ledger.committed(world.rows())
    world.order_beside_a_tick(ChangeWish.model_validate({"limits": {"max_cost": f"{least} USD"}}))
    assert world.cap == least
    promises.check(world)


def test_a_list_that_was_refused_leaves_nothing_out_later(make: Make) -> None:
    purse = make(lag=60.0)
    purse.tick(0)
    purse.wait(60.0)
    purse.omit(0, ticks=True)
    purse.world.cloud.faults.next("list", Refused("InternalError"))
    purse.omit(0, ticks=True)
    purse.wait(60.0)  # a list that leaves it out now would prove its end
    purse.tick(0)
    promises.check(purse.world)


def test_a_machine_that_a_list_showed_in_between_is_not_gone(make: Make) -> None:
    purse = make(lag=60.0)
    purse.tick(0)
    purse.wait(60.0)
    purse.world.cloud.faults.next("terminate", Ignored(), None, 20)
    purse.cancel(is_meant=True)
    for _ in range(3):
        purse.tick(0)
    machine = purse.world.machines()[0].description.id
    purse.world.cloud.faults.next("list", Omitted(machine))
    purse.tick(0)
    purse.wait(50.0)
    purse.tick(0)  # it is there, and told once more to end
    purse.wait(20.0)
    purse.world.cloud.faults.next("list", Omitted(machine))
    purse.tick(0)
    promises.check(purse.world)


def test_a_lost_server_whose_boot_the_cap_does_not_pay_ends_the_job(make: Make) -> None:
    """The rest of the cap pays for a machine that runs at once, but not for one that boots."""
    purse = make("1.332 USD", servers=1, spare=60.0)
    for _ in range(4):
        purse.tick(0)
        purse.all_speak()
    purse.wait(588.0)
    server = next(vm for vm in purse.world.rows() if vm.role == "server")
    machines = [truth.description for truth in purse.world.machines()]
    (lost,) = (machine.id for machine in machines if machine.token == server.launch_key)
    purse.world.cloud.interrupt(lost)
    purse.wait(7.0)
    done = [purse.world.tick(0) for _ in range(6)]
    _, job, _ = purse.world.written()
    assert job.phase is JobPhase.CAPPED, done
    promises.check(purse.world)


def test_a_launch_that_arrives_when_its_name_is_free_again_makes_a_machine_that_is_paid(
    rent: Make,
) -> None:
    purse = rent("google")
    purse.world.cloud.faults.next("launch", LateRequest(250.0))
    purse.tick(0)
    purse.wait(3.0)
    purse.tick(0)  # the second ask is answered
    purse.cancel(is_meant=True)
    for _ in range(40):
        purse.tick(0)
        purse.wait(10.0)
        promises.check(purse.world)
    assert len(purse.world.cloud.machines()) == 2
    assert not purse.world.machines()


def run_two(make: Make) -> Purse:
    """Train on two machines."""
    purse = make("20 USD")
    for _ in range(4):
        purse.tick(0)
        purse.all_speak()
    assert len(list(purse.world.running())) == 2
    return purse


def test_a_lease_that_waits_for_a_lower_cap_is_renewed_under_it(make: Make) -> None:
    purse = run_two(make)
    purse.wait(300.0)
    (truth, vm), _ = purse.world.running()
    purse.world.order_and_renew(truth, vm, "least cap")
    promises.check(purse.world)
    assert purse.world.cap == ledger.committed(purse.world.rows()).quantize(TRIFLE, ROUND_CEILING)


def test_machines_are_launched_under_the_cap_of_now(make: Make) -> None:
    purse = make("20 USD")
    assert purse.world.order("larger cap")  # twice of nothing
    for _ in range(3):
        purse.tick(0)
    assert not purse.world.cloud.machines()
    promises.check(purse.world)


def test_a_job_that_is_paused_while_a_launch_is_planned_launches_nothing(make: Make) -> None:
    """At each step of the tick that launches; what was launched by then ends."""
    steps = 0
    while True:
        purse, given = make("20 USD"), []
        steps += 1
        order = partial(purse.world.order, "pause")
        with purse.stage.interrupted(steps, lambda order=order, given=given: given.append(order())):
            purse.world.tick(0)
        if not given:
            break
        for _ in range(6):
            purse.tick(0)
            purse.wait(3.0)
        assert not purse.world.machines(), steps
        launched = len(purse.world.cloud.machines())
        purse.wait(3600.0)
        purse.tick(0)
        assert len(purse.world.cloud.machines()) == launched
        purse.world.close()
        purse.world = None
    assert steps > 10


def order_within_a_tick(make: Make, wish: str, prepare: Callable[[Purse], None]) -> Iterator[Purse]:
    """Order at each step of a tick that comes after what is prepared; yield where it was taken."""
    for step in count(1):
        purse, taken = run_two(make), list[bool]()
        prepare(purse)
        world = purse.world
        order = partial(world.order, wish)
        with purse.stage.interrupted(step, lambda order=order, taken=taken: taken.append(order())):
            world.tick(0)
        if not taken:
            assert step > 3
            return
        if taken == [True]:
            yield purse
        world.close()
        purse.world = None


def test_no_order_that_comes_while_a_job_ends_stays_open(make: Make) -> None:
    def fail(purse: Purse) -> None:
        purse.world.end_command(*next(purse.world.running()), 1)

    taken = 0
    for purse in order_within_a_tick(make, "pause", fail):
        for _ in range(3):
            purse.tick(0)
        assert purse.world.written()[1].phase is JobPhase.FAILED
        assert not purse.world.open_orders()
        taken += 1
    assert taken


def test_a_job_whose_cap_is_raised_before_it_has_ended_goes_on(make: Make) -> None:
    def spend(purse: Purse) -> None:
        assert purse.world.order("least cap")
        purse.tick(0)
        rows = purse.world.rows()
        purse.wait((rows[0].prepaid_until - purse.world.clock.moment()).total_seconds() + 1.0)

    taken = 0
    for purse in order_within_a_tick(make, "no cap", spend):
        for _ in range(3):
            purse.tick(0)
        assert not purse.world.written()[1].phase.is_final
        taken += 1
    assert taken


def test_a_paused_job_is_resumed_under_its_cap(make: Make) -> None:
    purse = run_two(make)
    assert purse.world.order("pause")
    for truth, vm in list(purse.world.running()):
        purse.world.renew(truth, vm, Journey(0.0, 0.0, False, (lambda: None, lambda: None)))
    for _ in range(5):
        purse.tick(0)
        purse.wait(10.0)
    assert not purse.world.machines()
    spent = ledger.accrued(purse.world.rows(), purse.world.clock.moment())
    purse.wait(36_000.0)
    assert ledger.accrued(purse.world.rows(), purse.world.clock.moment()) == spent
    assert purse.world.order("resume")
    for _ in range(4):
        purse.tick(0)
        purse.all_speak()
    assert len(list(purse.world.running())) == 2
    promises.check(purse.world)


@pytest.mark.parametrize("cloud", ["aws", "google"])
def test_a_machine_that_outlives_its_paid_time_is_booked_as_long_as_lists_prove(
    rent: Make, cloud: str
) -> None:
    """Its boot script never ran, so that no timer ends it, and no controller looks for long."""
    purse = rent(cloud)
    world = purse.world
    purse.tick(0)
    (truth,) = world.machines()
    world.cloud.renew(truth.description.id, 1e7)
    purse.wait(1500.0)  # Google itself would end it when the whole cap is used up
    for _ in range(80):
        purse.tick(0)
        purse.wait(10.0)
        if not world.rows()[0].is_alive:
            break
    (vm, *_) = world.rows()
    (line, *_) = world.cloud.bill().lines
    billed = Decimal(line.dollars)
    traits = world.provider.traits
    unproven = PAID_LATE + timedelta(seconds=traits.max_list_lag_seconds + 10.0)
    booked = ledger.accrued([vm], world.clock.moment())
    assert billed - vm.terms.price_of(unproven) <= booked <= billed + vm.terms.price_of(unproven)
    world.close()
    purse.world = None  # what could not be reserved is above the reserve


def test_a_machine_that_stopped_by_itself_is_booked_no_longer_because_it_is_listed(
    rent: Make,
) -> None:
    purse = rent("google")
    world = purse.world
    purse.tick(0)
    (before, *_) = world.rows()
    purse.wait(1500.0)
    world.cloud.faults.next("terminate", Ignored(), None, 4)
    for _ in range(6):
        purse.tick(0)
        purse.wait(10.0)
    (after, *_) = world.rows()
    assert after.orders > 1
    assert after.prepaid_until == before.prepaid_until
    promises.check(world)


def test_a_notice_of_a_machine_that_is_awaited_is_news(make: Make) -> None:
    """The job says that it waits for the machine, and then waits for another."""
    purse = make(lag=60.0)
    world = purse.world
    world.cloud.faults.next("launch", LostRequest(), None, 2)
    for _ in range(2):
        purse.tick(0)
    purse.wait(61.0)
    for _ in range(3):
        world.cloud.faults.next("launch", LostRequest(), None, 2)
        purse.tick(0)
    for vm in world.rows():
        world.hear_notice(vm)
    for _ in range(3):
        purse.tick(0)
    promises.check(world)
