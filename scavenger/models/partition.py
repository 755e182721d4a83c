"""`partition_chain`: cut a chain of layers into pipeline stages, each on one machine or several.

The recurrence of PipeDream (Harlap et al. 2018; Narayanan et al., SOSP 2019), run from the last
layer to the first: then the minibatches in flight in a stage, and so its memory, are known when
the stage is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import Floats
from scavenger.number_checks import require_above_zero, require_not_negative

# An all-reduce of w bytes among r machines sends 2 (r-1)/r w each way;
# the paper adds both ways up.
TRAFFIC_PER_WEIGHT_BYTE: Final = 4
# Plans whose times differ by less than this, relative, are equally good: fewer stages win.
TIE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer of a chain takes for one minibatch on one machine.

    Attributes:
        seconds: Forward and backward pass.
        output_bytes: Output of the forward pass, and so the gradient by it.
        weight_bytes: Weights.
        saved_bytes: What the forward pass keeps for the backward pass.
    """

    seconds: float
    output_bytes: float
    weight_bytes: float
    saved_bytes: float = 0.0

    def __post_init__(self) -> None:
        require_not_negative(self, "seconds", "output_bytes", "weight_bytes", "saved_bytes")


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """What machines and links allow.

    Attributes:
        bytes_per_second: Of each link between machines, each way.
        memory_bytes: Of one machine; infinite where nothing tells.
        optimizer_slots: Tensors of the size of the weights that the optimizer keeps: 2 of Adam.
    """

    bytes_per_second: float
    memory_bytes: float = math.inf
    optimizer_slots: int = 0

    def __post_init__(self) -> None:
        require_above_zero(self, "bytes_per_second")
        require_not_negative(self, "optimizer_slots")
        if not self.memory_bytes > 0:
            raise ValueError(f"memory_bytes must be above 0, got {self.memory_bytes}")


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on machines that have a copy each.

    Attributes:
        first: Its first layer, counted from 0.
        last: Its last layer.
        replicas: Machines; minibatch k is computed by replica k modulo their number.
        in_flight: Minibatches that each replica has begun and not ended, at most.
        memory_bytes: What each replica needs.
    """

    first: int
    last: int
    replicas: int
    in_flight: int
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Partition:
    """A chain that is cut into stages.

    Attributes:
        stages: From the first layers to the last.
        seconds: Between two minibatches, once the pipeline is full.
    """

    stages: tuple[Stage, ...]
    seconds: float

    @property
    def machines(self) -> int:
        """Machines of all stages."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def in_flight_per_input(self) -> int:
        """Minibatches that each replica of the first stage admits: NOAM of the paper."""
        return self.stages[0].in_flight

    @property
    def shape(self) -> str:
        """Machines of each stage, as the paper writes them.

        >>> Partition((Stage(0, 4, 7, 2, 0.0), Stage(5, 6, 1, 1, 0.0)), 0.1).shape
        '7-1'
        """
        return "-".join(str(stage.replicas) for stage in self.stages)


def partition_chain(
    layers: Sequence[Layer], machines: int, limits: PartitionLimits
) -> tuple[Partition | None, ...]:
    """Cut a chain in the best way for every number of machines up to one.

    Args:
        layers: At least one.
        machines: The most machines, from 1.
        limits: Of machines and links.

    Returns:
        For 1, 2, … machines the partition that uses all of them and ends minibatches fastest; None
        where none fits their memory.

    Raises:
        ValueError: There is no layer, or no machine.
    """
    if not layers or machines < 1:
        raise ValueError(f"needs layers and machines, got {len(layers)} and {machines}")
    chain = _Chain(layers, machines, limits)
    return tuple(chain.partition(count) for count in range(1, machines + 1))


class _Chain:
    """The recurrence over suffixes of a chain: layers i..n-1 on m machines.

    Attributes:
        best: Seconds of the best partition of each suffix, by first layer and machines.
        stages: Stages of that partition.
        cuts: Last layer and replicas of its first stage.
    """

    def __init__(self, layers: Sequence[Layer], machines: int, limits: PartitionLimits) -> None:
        count = len(layers)
        self.layers, self.limits = layers, limits
        self.replicas = np.arange(1, machines + 1)
        self.seconds = self._sums([layer.seconds for layer in layers])
        self.weights = self._sums([layer.weight_bytes for layer in layers])
        self.saved = self._sums([layer.saved_bytes for layer in layers])
        sent = np.array([layer.output_bytes for layer in layers])
        self.links = 2 * sent / limits.bytes_per_second
        self.links[-1] = 0.0  # of the last layer nothing is sent
        self.best: Floats = np.full((count + 1, machines + 1), np.inf)
        self.stages: NDArray[np.int64] = np.zeros((count + 1, machines + 1), dtype=np.int64)
        self.cuts: NDArray[np.int64] = np.zeros((count + 1, machines + 1, 2), dtype=np.int64)
        self.best[count, 0] = 0.0
        for first in reversed(range(count)):
            times = self._stage_times(first)
            for total in range(1, machines + 1):
                self._cut(first, total, times)

    @staticmethod
    def _sums(values: Sequence[float]) -> Floats:
        """Return sums over the layers before each, so that a difference is the sum of a stage."""
        return np.concatenate([[0.0], np.cumsum(values)])

    def _stage_times(self, first: int) -> Floats:
        """Return seconds per minibatch of a stage from a layer on, by last layer and replicas."""
        compute = (self.seconds[first + 1 :] - self.seconds[first])[:, None]
        weights = (self.weights[first + 1 :] - self.weights[first])[:, None]
        r = self.replicas
        traffic = TRAFFIC_PER_WEIGHT_BYTE * (r - 1) / r * weights / self.limits.bytes_per_second
        return np.asarray(np.maximum(compute, traffic) / r)

    def _memory(self, first: int, total: int) -> Floats:
        """Return what a replica of the first stage needs, by last layer and replicas."""
        weights = (self.weights[first + 1 :] - self.weights[first])[:, None]
        saved = (self.saved[first + 1 :] - self.saved[first])[:, None]
        in_flight = np.ceil(total / self.replicas[:total])
        # Each minibatch in flight has a version of the weights; one more holds the gradients.
        copies = in_flight + 1 + self.limits.optimizer_slots
        return np.asarray(weights * copies + saved * in_flight)

    def _cut(self, first: int, total: int, times: Floats) -> None:
        """Find the best first stage of a suffix on so many machines."""
        rest = self.best[first + 1 :, total - 1 :: -1]
        slowest = np.maximum(np.maximum(times[:, :total], self.links[first:, None]), rest)
        if self.limits.memory_bytes < math.inf:
            slowest[self._memory(first, total) > self.limits.memory_bytes] = np.inf
        least = slowest.min()
        if not np.isfinite(least):
            return
        counts = self.stages[first + 1 :, total - 1 :: -1] + 1
        fewest = np.where(slowest <= least * (1 + TIE), counts, np.iinfo(np.int64).max)
        last, replicas = np.unravel_index(int(fewest.argmin()), fewest.shape)
        self.best[first, total] = slowest[last, replicas]
        self.stages[first, total] = counts[last, replicas]
        self.cuts[first, total] = first + last, replicas + 1

    def partition(self, machines: int) -> Partition | None:
        """Return the best partition of the whole chain on so many machines."""
        if not np.isfinite(self.best[0, machines]):
            return None
        stages, first, left = [], 0, machines
        while first < len(self.layers):
            last, replicas = (int(each) for each in self.cuts[first, left])
            needed = float(self._memory(first, left)[last - first, replicas - 1])
            stages.append(Stage(first, last, replicas, -(-left // replicas), needed))
            first, left = last + 1, left - replicas
        return Partition(tuple(stages), float(self.best[0, machines]))
