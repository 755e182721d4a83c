"""Laws of `partition_chain`: the best of all partitions, within memory, and as fast as foretold."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from scavenger.models.partition import (
    Layer,
    Partition,
    PartitionLimits,
    Stage,
    partition_chain,
)

# VGG-16 on a V100, as its layers were measured by the authors of PipeDream
# (github.com/msr-fiddle/pipedream, profiler/image_classification): milliseconds of both passes,
# megabytes of output, megabytes of weights. ReLU, pooling and dropout count to the layer before.
VGG16 = (
    (74.891, 1644.17, 0.007),
    (178.671, 411.04, 0.148),
    (59.900, 822.08, 0.295),
    (85.573, 205.52, 0.590),
    (31.906, 411.04, 1.181),
    (47.584, 411.04, 2.360),
    (53.685, 102.76, 2.360),
    (25.545, 205.52, 4.721),
    (38.827, 205.52, 9.439),
    (43.590, 51.38, 9.439),
    (14.039, 51.38, 9.439),
    (12.104, 51.38, 9.439),
    (14.107, 12.85, 9.439),
    (7.457, 2.10, 411.058),
    (1.752, 2.10, 67.125),
    (0.941, 0.51, 16.388),
)


def chain(rng: np.random.Generator, count: int) -> list[Layer]:
    return [
        Layer(rng.uniform(0.1, 3), rng.uniform(0, 2), rng.uniform(0, 5), rng.uniform(0, 4))
        for _ in range(count)
    ]


def partitions(count: int, machines: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield every way to cut layers into stages of so many machines: first, last, replicas."""
    for stages in range(1, min(count, machines) + 1):
        for cuts in itertools.combinations(range(1, count), stages - 1):
            bounds = [0, *cuts, count]
            for replicas in itertools.product(range(1, machines + 1), repeat=stages):
                if sum(replicas) == machines:
                    ends = itertools.pairwise(bounds)
                    yield [(a, b - 1, r) for (a, b), r in zip(ends, replicas, strict=True)]


def seconds_of(
    layers: Sequence[Layer], stages: Sequence[tuple[int, int, int]], limits: PartitionLimits
) -> float:
    """Return seconds per minibatch by the paper's formulas; infinite where memory is too small."""
    slowest, left = 0.0, sum(replicas for *_, replicas in stages)
    for first, last, replicas in stages:
        own = layers[first : last + 1]
        weights = sum(layer.weight_bytes for layer in own)
        compute = sum(layer.seconds for layer in own)
        traffic = 4 * (replicas - 1) / replicas * weights / limits.bytes_per_second
        slowest = max(slowest, max(compute, traffic) / replicas)
        if last < len(layers) - 1:
            slowest = max(slowest, 2 * layers[last].output_bytes / limits.bytes_per_second)
        versions = math.ceil(left / replicas)
        saved = sum(layer.saved_bytes for layer in own)
        needed = (versions + 1 + limits.optimizer_slots) * weights + versions * saved
        if needed > limits.memory_bytes:
            return math.inf
        left -= replicas
    return slowest


@pytest.mark.parametrize("part", range(4))
def test_it_is_the_best_of_all_partitions(part: int) -> None:
    unfit = 0
    for number in range(250):
        rng = np.random.default_rng([part, number])
        layers, machines = chain(rng, int(rng.integers(1, 7))), int(rng.integers(1, 6))
        memory = math.inf if number % 2 else rng.uniform(5, 60)
        limits = PartitionLimits(float(rng.choice([1, 5, 50])), memory, int(rng.integers(0, 3)))
        for found, count in zip(
            partition_chain(layers, machines, limits), range(1, machines + 1), strict=True
        ):
            best = min(
                seconds_of(layers, stages, limits) for stages in partitions(len(layers), count)
            )
            unfit += math.isinf(best)
            if found is None:
                assert math.isinf(best)
                continue
            assert found.seconds == pytest.approx(best, rel=1e-12)
            cut = [(stage.first, stage.last, stage.replicas) for stage in found.stages]
            assert seconds_of(layers, cut, limits) == pytest.approx(best, rel=1e-12)
            assert found.machines == count
            assert max(stage.memory_bytes for stage in found.stages) <= memory
    assert unfit > 10


def test_the_pipeline_is_as_fast_as_foretold() -> None:
    for number in range(200):
        rng = np.random.default_rng([5, number])
        layers = [
            Layer(rng.uniform(0.2, 3), rng.uniform(0, 0.3), 0.0)
            for _ in range(int(rng.integers(3, 11)))
        ]
        found = partition_chain(layers, int(rng.integers(2, 7)), PartitionLimits(1.0))[-1]
        assert found is not None
        assert played(layers, found) == pytest.approx(found.seconds, rel=0.01)


def played(layers: Sequence[Layer], partition: Partition) -> float:
    """Play one forward, one backward in virtual time; return seconds per minibatch at the end."""
    first, last = 119, 359  # replicas of up to six machines end their minibatches together
    stages = partition.stages
    forward = [sum(x.seconds for x in layers[s.first : s.last + 1]) / 3 for s in stages]
    send = [layers[stage.last].output_bytes for stage in stages]
    events: list[tuple[float, int, str, int, int, str]] = []
    order = itertools.count()
    waiting: dict[tuple[int, int], list[tuple[str, int]]] = {}
    busy: set[tuple[int, int]] = set()

    def come(at: float, stage: int, minibatch: int, work: str) -> None:
        heapq.heappush(events, (at, next(order), "come", stage, minibatch, work))

    admitted, ended = 0, []
    for _ in range(partition.in_flight_per_input * stages[0].replicas):
        come(0.0, 0, admitted, "forward")
        admitted += 1
    while len(ended) <= last:
        now, _, what, stage, minibatch, work = heapq.heappop(events)
        place = (stage, minibatch % stages[stage].replicas)
        queue = waiting.setdefault(place, [])
        if what == "come":
            queue.append((work, minibatch))
        else:
            busy.discard(place)
            if work == "forward" and stage < len(stages) - 1:
                come(now + send[stage], stage + 1, minibatch, "forward")
            elif work == "forward":
                come(now, stage, minibatch, "backward")
            elif stage > 0:
                come(now + send[stage - 1], stage - 1, minibatch, "backward")
            else:
                ended.append(now)
                come(now, 0, admitted, "forward")
                admitted += 1
        if place not in busy and queue:
            chosen = min(queue)  # backward before forward, the oldest first
            queue.remove(chosen)
            busy.add(place)
            seconds = forward[stage] * (2 if chosen[0] == "backward" else 1)
            entry = (now + seconds, next(order), "done", stage, chosen[1], chosen[0])
            heapq.heappush(events, entry)
    return (ended[last] - ended[first]) / (last - first)


@pytest.mark.parametrize(("machines", "shape"), [(4, "3-1"), (8, "7-1"), (16, "15-1")])
def test_vgg16_is_cut_before_its_large_layers(machines: int, shape: str) -> None:
    layers = [Layer(ms / 1e3, 1e6 * out, 1e6 * weights) for ms, out, weights in VGG16]
    limits = PartitionLimits(10e9 / 8)
    one, *_, found = partition_chain(layers, machines, limits)
    assert one is not None
    assert found is not None
    assert found.shape == shape
    assert found.stages[0].in_flight == found.in_flight_per_input == 2
    together = seconds_of(layers, [(0, len(layers) - 1, machines)], limits)
    assert found.seconds < together / 1.8
    if machines == 8:
        assert one.seconds / found.seconds == pytest.approx(7.5, abs=0.1)
        assert one.seconds / together == pytest.approx(3.5, abs=0.1)


def test_of_equal_partitions_the_one_with_fewest_stages_is_taken() -> None:
    free = [Layer(1.0, 0.0, 0.0)] * 4
    shapes = [found and found.shape for found in partition_chain(free, 4, PartitionLimits(1.0))]
    assert shapes == ["1", "2", "3", "4"]


def test_a_model_that_fits_no_machine_is_cut_or_there_is_none() -> None:
    layers = [Layer(1.0, 1.0, 10.0, 1.0)] * 4
    fits = PartitionLimits(10.0, memory_bytes=45.0)
    one, two, three, four = partition_chain(layers, 4, fits)
    assert one is None
    assert two is None, "two minibatches in flight need two versions of two layers"
    assert three == Partition(
        (
            Stage(0, 0, 1, 3, 43.0),
            Stage(1, 1, 1, 2, 32.0),
            Stage(2, 3, 1, 1, 42.0),
        ),
        2.0,
    )
    assert four is not None
    assert four.shape == "2-1-1", "four minibatches in flight fit no machine"


@pytest.mark.parametrize(("layers", "machines"), [([], 1), ([Layer(1.0, 1.0, 1.0)], 0)])
def test_there_is_something_to_cut(layers: list[Layer], machines: int) -> None:
    with pytest.raises(ValueError, match="needs layers and machines"):
        partition_chain(layers, machines, PartitionLimits(1.0))
    with pytest.raises(ValueError, match="memory_bytes must be above 0"):
        PartitionLimits(1.0, memory_bytes=0.0)
