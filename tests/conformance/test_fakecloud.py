"""The fake cloud behaves as true clouds do, each way that has cost a user a machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from tests.controller_double import until
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import Clock, RealClock, VirtualClock
from tests.fakecloud.cloud import FakeCloud, Truth
from tests.fakecloud.control import Control
from tests.fakecloud.faults import (
    Duplicate,
    Fault,
    Garbage,
    Ignored,
    Interrupted,
    LateRequest,
    LostRequest,
    LostResponse,
    Omitted,
    Operation,
    Partial,
    Refused,
    Slow,
)
from tests.fakecloud.machine import PREPAID, Description, Request, State
from tests.fakecloud.refusal import ConnectionLost, Gibberish, Refusal
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

PROJECT = Path(__file__).parents[2]
BOOT, ENDING, MEMORY = 30.0, 10.0, 3600.0


def make(**manners: Any) -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(**manners))


def wanted(prepaid: float | None = None, **facts: Any) -> Request:
    environment = {} if prepaid is None else {PREPAID: str(prepaid)}
    return Request(**{"machine_type": "small", "zone": "a", "environment": environment, **facts})


def start(cloud: FakeCloud, token: str = "token", **facts: Any) -> str:
    (machine,) = cloud.launch(token, wanted(**facts))
    return machine.id


def refused(do: Callable[[], object]) -> str | None:
    try:
        do()
    except Refusal as refusal:
        return refusal.code
    return None


def code_of(caught: pytest.ExceptionInfo[Refusal]) -> str:
    return caught.value.code


def shown(cloud: FakeCloud) -> dict[str, State]:
    return {machine.id: machine.state for machine in cloud.list().machines}


def truth(cloud: FakeCloud, number: int = 0) -> Truth:
    return cloud.machines()[number]


# Tokens


def test_a_token_makes_one_machine_however_often_it_is_used() -> None:
    cloud = make(list_lag=60.0)
    launched = set()
    for _ in range(5):
        launched.add(start(cloud))
        cloud.clock.advance(20.0)
    assert len(launched) == len(cloud.machines()) == 1


def test_a_token_makes_one_machine_for_many_who_use_it_at_once() -> None:
    cloud = make()
    with ThreadPoolExecutor(16) as threads:
        launched = list(threads.map(lambda _: start(cloud), range(64)))
    assert len(set(launched)) == len(cloud.machines()) == 1


def test_a_token_with_other_parameters_is_refused() -> None:
    cloud = make()
    start(cloud, prepaid=60.0)
    with pytest.raises(Refusal) as caught:
        start(cloud, prepaid=59.0)
    assert code_of(caught) == "IdempotentParameterMismatch"
    assert len(cloud.machines()) == 1


@pytest.mark.parametrize("later", [0.0, ENDING, 2 * MEMORY])
@pytest.mark.parametrize("prepaid", [60.0, 59.0])
def test_the_token_of_a_terminated_machine_is_used_up(later: float, prepaid: float) -> None:
    cloud = make()
    cloud.terminate(start(cloud, prepaid=60.0))
    cloud.clock.advance(later)
    with pytest.raises(Refusal) as caught:
        start(cloud, prepaid=prepaid)
    assert code_of(caught) == "IdempotentInstanceTerminated"
    assert len(cloud.machines()) == 1


def test_a_refused_launch_leaves_its_token_unused() -> None:
    cloud = make(capacity={"small@a": 0})
    with pytest.raises(Refusal):
        start(cloud)
    cloud.stock("small@a", 1)
    assert start(cloud) == truth(cloud).description.id


# What is shown


@given(seed=st.integers(0, 10**6), lag=st.floats(0.0, 60.0))
def test_a_machine_is_shown_after_the_lag_at_the_latest_and_so_is_its_end(
    seed: int, lag: float
) -> None:
    cloud = make(seed=seed, list_lag=lag)
    machine = start(cloud)
    cloud.clock.advance(lag)
    assert shown(cloud) == {machine: cloud.describe(machine).state}
    cloud.clock.advance(BOOT)
    assert shown(cloud) == {machine: State.RUNNING}
    cloud.terminate(machine)
    cloud.clock.advance(lag)
    assert shown(cloud)[machine] in (State.ENDING, State.GONE)


def test_a_new_machine_is_missing_at_first_and_cannot_be_ended() -> None:
    cloud = make(list_lag=60.0)
    machine = start(cloud)
    assert shown(cloud) == {}
    for ask in (cloud.describe, cloud.terminate):
        with pytest.raises(Refusal) as caught:
            ask(machine)
        assert code_of(caught) == "InvalidInstanceID.NotFound"
    cloud.clock.advance(60.0 + BOOT)
    assert shown(cloud) == {machine: State.RUNNING}


def test_a_terminated_machine_is_still_shown_running() -> None:
    cloud = make(list_lag=60.0)
    machine = start(cloud)
    cloud.clock.advance(60.0 + BOOT)
    cloud.terminate(machine)
    assert truth(cloud).description.state is State.ENDING
    assert shown(cloud) == {machine: State.RUNNING}
    assert cloud.describe(machine).state is State.RUNNING


def test_a_machine_boots_runs_ends_is_gone_and_is_forgotten() -> None:
    cloud = make()
    machine = start(cloud)
    seen = [cloud.describe(machine).state]
    for seconds in (BOOT - 1, 1.0):
        cloud.clock.advance(seconds)
        seen.append(cloud.describe(machine).state)
    cloud.terminate(machine)
    seen.append(cloud.describe(machine).state)
    for seconds in (ENDING - 1, 1.0, MEMORY - 1):
        cloud.clock.advance(seconds)
        seen.append(cloud.describe(machine).state)
    assert [state.value for state in seen] == [
        *("pending", "pending", "running"),
        *("ending", "ending", "gone", "gone"),
    ]
    assert cloud.describe(machine).reason == "ordered"
    cloud.clock.advance(1.0)
    assert shown(cloud) == {}
    with pytest.raises(Refusal, match="NotFound"):
        cloud.describe(machine)


def test_a_machine_ended_while_it_boots_never_runs() -> None:
    cloud = make()
    machine = start(cloud)
    cloud.clock.advance(BOOT / 2)
    cloud.terminate(machine)
    cloud.clock.advance(ENDING)
    assert cloud.describe(machine).state is State.GONE


def test_lists_come_in_pages_and_only_with_the_labels_asked_for() -> None:
    cloud = make(page=2)
    for n in range(5):
        start(cloud, f"token-{n}", labels={"of": "us"})
        start(cloud, f"other-{n}", labels={"of": "them"})
    first = cloud.list(labels={"of": "us"})
    assert first.after is not None
    second = cloud.list(first.after, {"of": "us"})
    assert second.after is not None
    third = cloud.list(second.after, {"of": "us"})
    assert third.after is None
    tokens = [m.token for page in (first, second, third) for m in page.machines]
    assert tokens == [f"token-{n}" for n in range(5)]


# Room


def test_each_place_has_room_of_its_own_and_gets_it_back_with_the_end() -> None:
    cloud = make(capacity={"small@a": 1})
    machine = start(cloud, "first")
    with pytest.raises(Refusal) as caught:
        start(cloud, "second")
    assert code_of(caught) == "InsufficientInstanceCapacity"
    start(cloud, "elsewhere", zone="b")
    cloud.terminate(machine)
    cloud.clock.advance(ENDING - 1)
    with pytest.raises(Refusal):
        start(cloud, "second")
    cloud.clock.advance(1.0)
    start(cloud, "second")
    assert cloud.faults.counts() == {"InsufficientInstanceCapacity": 2}


def test_a_fleet_may_come_in_part_and_stays_so() -> None:
    cloud = make(capacity={"small@a": 3})
    fleet = cloud.launch("token", wanted(count=5))
    assert len(fleet) == 3
    cloud.stock("small@a", 9)
    assert cloud.launch("token", wanted(count=5)) == fleet
    cloud.faults.next("launch", Partial(2))
    assert len(cloud.launch("another", wanted(count=5))) == 2


def test_a_quota_refuses_all_of_a_fleet() -> None:
    cloud = make(quota=3)
    with pytest.raises(Refusal) as caught:
        cloud.launch("many", wanted(count=4))
    assert code_of(caught) == "InstanceLimitExceeded"
    assert len(cloud.launch("some", wanted(count=3))) == 3


def test_who_asks_too_often_is_throttled_until_time_has_passed() -> None:
    cloud = make(requests_per_second=0.5, burst=3)
    for _ in range(3):
        cloud.list()
    for seconds in (1.0, 0.5):
        with pytest.raises(Refusal) as caught:
            cloud.list()
        assert code_of(caught) == "RequestLimitExceeded"
        cloud.clock.advance(seconds)
    cloud.clock.advance(0.5)
    cloud.list()
    with pytest.raises(Refusal):
        cloud.list()
    assert cloud.faults.counts() == {"RequestLimitExceeded": 3}


@pytest.mark.parametrize(
    "facts",
    [
        {"machine_type": "unheard-of"},
        {"labels": {"no spaces": "please"}},
        {"labels": {"long": "x" * 64}},
        {"count": 0},
        {"longest_run": 0.0},
    ],
)
def test_what_can_never_be_is_refused(facts: dict[str, Any]) -> None:
    cloud = make()
    with pytest.raises(Refusal) as caught:
        start(cloud, **facts)
    assert code_of(caught) == "InvalidParameterValue"


# On the way


@pytest.mark.parametrize(
    ("fault", "error", "machines"),
    [
        (LostRequest(), ConnectionLost, 0),
        (LostResponse(), ConnectionLost, 1),
        (Garbage(), Gibberish, 1),
        (LateRequest(20.0), ConnectionLost, 0),
        (Refused("InternalError"), Refusal, 0),
    ],
)
def test_what_a_failed_launch_left_behind(
    fault: Fault, error: type[Exception], machines: int
) -> None:
    cloud = make()
    cloud.faults.next("launch", fault)
    with pytest.raises(error):
        start(cloud)
    assert len(cloud.machines()) == machines
    start(cloud)
    cloud.clock.advance(30.0)
    assert len(cloud.machines()) == 1


def test_a_late_launch_happens_at_its_time_and_not_when_it_is_listed() -> None:
    cloud = make()
    cloud.faults.next("launch", LateRequest(20.0))
    with pytest.raises(ConnectionLost):
        start(cloud)
    cloud.clock.advance(19.0)
    assert cloud.machines() == ()
    cloud.clock.advance(1000.0)
    assert truth(cloud).created_at == 20.0
    assert cloud.describe(truth(cloud).description.id).state is State.RUNNING


def test_what_strays_arrives_in_the_order_of_its_times() -> None:
    cloud = make()
    for token, after in (("second", 20.0), ("first", 10.0)):
        cloud.faults.next("launch", LateRequest(after), about=token)
        with pytest.raises(ConnectionLost):
            start(cloud, token)
    cloud.clock.advance(60.0)
    assert [machine.description.token for machine in cloud.machines()] == ["first", "second"]


def test_a_launch_delivered_again_after_the_end_makes_nothing() -> None:
    cloud = make()
    cloud.faults.next("launch", Duplicate(after=100.0))
    cloud.terminate(start(cloud))
    cloud.clock.advance(100.0)
    assert len(cloud.machines()) == 1
    assert cloud.faults.counts() == {"Duplicate": 1, "IdempotentInstanceTerminated": 1}


def test_an_end_delivered_twice_ends_once() -> None:
    cloud = make()
    machine = start(cloud)
    cloud.faults.next("terminate", Duplicate(after=5.0))
    cloud.terminate(machine)
    cloud.clock.advance(ENDING)
    assert truth(cloud).gone_at == ENDING


def test_a_lost_answer_hides_a_no_as_well() -> None:
    cloud = make(capacity={"small@a": 0})
    cloud.faults.next("launch", LostResponse())
    with pytest.raises(ConnectionLost):
        start(cloud)
    assert cloud.machines() == ()


def test_a_slow_answer_keeps_no_other_request_waiting() -> None:
    cloud = make()
    cloud.faults.next("launch", Slow(60.0), about="slow")
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(start(cloud, "slow")))
    waiting.start()
    until(cloud.machines)
    start(cloud, "quick")
    cloud.clock.advance(59.0)
    assert answers == []
    cloud.clock.advance(1.0)
    waiting.join()
    assert answers == [truth(cloud).description.id]


# In the cloud


def test_the_end_of_a_named_machine_is_refused_and_no_other_machines() -> None:
    cloud = make()
    kept, other = start(cloud, "kept"), start(cloud, "other")
    cloud.faults.always("terminate", Refused("OperationNotPermitted"), about=kept)
    cloud.terminate(other)
    for _ in range(3):
        with pytest.raises(Refusal) as caught:
            cloud.terminate(kept)
        assert code_of(caught) == "OperationNotPermitted"
    cloud.clock.advance(MEMORY)
    assert shown(cloud) == {kept: State.RUNNING, other: State.GONE}
    cloud.faults.calm()
    cloud.terminate(kept)
    assert cloud.describe(kept).state is State.ENDING


def test_an_end_may_be_accepted_and_not_come() -> None:
    cloud = make()
    machine = start(cloud)
    cloud.faults.next("terminate", Ignored())
    cloud.terminate(machine)
    cloud.clock.advance(MEMORY)
    assert cloud.describe(machine).state is State.RUNNING


def test_a_list_may_leave_out_one_machine_or_all() -> None:
    cloud = make()
    first, second = start(cloud, "first"), start(cloud, "second")
    cloud.faults.next("list", Omitted(first))
    assert list(shown(cloud)) == [second]
    cloud.faults.next("list", Omitted())
    assert shown(cloud) == {}
    assert list(shown(cloud)) == [first, second]


def test_what_goes_wrong_meanwhile_goes_wrong_no_longer() -> None:
    cloud = make()
    machine = start(cloud)
    cloud.faults.next("list", Refused("Unavailable"))
    with cloud.faults.meanwhile("list", Omitted(machine)), pytest.raises(Refusal):
        cloud.list()
    assert list(shown(cloud)) == [machine]
    with cloud.faults.meanwhile("list", Omitted(machine)):
        assert shown(cloud) == {}
    assert list(shown(cloud)) == [machine]


def test_faults_are_counted_and_those_that_never_struck_are_named() -> None:
    cloud = make()
    cloud.faults.next("launch", LostResponse(), times=2)
    cloud.faults.next("list", Refused("Unavailable"))
    cloud.faults.sometimes("describe", Slow(1.0), 0.5)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            start(cloud)
    start(cloud)
    assert cloud.faults.counts() == {"LostResponse": 2}
    cloud.faults.calm()
    cloud.list()
    assert cloud.faults.unfired() == ("list Refused", "describe Slow")


def test_one_call_may_go_wrong_in_the_cloud_and_on_its_way() -> None:
    cloud = make()
    cloud.faults.next("launch", Partial(2))
    cloud.faults.next("launch", LostResponse())
    with pytest.raises(ConnectionLost):
        cloud.launch("token", wanted(count=5))
    assert len(cloud.launch("token", wanted(count=5))) == 2
    assert not cloud.faults.unfired()


def test_random_faults_are_the_same_for_the_same_seed() -> None:
    def play(seed: int) -> list[bool]:
        cloud = make(seed=seed)
        cloud.faults.sometimes("list", Omitted(), 0.5)
        start(cloud)
        return [bool(shown(cloud)) for _ in range(50)]

    assert play(1) == play(1) != play(2)
    assert 10 < sum(play(1)) < 40


@pytest.mark.parametrize(
    ("operation", "fault"), [("list", Partial(1)), ("launch", Omitted()), ("describe", Ignored())]
)
def test_a_fault_that_could_never_strike_is_not_programmed(
    operation: Operation, fault: Fault
) -> None:
    with pytest.raises(ValueError, match="never"):
        make().faults.next(operation, fault)


# Ends that no request ordered


def test_an_interruption_with_notice_is_known_to_the_machine_before() -> None:
    cloud = make()
    machine = start(cloud)
    cloud.clock.advance(BOOT)
    cloud.interrupt(machine, notice=120.0)
    assert truth(cloud).notice_at == BOOT + 120.0
    cloud.clock.advance(119.0)
    assert cloud.describe(machine).state is State.RUNNING
    cloud.clock.advance(1.0)
    assert cloud.describe(machine).reason == "interrupted"
    assert truth(cloud).notice_at is None


def test_an_interruption_without_notice_is_not_known_before() -> None:
    cloud = make()
    cloud.faults.next("launch", Interrupted(after=50.0))
    machine = start(cloud)
    cloud.clock.advance(49.0)
    assert truth(cloud).notice_at is None
    assert cloud.describe(machine).state is State.RUNNING
    cloud.clock.advance(1.0)
    assert cloud.describe(machine).reason == "interrupted"


def test_an_interruption_programmed_with_notice_is_known_no_earlier_than_it_is_decided() -> None:
    cloud = make()
    cloud.faults.next("launch", Interrupted(after=50.0, notice=30.0))
    start(cloud)
    cloud.clock.advance(49.0)
    assert truth(cloud).notice_at is None
    cloud.clock.advance(1.0)
    assert truth(cloud).notice_at == 80.0


@given(seed=st.integers(0, 10**6), longest_run=st.floats(30.0, 10**5))
def test_the_cloud_ends_what_runs_too_long_at_most_half_a_minute_late(
    seed: int, longest_run: float
) -> None:
    cloud = make(seed=seed)
    machine = start(cloud, longest_run=longest_run)
    cloud.clock.advance(BOOT + longest_run - 0.01)
    assert cloud.describe(machine).state is State.RUNNING
    cloud.clock.advance(30.01)
    assert cloud.describe(machine).reason == "longest run"


def test_a_machine_powers_itself_off_when_its_prepaid_time_ends() -> None:
    cloud = make()
    machine = start(cloud, prepaid=600.0)
    cloud.clock.advance(BOOT + 599.0)
    assert cloud.describe(machine).state is State.RUNNING
    cloud.clock.advance(1.0)
    assert cloud.describe(machine).reason == "prepaid"


def test_renewals_move_the_end_of_the_prepaid_time_both_ways() -> None:
    cloud = make()
    machine = start(cloud, prepaid=60.0)
    for _ in range(10):
        cloud.clock.advance(50.0)
        cloud.renew(machine, 60.0)
    assert cloud.describe(machine).state is State.RUNNING
    cloud.renew(machine, 5.0)
    cloud.clock.advance(5.0)
    assert cloud.describe(machine).state is State.ENDING
    with pytest.raises(Refusal) as caught:
        cloud.renew(machine, 60.0)
    assert code_of(caught) == "IncorrectInstanceState"


def test_a_renewal_undoes_no_interruption() -> None:
    cloud = make()
    machine = start(cloud, prepaid=60.0)
    cloud.clock.advance(BOOT)
    cloud.interrupt(machine, notice=120.0)
    cloud.renew(machine, 600.0)
    cloud.clock.advance(120.0)
    assert cloud.describe(machine).reason == "interrupted"


def test_addresses_of_machines_that_are_gone_are_given_to_new_ones_and_names_never() -> None:
    cloud = make()
    first, second = start(cloud, "first"), start(cloud, "second")
    address = cloud.describe(first).address
    assert cloud.describe(second).address != address
    cloud.terminate(first)
    cloud.clock.advance(ENDING)
    third = start(cloud, "third")
    assert cloud.describe(third).address == address
    assert len({first, second, third}) == 3


# The bill


@pytest.mark.parametrize(
    ("tariff", "life", "dollars"),
    [
        (Tariff(3.6), 100.0, 0.1),
        (Tariff(3.6, quantum=60.0), 100.0, 0.12),
        (Tariff(3.6, quantum=60.0), 120.0, 0.12),
        (Tariff(3.6, quantum=3600.0), 1.0, 3.6),
        (Tariff(3.6, minimum=60.0), 1.0, 0.06),
        (Tariff(3.6, quantum=1.0, minimum=60.0), 60.5, 0.061),
        (Tariff(0.0), 100.0, 0.0),
    ],
)
def test_a_life_is_billed_by_the_quantum_and_at_least_the_minimum(
    tariff: Tariff, life: float, dollars: float
) -> None:
    assert float(tariff.dollars(life)) == dollars


def test_the_bill_covers_a_machine_from_its_creation_until_it_is_gone() -> None:
    cloud = make(tariffs={"small": Tariff(3600.0)}, list_lag=60.0)
    machine = start(cloud, labels={"job": "one"})
    cloud.clock.advance(100.0)
    assert cloud.bill().total == 100.0
    cloud.terminate(machine)
    start(cloud, "another", labels={"job": "two"})
    cloud.clock.advance(1000.0)
    assert cloud.bill(until=50.0).total == 50.0
    assert [line.life for line in cloud.bill().lines] == [100.0 + ENDING, 1000.0]
    assert cloud.bill().of(job="one") == 100.0 + ENDING
    cloud.clock.advance(2 * MEMORY)
    assert cloud.bill().of(job="one") == 100.0 + ENDING


# Clocks and processes


@pytest.mark.parametrize("clock", [VirtualClock(), RealClock()])
def test_a_clock_jumps_ahead_never_back_and_wakes_who_waits(clock: Clock) -> None:
    waiting = threading.Thread(target=clock.wait, args=(3600.0,))
    waiting.start()
    before = clock.now()
    assert clock.advance(4000.0) >= before + 4000.0
    # Who came too late for the first jump is woken by the second.
    clock.advance(4000.0)
    waiting.join()
    assert not waiting.is_alive()
    with pytest.raises(ValueError, match="negative"):
        clock.advance(-1.0)


def test_real_time_passes_by_itself() -> None:
    clock = RealClock()
    before = clock.now()
    clock.wait(0.01)
    assert clock.now() >= before + 0.01


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    port_file = tmp_path / "port"
    command = ["-m", "tests.fakecloud", "--port-file", str(port_file)]
    manners = '{"list_lag": 5.0, "tariffs": {"small": {"price_per_hour": 3600.0}}}'
    with subprocess.Popen([sys.executable, *command, "--settings", manners], cwd=PROJECT) as cloud:
        try:
            until(port_file.exists)
            yield f"http://127.0.0.1:{port_file.read_text()}"
        finally:
            cloud.kill()


LAUNCH = """
import os, signal, sys
from service.clouds.provider import LaunchRequest
from tests.builders import boot, offer
from tests.fakecloud.provider import FakeCloudProvider
place = offer("0.5", zone="a", machine_type="small")
request = LaunchRequest("key-1", place, boot())
FakeCloudProvider(sys.argv[1], "ours").launch(request)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_cloud_of_its_own_process_outlives_killed_controllers(remote: str) -> None:
    killed = subprocess.run([sys.executable, "-c", LAUNCH, remote], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    with Control(remote) as control:
        (made,) = control.machines()
        assert made.description.state is State.PENDING
        assert control.advance(BOOT) == control.now() == BOOT
        control.renew(made.description.id, 100.0)
        assert control.bill().total == 30.0
        control.interrupt(made.description.id, notice=10.0)
        (made,) = control.machines()
        assert made.notice_at == BOOT + 10.0
        control.next("launch", Refused("Unavailable"), about="never")
        control.always("list", Omitted())
        control.sometimes("describe", Garbage(), 1.0)
        assert httpx.post(f"{remote}/cloud/list", content="{}").json()["machines"] == []
        page = httpx.post(f"{remote}/cloud/describe", json={"machine": made.description.id})
        assert (page.status_code, page.headers["Content-Type"]) == (500, "text/html")
        assert control.counts() == {"Omitted": 1, "Garbage": 1}
        control.calm()
        assert control.unfired() == ("launch Refused",)
        control.stock("small@a", 0)
        sold_out = {"token": "never", "request": {"machine_type": "small", "zone": "a"}}
        refused = httpx.post(f"{remote}/cloud/launch", json=sold_out)
        assert (refused.status_code, refused.json()["code"]) == (
            503,
            "InsufficientInstanceCapacity",
        )
        with pytest.raises(ValueError, match="MalformedRequest"):
            control.advance(-1.0)


@pytest.mark.parametrize("fault", [LostRequest(), LostResponse(), LateRequest(1.0)])
def test_a_lost_answer_is_a_connection_that_is_reset(fault: Fault) -> None:
    cloud = make()
    cloud.faults.next("list", fault)
    with CloudServer(cloud) as server, pytest.raises(httpx.ReadError):
        httpx.post(f"{server.url}/cloud/list", content="{}")


# Laws


TOKENS = tuple(f"token-{number}" for number in range(6))
PREPAID_TIMES = (40.0, 90.0)
ORDER = (State.PENDING, State.RUNNING, State.ENDING, State.GONE)
TARIFF = Tariff(3.6, quantum=60.0, minimum=120.0)
LAG = 20.0


class CloudLaws(RuleBasedStateMachine):
    """A controller that loses answers, beside a notebook in which the tester writes the truth."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        tariffs = {"small": TARIFF}
        self.cloud = FakeCloud(
            VirtualClock(), Settings(tariffs=tariffs, list_lag=LAG, page=2, memory=10**6)
        )
        self.token_of: dict[str, str] = {}
        self.born: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.asked: dict[str, float] = {}
        self.strays: list[tuple[float, str, float]] = []
        self.seen: dict[str, State] = {}

    @property
    def now(self) -> float:
        return self.cloud.clock.now()

    @rule(target=ids, token=st.sampled_from(TOKENS), prepaid=st.sampled_from(PREPAID_TIMES))
    def launch(self, token: str, prepaid: float) -> Any:
        return self._launch(token, prepaid)

    @rule(
        token=st.sampled_from(TOKENS),
        prepaid=st.sampled_from(PREPAID_TIMES),
        fault=st.sampled_from((LostResponse(), LostRequest(), LateRequest(15.0), Garbage())),
    )
    def launch_unheard(self, token: str, prepaid: float, fault: Fault) -> None:
        self.cloud.faults.next("launch", fault)
        with pytest.raises((ConnectionLost, Gibberish)):
            self.cloud.launch(token, wanted(prepaid=prepaid))
        if isinstance(fault, LateRequest):
            self.strays.append((self.now + fault.after, token, prepaid))
        elif not isinstance(fault, LostRequest):
            self._note(self.now, token, prepaid)

    @rule(target=ids, token=st.sampled_from(TOKENS), prepaid=st.sampled_from(PREPAID_TIMES))
    def launch_twice(self, token: str, prepaid: float) -> Any:
        self.cloud.faults.next("launch", Duplicate(after=12.0))
        self.strays.append((self.now + 12.0, token, prepaid))
        return self._launch(token, prepaid)

    @rule(machine=ids)
    def terminate(self, machine: str) -> None:
        code = refused(lambda: self.cloud.terminate(machine))
        assert code in (None, "InvalidInstanceID.NotFound")
        if code is None:
            self.ends[machine] = min(self.ends[machine], self.now)
        else:
            assert self.now < self.born[machine] + LAG

    @rule(machine=ids, lease=st.sampled_from((0.0, 30.0, 300.0)))
    def renew(self, machine: str, lease: float) -> None:
        is_running = self.born[machine] + BOOT <= self.now < self.ends[machine]
        code = refused(lambda: self.cloud.renew(machine, lease))
        assert code == (None if is_running else "IncorrectInstanceState")
        if is_running:
            self.ends[machine] = self.now + lease

    @rule(machine=consumes(ids))
    def interrupt(self, machine: str) -> None:
        self.cloud.interrupt(machine)
        self.ends[machine] = min(self.ends[machine], self.now)

    @rule(seconds=st.sampled_from((0.0, 1.0, 7.0, 30.0, 200.0)))
    def advance(self, seconds: float) -> None:
        self.cloud.clock.advance(seconds)
        due = [stray for stray in self.strays if stray[0] <= self.now]
        self.strays = [stray for stray in self.strays if stray[0] > self.now]
        for stray in sorted(due, key=itemgetter(0)):
            self._note(*stray)

    @invariant()
    def a_token_has_one_machine(self) -> None:
        made = self.cloud.machines()
        tokens = [machine.description.token for machine in made]
        assert len(tokens) == len(set(tokens))
        assert set(tokens) == set(self.token_of)

    @invariant()
    def shown_states_never_go_back(self) -> None:
        for machine in self._list():
            before = self.seen.get(machine.id, State.PENDING)
            assert ORDER.index(machine.state) >= ORDER.index(before)
            self.seen[machine.id] = machine.state

    @invariant()
    def what_was_shown_stays_shown(self) -> None:
        assert {machine.id for machine in self._list()} == set(self.seen)

    @invariant()
    def the_lag_is_bounded(self) -> None:
        shown = {machine.id: machine.state for machine in self._list()}
        for machine, born in self.born.items():
            if self.now >= born + LAG:
                assert machine in shown
            if self.now >= self.ends[machine] + ENDING + LAG:
                assert shown[machine] is State.GONE

    @invariant()
    def the_bill_is_the_sum_over_lives(self) -> None:
        lives = [
            min(self.now, self.ends[machine] + ENDING) - born
            for machine, born in self.born.items()
            if born < self.now
        ]
        quanta = [max(-(-life // 60.0), 2.0) for life in lives]
        assert self.cloud.bill().total == pytest.approx(sum(quanta) * 0.06)

    def teardown(self) -> None:
        """All machines end without another request: their time was prepaid."""
        self.advance(1000.0)
        self.advance(1000.0)
        assert {machine.state for machine in self._list()} <= {State.GONE}
        assert {machine.id for machine in self._list()} == set(self.born)
        self.cloud.clock.advance(2 * 10**6)
        assert self._list() == []
        assert not self.cloud.faults.unfired()

    def _launch(self, token: str, prepaid: float) -> Any:
        known = self.token_of.get(token)
        code = refused(lambda: self.cloud.launch(token, wanted(prepaid=prepaid)))
        if known is None:
            assert code is None
            self._note(self.now, token, prepaid)
            return self.token_of[token]
        is_ended = self.now >= self.ends[known]
        is_other = self.asked[known] != prepaid
        mismatch = "IdempotentParameterMismatch" if is_other else None
        assert code == ("IdempotentInstanceTerminated" if is_ended else mismatch)
        return multiple()

    def _note(self, at: float, token: str, prepaid: float) -> None:
        """Write down a machine that a launch made, if it is its token's first."""
        if token in self.token_of:
            return
        made = {truth.description.token: truth.description.id for truth in self.cloud.machines()}
        machine = made[token]
        self.token_of[token], self.born[machine] = machine, at
        self.ends[machine], self.asked[machine] = at + BOOT + prepaid, prepaid

    def _list(self) -> list[Description]:
        machines: list[Description] = []
        after: int | None = 0
        while after is not None:
            page = self.cloud.list(after)
            machines += page.machines
            after = page.after
        return machines


TestCloudLaws = CloudLaws.TestCase
TestCloudLaws.settings = settings(max_examples=100, stateful_step_count=40)
