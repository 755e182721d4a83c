"""Series: how each job that goes on stands, for who watches single jobs.

There is one of each for every job, so they have an address of their own, and who has very many jobs
need not ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scavenger.cluster import ClusterConfig
from scavenger.protocol import StepColumns
from scavenger.strategy import DownpourSpec
from scavenger.view import JobView
from service import ledger
from service.api.show import point_of, show_job
from service.reconciler.level import ask
from service.reconciler.snapshot import Snapshot
from service.storage import Storage

Reading = tuple[str, float | None]  # a label, and what is known under it


@dataclass(frozen=True, slots=True)
class Stand:
    """How one job stands.

    Attributes:
        view: What a page shows of it.
    """

    snapshot: Snapshot
    view: JobView

    @classmethod
    def of(cls, snapshot: Snapshot, recent: StepColumns, storage: Storage) -> Stand:
        """Return how a job stands, its newest iterations included."""
        return cls(snapshot, show_job(snapshot, recent, storage))

    def money(self) -> Iterator[Reading]:
        """Yield dollars: spent, reserved besides, what it will have cost, and the most it may."""
        cost = self.view.cost
        told = {"accrued": cost.accrued, "forecast": cost.forecast, "cap": cost.cap}
        for kind, money in told.items():
            yield kind, None if money is None else float(money.amount)
        yield "reserved", float(ledger.committed(self.snapshot.vms) - self.snapshot.accrued)

    def epochs(self) -> Iterator[Reading]:
        """Yield reference epochs: done, and what the target will take."""
        yield "done", self.view.progress.epochs
        yield "expected", self.view.progress.expected_epochs

    def seconds(self) -> Iterator[Reading]:
        """Yield the parts of an iteration."""
        known = self.view.indicators
        yield "compute", None if known is None else known.compute_time
        yield "sync", None if known is None else known.sync_time

    def noise(self) -> float | None:
        """Return γ_n, the measured noise among the shards of a gradient."""
        return None if self.view.indicators is None else self.view.indicators.noise

    def error(self) -> float | None:
        """Return by which share an iteration takes longer than was foreseen."""
        known, config = self.view.indicators, self.config
        if known is None or config is None:
            return None
        _, point = point_of(ask(self.snapshot.knowledge), config)
        return None if point is None else known.step_time / point.step_time - 1

    def left(self) -> float | None:
        """Return the seconds that the rest of the epochs takes as it goes now."""
        known, config, progress = self.view.indicators, self.config, self.view.progress
        if known is None or config is None or progress.expected_epochs is None:
            return None
        if isinstance(self.snapshot.job.spec.strategy, DownpourSpec):
            return None  # its workers do not iterate together
        rest = max(progress.expected_epochs - progress.epochs, 0.0)
        return rest / self.snapshot.knowledge.progress_per_iteration(config) * known.step_time

    def batch(self) -> float | None:
        """Its global batch."""
        return None if self.config is None else self.config.global_batch

    @property
    def config(self) -> ClusterConfig | None:
        """The configuration it runs on."""
        applied = self.view.applied
        return None if applied is None else ClusterConfig(applied.workers, applied.global_batch)


SINGLE: Mapping[str, tuple[str, Callable[[Stand], float | None]]] = {
    "workers": ("Workers that run.", lambda stand: stand.view.workers_alive),
    "batch_size": ("Global batch, in samples.", Stand.batch),
    "eta_seconds": ("Seconds to the target as it goes now.", Stand.left),
    "gradient_noise_ratio": ("Measured noise among the shards of a gradient.", Stand.noise),
    "prediction_error_ratio": (
        "Share by which an iteration takes longer than the fitted laws say.",
        Stand.error,
    ),
}
SPLIT: Mapping[str, tuple[str, str, Callable[[Stand], Iterable[Reading]]]] = {
    "dollars": ("Money, by what is known about it.", "kind", Stand.money),
    "epochs": ("Progress in reference epochs.", "kind", Stand.epochs),
    "iteration_seconds": ("Seconds of an iteration.", "part", Stand.seconds),
}


def families_of(stands: Sequence[Stand]) -> Iterator[GaugeMetricFamily]:
    """Yield what is known of each job, one family after the other."""
    for name, (text, read) in SINGLE.items():
        family = GaugeMetricFamily(f"scavenger_job_{name}", text, labels=["job"])
        for stand in stands:
            if (reading := read(stand)) is not None:
                family.add_metric([stand.view.id], reading)
        yield family
    for name, (text, label, read_all) in SPLIT.items():
        family = GaugeMetricFamily(f"scavenger_job_{name}", text, labels=["job", label])
        for stand in stands:
            for word, reading in read_all(stand):
                if reading is not None:
                    family.add_metric([stand.view.id, word], reading)
        yield family


@dataclass(frozen=True, slots=True, eq=False)
class Jobs(Collector):
    """What is asked for at one scrape."""

    stands: Sequence[Stand]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield all families."""
        return families_of(self.stands)


def scrape(stands: Sequence[Stand]) -> bytes:
    """Return how jobs stand in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(Jobs(stands))
    return generate_latest(registry)
