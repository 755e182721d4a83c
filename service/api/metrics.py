"""Prometheus gauges from the database: totals of the installation, and series per running job.

Every controller of a database returns the same. The series per job have a path of their own, so
that an installation with very many jobs need not scrape them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily

from scavenger.cluster import ClusterConfig
from scavenger.schemas.jobs import JobPhase, JobView
from scavenger.schemas.machines import SweepView
from service import ledger
from service.db.monitoring import InstallationTotals
from service.reconciler.diff import ALARM_ORDERS
from service.state.curves import curve_key
from service.state.forecasts import curve_point
from service.state.job_state import JobState

VM_STATES = ("intended", "launched", "ending")
CANDIDATE_FATES = ("end", "wait", "hold")


def installation_gauges(totals: InstallationTotals) -> Iterator[GaugeMetricFamily]:
    """Yield the totals of jobs, machines, money, sweeps and forecasts."""
    yield labelled_gauge(
        "scavenger_jobs",
        "Jobs, by phase.",
        "phase",
        {str(phase): totals.jobs.get(phase, 0) for phase in JobPhase},
    )
    yield labelled_gauge(
        "scavenger_job_cost_dollars",
        "Money of jobs that go on: spent, reserved besides, and the most it may become.",
        "kind",
        money_by_kind(totals),
    )
    yield from machine_gauges(totals)
    yield from sweep_gauges(totals.sweep)
    yield from forecast_gauges(totals)
    if totals.longest_silence_seconds is not None:
        yield GaugeMetricFamily(
            "scavenger_telemetry_lag_seconds",
            "Seconds since the worker spoke that has been silent for longest.",
            totals.longest_silence_seconds,
        )


def money_by_kind(totals: InstallationTotals) -> Mapping[str, float]:
    """Return dollars: spent, reserved besides, and the sum of the caps."""
    machines = totals.machines
    return {
        "accrued": float(ledger.booked(machines, totals.now)),
        "reserved": float(ledger.reserved(machines, totals.now)),
        "cap": float(totals.caps),
    }


def machine_gauges(totals: InstallationTotals) -> Iterator[GaugeMetricFamily]:
    """Yield the number of machines by state, and those that need attention."""
    alive = [vm for vm in totals.machines if vm.is_alive]
    states = Counter(str(vm.state) for vm in alive)
    yield labelled_gauge(
        "scavenger_vms",
        "Machines that may cost money, by state.",
        "state",
        {state: states[state] for state in VM_STATES},
    )
    yield GaugeMetricFamily(
        "scavenger_vm_undeletable",
        "Machines that still run after many orders to end.",
        sum(vm.orders > ALARM_ORDERS for vm in alive),
    )
    if alive:
        left = min(vm.prepaid_until for vm in alive) - totals.now
        yield GaugeMetricFamily(
            "scavenger_vm_prepaid_remaining_seconds",
            "Seconds until the reserved time of the first machine ends; below 0 it is overdue.",
            left.total_seconds(),
        )


def forecast_gauges(totals: InstallationTotals) -> Iterator[GaugeMetricFamily]:
    """Yield how often jobs ended within the interval that was forecast."""
    yield GaugeMetricFamily(
        "scavenger_prediction_coverage80_jobs",
        "Newest jobs that succeeded and had a forecast of their end, at most 100.",
        totals.forecast_count,
    )
    if totals.forecast_count:
        yield GaugeMetricFamily(
            "scavenger_prediction_coverage80_ratio",
            "Share of them that ended within the forecast interval; 0.8 if intervals are right.",
            totals.forecasts_met / totals.forecast_count,
        )


def sweep_gauges(sweep: SweepView | None) -> Iterator[GaugeMetricFamily]:
    """Yield what the newest sweep of the garbage collector found."""
    orphans = () if sweep is None else sweep.suspects
    is_held = sweep is not None and sweep.tripped is not None and sweep.confirmed_at is None
    yield GaugeMetricFamily(
        "scavenger_orphan_candidates",
        "Machines without a job in the newest sweep.",
        sum(orphan.fate in CANDIDATE_FATES for orphan in orphans),
    )
    yield GaugeMetricFamily(
        "scavenger_sweep_blocked",
        "1 while the sweeper holds machines back until an operator confirms, else 0.",
        int(is_held),
    )


def labelled_gauge(
    name: str, help_text: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


LabelledValue = tuple[str, float | None]  # a label, and its value if that is known


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """The metrics of one job.

    Attributes:
        view: The job as the API shows it.
    """

    state: JobState
    view: JobView

    def dollars(self) -> Iterator[LabelledValue]:
        """Yield dollars: spent, forecast, cap, and reserved."""
        cost = self.view.cost
        amounts = {"accrued": cost.accrued, "forecast": cost.forecast, "cap": cost.cap}
        for kind, money in (amounts | {"reserved": cost.reserved}).items():
            yield kind, None if money is None else float(money.amount)

    def epochs(self) -> Iterator[LabelledValue]:
        """Yield reference epochs: done, and expected until the target."""
        yield "done", self.view.progress.epochs
        yield "expected", self.view.progress.expected_epochs

    def iteration_seconds(self) -> Iterator[LabelledValue]:
        """Yield the seconds of an iteration, by part."""
        known = self.view.indicators
        yield "compute", None if known is None else known.compute_time
        yield "sync", None if known is None else known.sync_time

    def noise(self) -> float | None:
        """Return γ_n, the measured noise among the shards of a gradient."""
        return None if self.view.indicators is None else self.view.indicators.noise

    def prediction_error(self) -> float | None:
        """Return by which share an iteration takes longer than the fitted laws say."""
        known, config = self.view.indicators, self.config
        if known is None or config is None:
            return None
        _, point = curve_point(curve_key(self.state.job.spec, self.state.knowledge), config)
        return None if point is None else known.step_time / point.step_time - 1

    def eta_seconds(self) -> float | None:
        """Return the seconds until the target, which half of such jobs take."""
        eta = self.view.eta
        return None if eta is None else (eta.p50 - self.state.now).total_seconds()

    def batch(self) -> float | None:
        return None if self.config is None else self.config.global_batch

    @property
    def config(self) -> ClusterConfig | None:
        applied = self.view.applied
        return None if applied is None else applied.config


SINGLE_GAUGES: Mapping[str, tuple[str, Callable[[JobMetrics], float | None]]] = {
    "workers": ("Workers that run.", lambda job: job.view.workers_alive),
    "batch_size": ("Global batch, in samples.", JobMetrics.batch),
    "eta_seconds": ("Seconds to the target, which half of such jobs take.", JobMetrics.eta_seconds),
    "gradient_noise_ratio": ("Measured noise among the shards of a gradient.", JobMetrics.noise),
    "prediction_error_ratio": (
        "Share by which an iteration takes longer than the fitted laws say.",
        JobMetrics.prediction_error,
    ),
}
LABELLED_GAUGES: Mapping[str, tuple[str, str, Callable[[JobMetrics], Iterable[LabelledValue]]]] = {
    "dollars": ("Money: spent, reserved besides, forecast and cap.", "kind", JobMetrics.dollars),
    "epochs": ("Progress in reference epochs.", "kind", JobMetrics.epochs),
    "iteration_seconds": ("Seconds of an iteration.", "part", JobMetrics.iteration_seconds),
}


def gauge_families(jobs: Sequence[JobMetrics]) -> Iterator[GaugeMetricFamily]:
    """Yield one family after the other, each with a series per job."""
    for name, (text, read) in SINGLE_GAUGES.items():
        family = GaugeMetricFamily(f"scavenger_job_{name}", text, labels=["job"])
        for job in jobs:
            if (reading := read(job)) is not None:
                family.add_metric([job.view.id], reading)
        yield family
    for name, (text, label, read_all) in LABELLED_GAUGES.items():
        family = GaugeMetricFamily(f"scavenger_job_{name}", text, labels=["job", label])
        for job in jobs:
            for value, reading in read_all(job):
                if reading is not None:
                    family.add_metric([job.view.id, value], reading)
        yield family
