"""Gauges: how things stand, as Prometheus reads it; the same whichever controller answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily

from scavenger.view import Phase
from service import ledger
from service.db.figures import Figures
from service.db.sweeps import Sweep
from service.reconciler.census import ALARM

STATES = ("intended", "launched", "ending")
CANDIDATES = ("end", "wait", "hold")


@dataclass(frozen=True, slots=True)
class Survey:
    """What the database says about everything at one moment of its own clock.

    Attributes:
        sweep: The newest finished one.
    """

    now: datetime
    figures: Figures
    sweep: Sweep | None


def gauges_of(survey: Survey) -> Iterator[GaugeMetricFamily]:
    """Yield how jobs, their machines and their money stand, and what the sweeper waits for."""
    figures = survey.figures
    yield by(
        "scavenger_jobs",
        "Jobs, by phase.",
        "phase",
        {str(phase): figures.jobs.get(phase, 0) for phase in Phase},
    )
    yield by(
        "scavenger_job_cost_dollars",
        "Money of jobs that go on: spent, reserved besides, and the most it may become.",
        "kind",
        money_of(survey),
    )
    yield from machines_of(survey)
    yield from sweeper_of(survey.sweep)
    yield from forecasts_of(figures)
    if figures.silence is not None:
        yield GaugeMetricFamily(
            "scavenger_telemetry_lag_seconds",
            "Seconds since the worker spoke that has been silent for longest.",
            figures.silence,
        )


def money_of(survey: Survey) -> Mapping[str, float]:
    """Return dollars by what is known about them."""
    machines = survey.figures.machines
    accrued = ledger.accrued(machines, survey.now)
    return {
        "accrued": float(accrued),
        "reserved": float(ledger.committed(machines) - accrued),
        "cap": float(survey.figures.caps),
    }


def machines_of(survey: Survey) -> Iterator[GaugeMetricFamily]:
    """Yield how many machines there are, and which of them worry."""
    alive = [vm for vm in survey.figures.machines if vm.is_alive]
    states = Counter(str(vm.state) for vm in alive)
    yield by(
        "scavenger_vms",
        "Machines that may cost money, by state.",
        "state",
        {state: states[state] for state in STATES},
    )
    yield GaugeMetricFamily(
        "scavenger_vm_undeletable",
        "Machines that were told to end again and again and still run.",
        sum(vm.orders > ALARM for vm in alive),
    )
    if alive:
        left = min(vm.prepaid_until for vm in alive) - survey.now
        yield GaugeMetricFamily(
            "scavenger_vm_prepaid_remaining_seconds",
            "Seconds until the first machine's reserved time is over; below 0 it is overdue.",
            left.total_seconds(),
        )


def forecasts_of(figures: Figures) -> Iterator[GaugeMetricFamily]:
    """Yield how often targets were reached when it was foreseen."""
    yield GaugeMetricFamily(
        "scavenger_prediction_coverage80_jobs",
        "Newest jobs that succeeded and for which it was foreseen when, at most 100.",
        figures.forecasts,
    )
    if figures.forecasts:
        yield GaugeMetricFamily(
            "scavenger_prediction_coverage80_ratio",
            "Share of them that ended within the interval foreseen; 0.8 if intervals are right.",
            figures.kept / figures.forecasts,
        )


def sweeper_of(sweep: Sweep | None) -> Iterator[GaugeMetricFamily]:
    """Yield what the newest sweep found."""
    suspects = () if sweep is None else sweep.suspects
    is_held = sweep is not None and sweep.tripped is not None and sweep.confirmed_at is None
    yield GaugeMetricFamily(
        "scavenger_orphan_candidates",
        "Machines that nobody wants, in the newest sweep.",
        sum(suspect.fate in CANDIDATES for suspect in suspects),
    )
    yield GaugeMetricFamily(
        "scavenger_sweep_blocked",
        "1 while the sweeper holds machines back until somebody confirms, else 0.",
        int(is_held),
    )


def by(name: str, help_text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family
