"""StepTable: measured seconds per iteration by workers, machines and batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import Measurement, Observation, ScalingIndicators
from scavenger.models.forms import Topology
from scavenger.offline.tables.csv_reader import CsvRow, InvalidCell

STEP_TABLE_COLUMNS = ("workers", "global_batch", "step_time")
OPTIONAL_STEP_TABLE_COLUMNS = ("table", "topology", "nodes", "sync_time", "noise", "noise_scale")
MAX_TABLE_CONFIGURATIONS = 100_000
TOPOLOGY_NAMES: dict[str, Topology] = {
    "ps": "parameter_server",
    "parameter_server": "parameter_server",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
}


@dataclass(frozen=True, slots=True)
class StepTable:
    """What one job's iterations took, each configuration once.

    Attributes:
        name: Name of the table.
        topology: How gradients travelled; None where the file does not say.
        measurements: Each configuration with the geometric mean of its repeats.
        observations: Those configurations whose gradient noise was measured too.
        rows: Rows they are made of.
    """

    name: str
    topology: Topology | None
    measurements: tuple[Measurement, ...]
    observations: tuple[Observation, ...]
    rows: int


@dataclass(slots=True)
class RepeatedRows:
    """Sums over the repeats of one configuration, so that a million rows need no memory."""

    rows: int = 0
    log_step: float = 0.0
    split_rows: int = 0
    log_compute: float = 0.0
    noise: list[float] = field(default_factory=lambda: [0.0, 0.0])
    noise_scale: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, step_time: float, sync_time: float | None) -> None:
        """Add a row's seconds."""
        self.rows += 1
        self.log_step += math.log(step_time)
        if sync_time is not None:
            self.split_rows += 1
            self.log_compute += math.log(step_time - sync_time)

    def measurement(self, config: ClusterConfig) -> Measurement:
        """Return the geometric means."""
        compute = math.exp(self.log_compute / self.split_rows) if self.split_rows else None
        return Measurement(config, math.exp(self.log_step / self.rows), compute)

    def observation(self, config: ClusterConfig) -> Observation | None:
        """Return what was measured with its noise; None where that was not measured."""
        noise, noise_scale = mean_or_none(self.noise), mean_or_none(self.noise_scale)
        if noise_scale is None and noise is not None:
            noise_scale = noise_scale_of_ratio(noise, config)
        if noise_scale is None:
            return None
        seen = self.measurement(config)
        compute = seen.step_time if seen.compute_time is None else seen.compute_time
        sync = max(seen.step_time - compute, 0.0)
        return Observation(config, ScalingIndicators(noise, noise_scale, compute, sync), self.rows)


def mean_or_none(pair: list[float]) -> float | None:
    """Return the mean of a count and a sum; None of nothing."""
    count, total = pair
    return total / count if count else None


def noise_scale_of_ratio(noise: float, config: ClusterConfig) -> float | None:
    """Return φ = B (γ - 1) / (K - γ) of a noise; None where it tells nothing (SCIENCE §1)."""
    if not 1 <= noise < config.workers:
        return None
    return config.global_batch * (noise - 1) / (config.workers - noise)


ConfigKey = tuple[int, int, int]


class StepTableBuilder:
    """Gathers rows into tables by name."""

    def __init__(self, name: str) -> None:
        """Start without rows; ``name`` is that of rows that name no table."""
        self._name = name
        self._tables: dict[str, dict[ConfigKey, RepeatedRows]] = {}
        self._topologies: dict[str, Topology | None] = {}
        self._known = 0

    def add_row(self, row: CsvRow) -> None:
        """Add one row.

        Raises:
            InvalidCell: It cannot be used.
        """
        name = row.text("table") or self._name
        key, step_time = read_key(row), row.positive("step_time")
        sync_time, noise = (
            row.optional_not_negative("sync_time"),
            row.optional_not_negative("noise"),
        )
        noise_scale = row.optional_not_negative("noise_scale")
        if sync_time is not None and sync_time >= step_time:
            message = f"{sync_time:g} must be below step_time {step_time:g}, which it is a part of"
            raise InvalidCell("sync_time", f"{message}: leave it empty if it was not measured")
        self._settle_topology(name, row)
        table = self._tables.setdefault(name, {})
        repeats = table.get(key)
        if repeats is None:
            repeats = table[key] = RepeatedRows()
            self._known += 1
            if self._known > MAX_TABLE_CONFIGURATIONS:
                message = f"more than {MAX_TABLE_CONFIGURATIONS:,} configurations: split the file"
                raise InvalidCell("workers", message)
        repeats.add(step_time, sync_time)
        for sums, value in ((repeats.noise, noise), (repeats.noise_scale, noise_scale)):
            if value is not None:
                sums[0] += 1
                sums[1] += value

    def _settle_topology(self, name: str, row: CsvRow) -> None:
        text = row.text("topology").lower().replace("-", "_")
        topology = TOPOLOGY_NAMES.get(text)
        if text and topology is None:
            raise InvalidCell("topology", f'"{text}" is unknown: write ps or allreduce')
        if self._topologies.setdefault(name, topology) != topology:
            message = f"table {name} has another topology above: name the two tables differently"
            raise InvalidCell("topology", message)

    def tables(self) -> tuple[StepTable, ...]:
        """Return the tables in the order in which the rows named them."""
        return tuple(self._table(name) for name in self._tables)

    def _table(self, name: str) -> StepTable:
        known = [(ClusterConfig(*key), own) for key, own in sorted(self._tables[name].items())]
        return StepTable(
            name,
            self._topologies[name],
            tuple(own.measurement(config) for config, own in known),
            tuple(seen for config, own in known if (seen := own.observation(config)) is not None),
            sum(own.rows for _, own in known),
        )


def read_key(row: CsvRow) -> ConfigKey:
    """Return workers, global batch and workers per machine of a row.

    Raises:
        InvalidCell: They are no configuration.
    """
    workers, batch = row.whole("workers"), row.whole("global_batch")
    if batch < workers:
        message = f"{batch} is below workers {workers}: each worker needs a sample"
        raise InvalidCell("global_batch", f"{message}; is this the batch of one worker?")
    if not row.text("nodes"):
        return workers, batch, 1
    nodes = row.whole("nodes")
    if nodes > workers:
        message = f"{nodes} machines for {workers} workers: write the machines that were in use"
        raise InvalidCell("nodes", message)
    return workers, batch, -(-workers // nodes)
