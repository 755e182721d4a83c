"""Stopped machines, tokens that are free again, and zones that go down, in the fake cloud."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Duplicate
from tests.fakecloud.machine import PREPAID, Reason, Request, State
from tests.fakecloud.refusal import Refusal
from tests.fakecloud.settings import Settings

BOOT, ENDING = 30.0, 10.0
SELF_MADE = frozenset({Reason.PREPAID, Reason.POWERED_OFF})
ALL_BUT_ORDERS = SELF_MADE | {Reason.INTERRUPTED, Reason.LONGEST_RUN}


def open_cloud(**manners: Any) -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(boot=BOOT, ending=ENDING, lateness=0.0, **manners))


def start(cloud: FakeCloud, token: str = "token", zone: str = "a", **facts: Any) -> str:
    (machine,) = cloud.launch(token, Request("small", zone, **facts))
    return machine.id


def state_of(cloud: FakeCloud, machine: str) -> State | None:
    return {shown.id: shown.state for shown in cloud.list().machines}.get(machine)


@pytest.mark.parametrize("stopped_by", [frozenset(), SELF_MADE, ALL_BUT_ORDERS])
@pytest.mark.parametrize("reason", list(Reason))
def test_an_end_stops_the_machine_where_that_was_asked_for_and_deletes_it_otherwise(
    reason: Reason, stopped_by: frozenset[Reason]
) -> None:
    cloud = open_cloud()
    facts: dict[str, Any] = {
        Reason.PREPAID: {"environment": {PREPAID: "60"}},
        Reason.LONGEST_RUN: {"longest_run": 60.0},
    }.get(reason, {})
    machine = start(cloud, stopped_by=stopped_by, **facts)
    cloud.clock.advance(BOOT + 60.0)
    match reason:
        case Reason.ORDERED:
            cloud.terminate(machine)
        case Reason.INTERRUPTED | Reason.SOLD_OUT | Reason.FAILED:
            cloud.interrupt(machine, reason=reason)
        case Reason.POWERED_OFF:
            cloud.power_off(machine)
        case Reason.PREPAID | Reason.LONGEST_RUN:
            pass
    assert state_of(cloud, machine) is State.ENDING
    cloud.clock.advance(ENDING)
    assert state_of(cloud, machine) is (State.STOPPED if reason in stopped_by else State.GONE)
    assert cloud.describe(machine).reason == reason


@given(run=st.floats(0, 1e5), rest=st.floats(0, 1e5), after=st.floats(0, 1e5))
def test_of_a_stopped_machine_only_the_disk_is_billed_until_its_end_was_ordered(
    run: float, rest: float, after: float
) -> None:
    cloud = open_cloud(tariffs={"small": Tariff(36.0, disk_per_hour=3.6)})
    machine = start(cloud, stopped_by=SELF_MADE)
    cloud.clock.advance(run)
    cloud.power_off(machine)
    cloud.clock.advance(rest)
    cloud.terminate(machine)
    cloud.clock.advance(after)
    end = run + rest + ENDING
    halted, gone = min(run + ENDING, run + rest + after), min(end, run + rest + after)
    assert cloud.bill().total == pytest.approx(halted * 0.01 + gone * 0.001, abs=1e-6)


def test_a_stopped_machine_takes_no_room_and_keeps_its_token() -> None:
    cloud = open_cloud(capacity={"small@a": 1}, are_tokens_free_again=True)
    machine = start(cloud, stopped_by=SELF_MADE)
    cloud.power_off(machine)
    cloud.clock.advance(ENDING)
    start(cloud, "another")
    with pytest.raises(Refusal, match="IdempotentInstanceTerminated"):
        start(cloud, stopped_by=SELF_MADE)


@given(
    st.lists(
        st.sampled_from(["launch", "launch twice", "terminate", "interrupt", "advance"]),
        min_size=5,
        max_size=30,
    )
)
def test_a_token_that_is_free_again_never_has_two_machines_at_once(steps: list[str]) -> None:
    cloud = open_cloud(are_tokens_free_again=True, memory=0.0)
    for step in steps:
        machines = [machine for machine in cloud.machines() if machine.gone_at is None]
        assert len(machines) <= 1
        match step:
            case "launch" | "launch twice":
                if step == "launch twice":
                    cloud.faults.next("launch", Duplicate(after=17.0))
                with suppress(Refusal):
                    assert [start(cloud)] == [one.id for one in cloud.list().machines]
            case "advance":
                cloud.clock.advance(ENDING / 2)
            case _ if machines:
                do = cloud.terminate if step == "terminate" else cloud.interrupt
                do(machines[0].description.id)
    cloud.clock.advance(17.0)
    ended = [machine for machine in cloud.machines() if machine.gone_at is not None]
    for later, earlier in zip(cloud.machines()[1:], ended, strict=False):
        assert earlier.gone_at is not None
        assert later.created_at >= earlier.gone_at


def test_a_token_that_is_free_again_makes_a_second_machine_after_the_first_is_gone() -> None:
    cloud = open_cloud(are_tokens_free_again=True)
    first = start(cloud)
    cloud.terminate(first)
    cloud.clock.advance(ENDING)
    assert start(cloud) != first


def test_without_memory_a_machine_that_is_gone_is_absent() -> None:
    cloud = open_cloud(memory=0.0)
    machine = start(cloud)
    cloud.terminate(machine)
    cloud.clock.advance(ENDING - 1.0)
    assert state_of(cloud, machine) is State.ENDING
    cloud.clock.advance(1.0)
    assert state_of(cloud, machine) is None
    with pytest.raises(Refusal, match="NotFound"):
        cloud.terminate(machine)


def test_every_call_about_a_zone_that_is_down_fails_and_its_machines_run_on() -> None:
    cloud = open_cloud()
    here, there = start(cloud, "here", "a"), start(cloud, "there", "b")
    cloud.clock.advance(BOOT)
    cloud.break_zone("a")
    for call in (
        lambda: start(cloud, "new", "a"),
        lambda: cloud.list(zone="a"),
        lambda: cloud.describe(here),
        lambda: cloud.terminate(here),
    ):
        with pytest.raises(Refusal, match="zone a does not answer"):
            call()
    assert [machine.id for machine in cloud.list(zone="b").machines] == [there]
    cloud.terminate(there)
    assert {truth.description.state for truth in cloud.machines()} == {State.RUNNING, State.ENDING}
    cloud.repair_zone("a")
    assert [machine.id for machine in cloud.list(zone="a").machines] == [here]
    cloud.terminate(here)
