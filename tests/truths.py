"""Made-up clusters of several families, none of which the fitted laws know to be true.

Fixed by a seed: a law about averages is a statement about a suite, not about one example.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.cluster import ClusterConfig, Floats, config_columns
from scavenger.measurement.profiling import Measurement
from scavenger.models.forms import Topology
from scavenger.models.iteration_time import Z_90
from scavenger.models.iteration_time_fitting import fit_step_time

FAMILIES = ("linear", "log", "ring", "overlap", "boundary")
BATCHES = (32, 64, 128, 256, 512, 1024)
WORKERS = (1, 2, 3, 4, 6, 8, 12, 16)
HOSTED = 4


@dataclass(frozen=True)
class Cluster:
    """A made-up cluster, measured everywhere.

    Attributes:
        family: How its synchronisation grows.
        measurements: Every configuration, with noise.
    """

    family: str
    measurements: tuple[Measurement, ...]

    def random(self, points: int, rng: np.random.Generator) -> list[Measurement]:
        """Return some measurements by chance."""
        rows = rng.choice(len(self.measurements), points, replace=False)
        return [self.measurements[row] for row in rows]

    def corners(self) -> list[Measurement]:
        """Return the measurements a search begins with."""
        counts, batches = (WORKERS[0], WORKERS[-1]), (BATCHES[0], BATCHES[-1])
        return [
            m
            for m in self.measurements
            if m.config.workers in counts and m.config.global_batch in batches
        ]


def clusters(
    family: str, count: int, noise: float, *, hosted: int = 1, seed: int = 0, split: bool = False
) -> Iterator[Cluster]:
    """Yield made-up clusters of one family.

    Args:
        family: One of ``FAMILIES``, or servers.
        count: How many.
        noise: Relative standard deviation of each measurement.
        hosted: Workers that share a machine; of the family boundary always several.
        seed: Other seeds are other clusters.
        split: Whether compute was measured apart.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, sum(map(ord, family)), number])
        yield Cluster(family, tuple(measure(family, noise, hosted, rng, split=split)))


def measure(
    family: str, noise: float, hosted: int, rng: np.random.Generator, *, split: bool
) -> Iterator[Measurement]:
    """Yield every configuration of a cluster that was drawn by chance."""
    fixed, slope = rng.uniform(0.01, 0.1), 10 ** rng.uniform(-3.3, -2)
    whole = (fixed + 64 * slope) * 10 ** rng.uniform(-1, 0.4)
    constant, overlap = rng.uniform(0, 0.6), 2.0 if family == "overlap" else rng.choice([1.0, 1.5])
    shared = HOSTED if family == "boundary" else hosted
    for workers in WORKERS:
        for batch in BATCHES:
            config = ClusterConfig(workers, batch, min(shared, workers))
            compute = fixed + slope * batch / workers
            sync = whole * sync_share(family, workers, constant, config.machines > 1)
            total = (compute**overlap + sync**overlap) ** (1 / overlap)
            off = math.exp(noise * rng.standard_normal())
            yield Measurement(config, total * off, compute * off if split else None)


def sync_share(family: str, workers: int, constant: float, is_across: bool) -> float:
    """Return synchronisation of so many workers as a share of that of the most workers."""
    if workers == 1 and family != "servers":
        return 0.0
    share, doublings = workers / WORKERS[-1], math.log2(workers) / math.log2(WORKERS[-1])
    match family:
        case "linear":
            return constant + (1 - constant) * share
        case "ring":
            return 0.9 * (workers - 1) / workers + 0.1 * share
        case "boundary":
            return 0.15 * doublings + is_across * (
                0.85 * constant + (0.85 - 0.85 * constant) * share
            )
        case "servers":
            return share ** (0.7 + constant)
        case _:
            return constant + (1 - constant) * doublings


def prediction_errors(
    seen: Sequence[Measurement], cluster: Cluster, topology: Topology = "all_reduce"
) -> tuple[Floats, Floats]:
    """Return relative errors of what was not seen, and 1 for each inside its 80 % band."""
    model = fit_step_time(seen, topology)
    rest = [m for m in cluster.measurements if m not in seen]
    grid = config_columns(m.config for m in rest)
    predicted, measured = model.step_times(grid), np.array([m.step_time for m in rest])
    apart = np.abs(np.log(predicted / measured))
    return predicted / measured - 1, np.asarray(apart <= Z_90 * model.deviations(grid), float)
