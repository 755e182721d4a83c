"""What a job can run on: machine types, one configuration, and the space of configurations.

``ClusterConfig`` is (K, B) of the paper, with the stack that computes a step. ``ConfigSpace`` lists
what a job may use, with ``MemoryModel`` excluding local batches that do not fit (III-E).
``ConfigColumns`` holds many configurations as columns, so that the laws predict all of them in one
call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scavenger.number_checks import require_above_zero, require_not_negative
from scavenger.stack import EAGER_NAME, EAGER_OPTION, StackFactors, StackOption


@dataclass(frozen=True, slots=True, order=True)
class MachineType:
    """One size of VM in one region.

    Attributes:
        name: The cloud's word for it, e.g. ``e2-standard-4``.
        vcpus: Virtual CPUs.
        memory_gib: Memory in GiB.
        workers: Workers one machine hosts, e.g. one per accelerator.
        region: Where it is rented; prices differ by region, speed does not.
    """

    name: str
    vcpus: float
    memory_gib: float
    workers: int = 1
    region: str = ""

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ValueError(f"name must not be empty nor hold an @, got {self.name!r}")
        require_above_zero(self, "vcpus", "memory_gib")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    @property
    def key(self) -> str:
        """Name and region, by which configurations and prices refer to this type."""
        return f"{self.name}@{self.region}" if self.region else self.name


def hardware_of(key: str) -> str:
    """Return the part of a machine's key that decides its speed: all but the region.

    >>> hardware_of("e2-standard-4@us-east1")
    'e2-standard-4'
    """
    return key.partition("@")[0]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Memory one worker needs, a line in its local batch.

    Attributes:
        fixed_gib: GiB for weights, optimizer and program.
        gib_per_sample: GiB per sample of the local batch.
    """

    fixed_gib: float
    gib_per_sample: float

    def __post_init__(self) -> None:
        require_not_negative(self, "fixed_gib", "gib_per_sample")

    def needed(self, local_batch: float) -> float:
        """GiB one worker needs at a local batch."""
        return self.fixed_gib + self.gib_per_sample * local_batch

    def fits(self, local_batch: float, machine: MachineType) -> bool:
        """Tell whether every worker of a machine can hold this local batch."""
        return self.needed(local_batch) * machine.workers <= machine.memory_gib

    def max_local_batch(self, machine: MachineType) -> float:
        """Largest local batch in samples that fits a machine (III-E).

        Returns:
            Samples; 0 when not even the model fits, infinite when samples need no memory.

        >>> MemoryModel(2.0, 0.125).max_local_batch(MachineType("e2-standard-4", 4, 16))
        112.0
        """
        if not self.fits(0, machine):
            return 0.0
        left = machine.memory_gib / machine.workers - self.fixed_gib
        most = left / self.gib_per_sample if self.gib_per_sample else math.inf
        if math.isinf(most):
            return math.inf
        near = float(round(most))
        # Rounding puts the quotient on either side of a batch that fits exactly.
        return next(b for b in (near + 1, near, near - 1, 0.0) if self.fits(b, machine))


@dataclass(frozen=True, slots=True, order=True)
class ClusterConfig:
    """How many workers share one global batch: (K, B) in the paper.

    Attributes:
        workers: Number of data-parallel workers, at least 1.
        global_batch: Samples per iteration over all workers, at least one per worker.
        workers_per_machine: Workers that share one VM, e.g. one per accelerator.
        machine_type: Key of the ``MachineType``; empty where there is only one.
        stack: How each worker computes a step, as ``Stack`` writes it.
    """

    workers: int
    global_batch: int
    workers_per_machine: int = 1
    machine_type: str = ""
    stack: str = EAGER_NAME

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.global_batch < self.workers:
            raise ValueError(
                f"global_batch {self.global_batch} is below workers {self.workers}: "
                "each worker needs at least one sample"
            )
        if self.workers_per_machine < 1:
            raise ValueError(
                f"workers_per_machine must be at least 1, got {self.workers_per_machine}"
            )

    @property
    def machines(self) -> int:
        """VMs the workers are spread over, the last one possibly not full."""
        return -(-self.workers // self.workers_per_machine)

    @property
    def local_batch(self) -> float:
        """Mean samples per worker and iteration, b = B / K."""
        return self.global_batch / self.workers

    def __str__(self) -> str:
        machine = f" on {self.machine_type}" if self.machine_type else ""
        stack = "" if self.stack == EAGER_NAME else f" {self.stack}"
        return f"K={self.workers} B={self.global_batch}{stack}{machine}"


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """The grid of configurations a job may use: every worker count with every global batch.

    With several stacks there is such a grid for each of them.

    Attributes:
        workers: Allowed worker counts, ascending, no repeats.
        global_batches: Allowed global batches in samples, ascending, no repeats.
        machine_types: Machine types to choose from; empty where there is only one.
        memory: What a local batch needs; bounds the batch by the machines' memory if given.
        most_local_batch: Samples one worker can hold on any machine with the script as it is;
            infinite where nothing tells.
        stacks: Stacks to choose from; a job starts with the first.
    """

    workers: tuple[int, ...]
    global_batches: tuple[int, ...]
    machine_types: tuple[MachineType, ...] = ()
    memory: MemoryModel | None = None
    most_local_batch: float = math.inf
    stacks: tuple[StackOption, ...] = (EAGER_OPTION,)

    def __post_init__(self) -> None:
        for name, values in (("workers", self.workers), ("global_batches", self.global_batches)):
            if not values:
                raise ValueError(f"{name} is empty")
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must ascend without repeats, got {values}")
        keys = [machine.key for machine in self.machine_types]
        if len(set(keys)) < len(keys):
            raise ValueError(f"machine_types must differ, got {keys}")
        names = [stack.name for stack in self.stacks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"stacks must be one or more and differ, got {names}")
        if self.global_batches[-1] < self.workers[0]:
            raise ValueError(
                f"no configuration: the largest global batch {self.global_batches[-1]} "
                f"is below the fewest workers {self.workers[0]}"
            )
        if next(iter(self), None) is None:
            raise ValueError(
                f"no configuration fits in memory: {self.workers[-1]} workers share a batch of "
                f"{self.global_batches[0]}, which needs more than the machines have, or than the "
                f"{self.most_local_batch:g} samples one worker can hold"
            )

    def __iter__(self) -> Iterator[ClusterConfig]:
        """Yield every configuration that fits, by stack, machine type, workers, then batch."""
        for stack in self.stacks:
            for machine in self.machine_types or (None,):
                for workers in self.workers:
                    for global_batch in self.global_batches:
                        if self._fits(workers, global_batch, machine, stack):
                            yield make_config(workers, global_batch, machine, stack)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, ClusterConfig) and any(
            config.workers in self.workers
            and config.global_batch in self.global_batches
            and config == make_config(config.workers, config.global_batch, machine, stack)
            and self._fits(config.workers, config.global_batch, machine, stack)
            for machine in self.machine_types or (None,)
            for stack in self.stacks
        )

    @property
    def start(self) -> ClusterConfig:
        """The configuration a job starts with: fewest workers, smallest batch they can share."""
        return next(iter(self))

    def corners(self, per_hardware: int = 4) -> tuple[ClusterConfig, ...]:
        """Return the corners of the grid, ordered so that machines are only added (III-D).

        They are of the first stack. Of every further kind of hardware the two ends of its diagonal:
        the first kind tells the shape of the laws, these how much faster each part is.

        Args:
            per_hardware: Corners of the first kind. The fourth, most workers at the smallest batch,
                tells the least: the laws have three terms besides their constant.
        """
        corners: list[ClusterConfig] = []
        kinds: set[str] = set()
        for machine in self.machine_types or (None,):
            name = "" if machine is None else machine.name
            if name not in kinds and (of_kind := self._corners_on(machine)):
                corners += of_kind[::2] if kinds else of_kind[:per_hardware]
                kinds.add(name)
        return tuple(dict.fromkeys(corners))

    def with_stacks(self, names: Collection[str]) -> ConfigSpace:
        """Return the space with its first stack and those of these names."""
        kept = tuple(each for each in self.stacks[1:] if each.name in names)
        return replace(self, stacks=(self.stacks[0], *kept))

    @property
    def expected_stacks(self) -> Mapping[str, StackFactors]:
        """What is expected of stacks before they were measured, relative to eager."""
        told = {option.name: option.expected for option in self.stacks}
        return {name: expected for name, expected in told.items() if expected is not None}

    def switch_seconds(self, before: str, after: str) -> float:
        """Return the seconds that a change of stack takes because processes start again."""
        options = {option.name: option for option in self.stacks}
        if before not in options or after not in options:
            return 0.0
        one, other = options[before], options[after]
        is_same = one.layout == other.layout
        return 0.0 if is_same else max(one.switch_seconds, other.switch_seconds)

    def stack_probes(self, stack: StackOption) -> tuple[ClusterConfig, ...]:
        """Return smallest and largest batch of the fewest workers with a stack.

        They tell its two factors, on what no batch changes and on what each sample takes; the law
        of synchronisation is that of all stacks. Of a stack of which something is expected, as of
        a layout, the middle batch alone tells how far that is off.
        """
        machine = self.machine_types[0] if self.machine_types else None
        for workers in self.workers:
            batches = self._batches_of(workers, machine, stack)
            if batches:
                telling = dict.fromkeys((batches[0], batches[-1]))
                if stack.expected is not None:
                    telling = dict.fromkeys([batches[len(batches) // 2]])
                return tuple(make_config(workers, batch, machine, stack) for batch in telling)
        return ()

    def most_local_batch_with(self, stack: str) -> float:
        """Return the samples that one worker can hold with a stack."""
        option = next((each for each in self.stacks if each.name == stack), EAGER_OPTION)
        return min(self.most_local_batch / option.memory_share, option.most_local_batch)

    def _corners_on(self, machine: MachineType | None) -> list[ClusterConfig]:
        fewest = next((k for k in self.workers if self._batches_of(k, machine)), None)
        if fewest is None:
            return []
        most = next(k for k in reversed(self.workers) if self._batches_of(k, machine))
        return [
            make_config(workers, pick(self._batches_of(workers, machine)), machine, self.stacks[0])
            for workers, pick in ((fewest, min), (fewest, max), (most, max), (most, min))
        ]

    def _batches_of(
        self, workers: int, machine: MachineType | None, stack: StackOption | None = None
    ) -> list[int]:
        """Return the batches that fit; none where workers are too few for memory or too many."""
        with_ = stack or self.stacks[0]
        return [b for b in self.global_batches if self._fits(workers, b, machine, with_)]

    def _fits(
        self, workers: int, global_batch: int, machine: MachineType | None, stack: StackOption
    ) -> bool:
        part = -(-global_batch // workers)
        held = part * stack.memory_share
        if held > self.most_local_batch or part > stack.most_local_batch:
            return False
        if not workers <= global_batch <= stack.most_global_batch:
            return False
        if machine is None or self.memory is None:
            return True
        return self.memory.fits(held, machine)


def make_config(
    workers: int,
    global_batch: int,
    machine: MachineType | None,
    stack: StackOption = EAGER_OPTION,
) -> ClusterConfig:
    """Return the configuration of workers and batch on a machine type."""
    if machine is None:
        return ClusterConfig(workers, global_batch, stack=stack.name)
    return ClusterConfig(workers, global_batch, machine.workers, machine.key, stack.name)


Floats = NDArray[np.float64]
RowIndices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class ConfigColumns:
    """Configurations as columns of one length, in the order of the space they come from.

    Attributes:
        workers: K of each configuration.
        global_batch: B of each configuration, samples.
        workers_per_machine: Workers that share one VM.
        type_index: Index into ``machine_types`` of each configuration.
        machine_types: Keys of the machine types in use.
        stack_index: Index into ``stacks`` of each configuration.
        stacks: Names of the stacks in use.
    """

    workers: Floats
    global_batch: Floats
    workers_per_machine: Floats
    type_index: RowIndices
    machine_types: tuple[str, ...]
    stack_index: RowIndices
    stacks: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def local_batch(self) -> Floats:
        """Mean samples per worker and iteration, b = B / K."""
        return self.global_batch / self.workers

    @property
    def machines(self) -> Floats:
        """VMs of each configuration."""
        return np.ceil(self.workers / self.workers_per_machine)

    def config(self, row: int) -> ClusterConfig:
        """Return one row as a configuration."""
        return ClusterConfig(
            int(self.workers[row]),
            int(self.global_batch[row]),
            int(self.workers_per_machine[row]),
            self.machine_types[self.type_index[row]],
            self.stacks[self.stack_index[row]],
        )

    def select(self, rows: RowIndices | NDArray[np.bool_]) -> ConfigColumns:
        """Return some of the rows."""
        return ConfigColumns(
            self.workers[rows],
            self.global_batch[rows],
            self.workers_per_machine[rows],
            self.type_index[rows],
            self.machine_types,
            self.stack_index[rows],
            self.stacks,
        )


def config_columns(configs: Iterable[ClusterConfig]) -> ConfigColumns:
    """Put configurations into columns."""
    listed = list(configs)
    types = tuple(dict.fromkeys(config.machine_type for config in listed)) or ("",)
    stacks = tuple(dict.fromkeys(config.stack for config in listed)) or (EAGER_NAME,)
    index = {key: number for number, key in enumerate(types)}
    return ConfigColumns(
        np.array([config.workers for config in listed], dtype=float),
        np.array([config.global_batch for config in listed], dtype=float),
        np.array([config.workers_per_machine for config in listed], dtype=float),
        np.array([index[config.machine_type] for config in listed], dtype=np.intp),
        types,
        np.array([stacks.index(config.stack) for config in listed], dtype=np.intp),
        stacks,
    )


def space_columns(space: ConfigSpace) -> ConfigColumns:
    """Put every configuration of a space into columns, in the order in which it yields them."""
    machines: Sequence[MachineType | None] = space.machine_types or (None,)
    shape = (len(space.stacks), len(machines), len(space.workers), len(space.global_batches))
    stack, kind, workers, batch = (axis.ravel() for axis in np.indices(shape))
    counts = np.array(space.workers, dtype=float)[workers]
    batches = np.array(space.global_batches, dtype=float)[batch]
    hosted = np.array([1.0 if m is None else float(m.workers) for m in machines])[kind]
    keys = tuple("" if machine is None else machine.key for machine in machines)
    names = tuple(option.name for option in space.stacks)
    grid = ConfigColumns(counts, batches, hosted, kind, keys, stack, names)
    share = np.array([option.memory_share for option in space.stacks])[stack]
    part = np.ceil(batches / counts)
    held = part * share
    most = np.array([option.most_global_batch for option in space.stacks])
    most_part = np.array([option.most_local_batch for option in space.stacks])
    fitting = (counts <= batches) & (batches <= most[stack]) & (held <= space.most_local_batch)
    fitting &= part <= most_part[stack]
    if space.memory is not None and space.machine_types:
        room = np.array([m.memory_gib for m in space.machine_types])[kind]
        needed = space.memory.fixed_gib + space.memory.gib_per_sample * held
        fitting &= needed * hosted <= room
    return grid.select(fitting)
