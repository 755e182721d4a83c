"""Times and values of a device that computes behind its host: right, in order, without waiting.

The device is a fake: its events happen at arbitrary later moments, in device time that has nothing
to do with the host's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.alone import attach_alone
from tests.fake_device import FakeDevice, FakeEvent, lagging_devices
from tests.played_session import PLAYED_ITERATIONS, play
from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH
from worker_agent.launcher.rank_aggregator import RankAggregator
from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.launcher.step_timer import PendingStep, StepTimer
from worker_agent.pytorch.device_clock import DeviceClock
from worker_agent.step_clock import LATEST_ARRIVAL, MAX_ARRIVING, ArrivalQueue

MILLISECONDS = st.integers(0, 1000).map(float)


@dataclass
class Parcel:
    """Something that arrives when it is told to."""

    number: int
    has_arrived: bool = False

    def is_there(self) -> bool:
        return self.has_arrived


@given(
    st.lists(st.sampled_from(["put", "take", "arrive", "overtake"]), max_size=120),
    st.sets(st.integers(0, 60), max_size=4),
)
def test_what_arrives_is_taken_in_order_and_only_what_is_lost_is_missing(
    acts: list[str], lost: set[int]
) -> None:
    queue: ArrivalQueue[Parcel] = ArrivalQueue()
    parcels: list[Parcel] = []
    taken: list[int] = []
    for act in acts:
        sent = [each for each in parcels if not each.has_arrived and each.number not in lost]
        if act == "put":
            parcels.append(Parcel(len(parcels)))
            queue.put(parcels[-1])
        elif act == "take":
            taken += [each.number for each in queue.take()]
        elif sent:
            # Two streams may overtake each other, by less than what shows that one is lost.
            sent[1 if act == "overtake" and len(sent) > 1 else 0].has_arrived = True
    for each in parcels:
        each.has_arrived = each.number not in lost
    taken += [each.number for each in queue.take()]
    taken += [each.number for each in queue.take_last()]
    assert taken == [each.number for each in parcels if each.number not in lost]
    assert not queue.waiting


def test_a_lost_one_holds_up_those_behind_it_for_a_while_only() -> None:
    queue: ArrivalQueue[Parcel] = ArrivalQueue()
    for number in range(LATEST_ARRIVAL):
        queue.put(Parcel(number, has_arrived=number > 0))
    assert queue.take() == []
    queue.put(Parcel(LATEST_ARRIVAL, has_arrived=True))
    assert [each.number for each in queue.take()] == list(range(1, LATEST_ARRIVAL + 1))


def test_a_device_that_finishes_nothing_any_more_fills_no_memory() -> None:
    queue: ArrivalQueue[Parcel] = ArrivalQueue()
    for number in range(3 * MAX_ARRIVING):
        queue.put(Parcel(number))
    assert queue.take() == []
    assert len(queue.waiting) == MAX_ARRIVING


@dataclass(frozen=True)
class Iteration:
    """What the device does in one iteration, and what it does beside each.

    Attributes:
        passes: Milliseconds of each backward pass, and of averaging after it.
        step: Milliseconds of the optimizer.
        pause: Milliseconds until the next iteration.
        progress: Items that the device does meanwhile, at each of four moments.
    """

    passes: list[tuple[float, float]]
    step: float
    pause: float
    progress: tuple[int, int, int, int]


ITERATION = st.builds(
    Iteration,
    passes=st.lists(st.tuples(MILLISECONDS, MILLISECONDS), min_size=1, max_size=3),
    step=MILLISECONDS,
    pause=MILLISECONDS,
    progress=st.tuples(*[st.integers(0, 12)] * 4),
)


def run(timer: StepTimer, device: FakeDevice, iteration: Iteration) -> None:
    """Queue one iteration as the hooks of DDP see it."""
    stream, (first, second, third, fourth) = device.stream, iteration.progress
    for computing, averaging in iteration.passes:
        timer.forward_starts(8)
        stream.compute(computing)
        stream.advance(first)
        timer.backward_starts()
        timer.gradients_are_ready()
        stream.compute(averaging)
        stream.advance(second)
        timer.gradients_are_averaged()
    stream.compute(iteration.step)
    stream.advance(third)
    timer.step_ends()
    stream.compute(iteration.pause)
    stream.advance(fourth)


def expected(iterations: list[Iteration], place: int) -> tuple[float, float, float]:
    """Return the seconds that the device computes, averages, and needs for the whole step."""
    here = iterations[place]
    computing = sum(each for each, _ in here.passes)
    averaging = sum(each for _, each in here.passes)
    pause = iterations[place - 1].pause if place else 0.0
    whole = pause + computing + averaging + here.step
    return computing / 1000, averaging / 1000, whole / 1000


def measure(
    iterations: list[Iteration], takes: list[bool], lost: int | None = None
) -> tuple[FakeDevice, list[PendingStep]]:
    """Run all iterations and read the steps at some of the moments between them."""
    device, queue = FakeDevice(), ArrivalQueue[PendingStep]()
    timer = StepTimer(queue.put, lambda _: None)
    timer.use_clock(DeviceClock(device.pool))
    found: list[PendingStep] = []
    for place, iteration in enumerate(iterations):
        run(timer, device, iteration)
        if place == lost:
            assert timer.ended_at is not None
            timer.ended_at.event.is_lost = True
            timer.ended_at.event.at, timer.ended_at.has_come = None, False
        if place < len(takes) and takes[place]:
            found += queue.take()
    device.stream.advance(10_000)
    found += queue.take()
    return device, found + queue.take_last()


@given(st.lists(ITERATION, min_size=1, max_size=12), st.lists(st.booleans(), max_size=12))
def test_the_times_of_all_steps_are_those_of_the_device(
    iterations: list[Iteration], takes: list[bool]
) -> None:
    _, found = measure(iterations, takes)
    rows = [step.read() for step in found]
    assert [row.iteration for row in rows] == list(range(1, len(iterations) + 1))
    for place, row in enumerate(rows):
        times = row.compute_time, row.sync_time, row.step_time
        assert times == pytest.approx(expected(iterations, place), abs=1e-9)
        assert row.samples == 8 * len(iterations[place].passes)


@given(st.lists(ITERATION, min_size=3, max_size=24), st.data())
def test_a_lost_event_costs_the_two_steps_between_which_it_lies(
    iterations: list[Iteration], data: st.DataObject
) -> None:
    takes = data.draw(st.lists(st.booleans(), max_size=24))
    lost = data.draw(st.integers(0, len(iterations) - 1))
    # It must not have happened, and been read, before it is lost.
    held = [
        Iteration(each.passes, each.step, each.pause, (0, 0, 0, 0)) if place == lost else each
        for place, each in enumerate(iterations)
    ]
    _, found = measure(held, takes, lost)
    missing = {lost + 1, lost + 2}
    assert [step.iteration for step in found] == [
        number for number in range(1, len(held) + 1) if number not in missing
    ]


@given(ITERATION)
@settings(max_examples=20)
def test_events_are_used_again(iteration: Iteration) -> None:
    device, queue = FakeDevice(), ArrivalQueue[PendingStep]()
    timer = StepTimer(queue.put, lambda _: None)
    timer.use_clock(DeviceClock(device.pool))
    made = []
    for _ in range(60):
        run(timer, device, iteration)
        device.stream.advance(1000)
        assert len(queue.take()) == 1
        made.append(len(device.events))
    assert made[2] == made[-1] <= 12 + 4 * len(iteration.passes)
    del timer
    assert len(device.pool.spare) == len(device.events)


def test_a_device_that_fails_is_one_whose_events_never_happen() -> None:
    class Failed(FakeEvent):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: unspecified launch failure")

    device = FakeDevice()
    device.pool.make_event = Failed
    clock = DeviceClock(device.pool)
    assert not clock.is_there(clock.mark())


def test_rows_are_written_when_the_device_has_finished_them_and_at_the_end(tmp_path: Path) -> None:
    device, rows = FakeDevice(), list[MeasuredStep]()
    aggregator = RankAggregator(0, 1, None, rows.append, tmp_path / "wish")
    timer = StepTimer(aggregator.queue.put, lambda _: None)
    timer.use_clock(DeviceClock(device.pool))
    for _ in range(40):
        run(timer, device, Iteration([(20.0, 5.0)], 2.0, 1.0, (0, 0, 0, 0)))
    device.events[0].is_lost = True  # where the first forward pass began
    device.stream.advance(1000)
    aggregator.close()
    assert [row.iteration for row in rows] == list(range(2, 41))
    for row in rows:
        assert (row.compute_time, row.sync_time) == pytest.approx((0.02, 0.005))
        assert row.step_time == pytest.approx(0.028)


@pytest.mark.parametrize(("workers", "split_every"), [(1, 2), (2, 0), (3, 0)])
def test_a_session_on_a_device_tells_what_one_on_the_host_does(
    tmp_path: Path, workers: int, split_every: int
) -> None:
    on_host = play(tmp_path / "host", workers, split_every)
    assert len(on_host.rows) == PLAYED_ITERATIONS - 2
    assert on_host.reads  # so the trap works
    for lag in (0, 5):  # in events, of which an iteration has five or six
        with lagging_devices(lag):
            on_device = play(tmp_path / f"device-{lag}", workers, split_every)
        assert len(on_device.rows) in range(PLAYED_ITERATIONS - 3, PLAYED_ITERATIONS)
        for iteration in on_host.rows.keys() & on_device.rows.keys():
            expected_row = pytest.approx(on_host.rows[iteration], rel=1e-9, nan_ok=True)
            assert on_device.rows[iteration] == expected_row
        # Each mark takes a second of this device, and so does each copy of what is logged.
        for iteration, times in on_device.times.items():
            is_split = split_every > 0 and (iteration - 1) % split_every == 0
            assert times[:2] == (2.0 if is_split else 1.0, 1.0)
            assert times[2] in (5.0, 6.0)
        assert on_device.reads == []  # in a step, nor between two
        # With rows behind the last bucket, three workers divide their sums at other places.
        difference = (on_device.weights - on_host.weights).abs().max()
        assert difference <= (1e-12 if workers > 2 else 0.0)


def test_a_compiled_model_is_measured_in_every_iteration() -> None:
    with lagging_devices(0):
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = attach_alone(model, optimizer)
        compiled: Any = torch.compile(model, backend="eager")
        times = []
        for _ in range(5):
            strategy.begin(WHOLE_BATCH, NO_FLAGS)
            optimizer.zero_grad()
            compiled(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            assert strategy.end()
            if strategy.previous_summary is not None:
                times += [each.compute_time for each in strategy.previous_summary.late or ()]
        strategy.close()
    assert times == [1.0] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_parameter_servers_read_the_times_where_they_wait_for_the_gradients(
    tmp_path: Path, workers: int
) -> None:
    strategy = "parameter_server"
    on_host = play(tmp_path / "host", workers, 2, strategy=strategy)
    with lagging_devices(0):  # the copy of the gradients has waited for all before
        on_device = play(tmp_path / "device", workers, 2, strategy=strategy)
    assert len(on_host.rows) == len(on_device.rows) == PLAYED_ITERATIONS - 2
    for iteration, row in on_host.rows.items():
        norms, its_norms = row[:3], on_device.rows[iteration][:3]
        assert its_norms == pytest.approx(norms, rel=1e-9, nan_ok=True)
        is_split = workers == 1 and iteration % 2 == 1
        assert on_device.times[iteration][0] == (2.0 if is_split else 1.0)
    assert float((on_device.weights - on_host.weights).abs().max()) <= 1e-12
