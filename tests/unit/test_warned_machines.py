"""What is planned once a cloud has told a machine that it takes it back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from service.db.shortages import Shortage
from service.reconciler.actions import Action, Finish, Idle, Launch, PublishDirective
from service.reconciler.directives import choose_members
from service.reconciler.plan import decide_action, missing_worker_machines, plan
from service.state.job_state import JobState
from tests.builders import NOW, directive, job, offer, server, serving, snapshot, spec, vm, worker

WARNED = {"warned_at": NOW - timedelta(seconds=1)}
GONE = {"state": "gone", "ended_at": NOW}
RELEASED = {"finished": "released"}
DAYS_AGO = {"intended_at": NOW - timedelta(days=3)}
TAKEN = tuple(vm(number, **DAYS_AGO, **WARNED, **GONE) for number in range(3, 40))
LEFT = tuple(worker(number, **RELEASED) for number in range(3, 40))
SERVED = spec(strategy={"parameter_server": {"servers": 1}})
TRAINING = job(chosen=ClusterConfig(2, 128), choice="the knee")

CASES: dict[str, tuple[JobState, type[Action], str]] = {
    "another is launched while the machine leaves": (
        snapshot(vms=(vm(1), vm(2, **WARNED))),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "also if it is the leader's": (
        snapshot(vms=(vm(1, **WARNED), vm(2))),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "all are replaced at once": (
        snapshot(vms=(vm(1, **WARNED), vm(2, **WARNED))),
        Launch,
        "2 machines for K=2 B=128",
    ),
    "a machine that boots is replaced as well": (
        snapshot(vms=(vm(1), vm(2, **WARNED)), workers=(worker(1),), directive=directive(1, 128)),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "one replacement is enough, and is waited for": (
        snapshot(vms=(vm(1), vm(2, **WARNED), vm(3))),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "one that left in the meantime is left out": (
        snapshot(vms=(vm(1), vm(2, **WARNED), vm(3)), workers=(worker(1), worker(2, **RELEASED))),
        PublishDirective,
        "w2 was told to leave: the others go on with K=1 B=128",
    ),
    "a replacement that is ready takes its place before it has left": (
        snapshot(
            vms=(vm(1), vm(2, **WARNED), vm(3)),
            workers=(worker(1), worker(2), worker(3, generation=0)),
        ),
        PublishDirective,
        "training on K=2 B=128",
    ),
    "one that was taken without leaving is lost": (
        snapshot(vms=(vm(1), vm(2, **WARNED, **GONE), vm(3))),
        PublishDirective,
        "lost w2: the survivors go on with K=1 B=128",
    ),
    "the cap holds, and the others go on": (
        snapshot(
            vms=(vm(1), vm(2, **WARNED)),
            job=replace(
                TRAINING,
                spec=spec(limits={"max_cost": "0.074 USD", "workers": "1..2", "batch": [32, 128]}),
            ),
        ),
        PublishDirective,
        "max_cost leaves no room for 1 more machine: training on K=1 B=128",
    ),
    "what clouds take back in days is no sign of a job that kills its machines": (
        snapshot(vms=(*TAKEN, vm(1), vm(2)), workers=(*LEFT, worker(1), worker(2))),
        Idle,
        "running K=2 B=128",
    ),
    "but what never left in order is": (
        snapshot(vms=(*TAKEN, vm(1), vm(2)), workers=(worker(1), worker(2))),
        Finish,
        "39 machines were needed where 16 are allowed: the clouds took 37 of them back",
    ),
    "a parameter server is replaced before it is lost": (
        snapshot(
            job=replace(TRAINING, spec=SERVED),
            vms=(vm(1), vm(2), server(1, **WARNED)),
            workers=(worker(1), worker(2), serving(1)),
        ),
        Launch,
        "0 machines for K=2 B=128, and 1 server",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), CASES.values(), ids=CASES)
def test_a_machine_that_is_taken_back_is_replaced(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_no_warned_machine_counts_and_each_other_does(warned: list[bool]) -> None:
    numbers = range(1, len(warned) + 1)
    machines = tuple(
        vm(number, **WARNED) if is_warned else vm(number)
        for number, is_warned in zip(numbers, warned, strict=True)
    )
    config = ClusterConfig(len(warned), 128)
    now = snapshot(vms=machines, workers=tuple(worker(number) for number in numbers))
    assert missing_worker_machines(now, config) == sum(warned)
    staying = [f"w{number}" for number in numbers if not warned[number - 1]]
    assert [member.worker for member in choose_members(now, len(warned))] == staying


ZONES, MARKETS = ("a", "b", "c"), ("spot", "on_demand")
places = tuple(offer(zone=zone, market=market) for market in MARKETS for zone in ZONES)
kinds = st.sampled_from(("capacity", "taken", None))


@given(st.tuples(*(kinds for _ in places)), st.sampled_from(ZONES))
def test_a_place_that_lost_a_machine_comes_last_in_its_market_and_is_asked_all_the_same(
    shortages: tuple[str | None, ...], home: str
) -> None:
    short = dict(zip(places, shortages, strict=True))
    rows = tuple(
        Shortage("local", each.zone, "local", each.market, kind, "why", NOW + timedelta(minutes=1))
        for each, kind in short.items()
        if kind is not None
    )
    leaving = vm(2, zone="a", market="spot", **WARNED)
    now = snapshot(vms=(vm(1, zone=home, market="spot"), leaving), places=places, shortages=rows)
    free = [place for place in places if short[place] != "capacity"]
    assert set(now.offers) == set(free)
    action = decide_action(now)
    if not free:
        assert not isinstance(action, Launch)
        return
    assert isinstance(action, Launch)
    market = [each for each in free if each.market == free[0].market]
    kept = [each for each in market if short[each] is None] or market
    at_home = [each for each in kept if each.zone == home] or kept
    assert action.offer in at_home
