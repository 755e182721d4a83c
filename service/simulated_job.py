"""A finished job whose training was simulated, for people who want to see a curve that bends.

The demo's own job trains too fast for a front with a bend. The simulator trains a ResNet-50 of the
paper's size by the `decide` of real jobs, and what it did is stored as a job that has ended. No
machine ran, so it has no ledger: what it would have cost stands in its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, groupby

from sqlalchemy import Connection, Engine

from scavenger.job.planning import objective_within_limits
from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from scavenger.money import format_dollars
from scavenger.offline.simulator.paper import (
    PRICE_PER_HOUR,
    RESNET50,
    UNPERTURBED,
    PaperJob,
    start_job,
)
from scavenger.offline.simulator.simulation import SimulationOutcome, simulate
from scavenger.planning.decision import CurvePreview
from scavenger.planning.knee import Knee
from scavenger.report import CurveReport
from scavenger.schemas.jobs import JobPhase
from service.db import jobs, measurements
from service.db.curves import store_curve
from service.db.jobs import record_event
from service.db.measurements import SettledProbe
from service.state.curves import curve_view

SIMULATED_JOB = "job_simulated"
SEED = 1  # of the simulated world


def add_simulated_job(engine: Engine, now: datetime) -> None:
    """Store a simulated job that has just ended, unless there is one already."""
    # Before the transaction, which may not wait for a computation.
    outcome = simulate(
        start_job(RESNET50, UNPERTURBED, SEED),
        RESNET50.planning_state("auto", Knee()),
        RESNET50.overheads,
    )
    with engine.begin() as connection:
        if jobs.find(connection, SIMULATED_JOB) is None:
            store_simulated_job(connection, outcome, now)


def store_simulated_job(connection: Connection, outcome: SimulationOutcome, now: datetime) -> None:
    """Store what was simulated as a job that has just ended."""
    if outcome.run is None:
        raise ValueError("the simulated job ended during its search: it has no curve to show")
    began = now - timedelta(seconds=outcome.time)
    spec = document_of(RESNET50)
    jobs.create(connection, SIMULATED_JOB, spec, began)
    probes = tuple(settled_probes(outcome, began))
    for number, probe in enumerate(probes, 1):
        measurements.record_probe(connection, SIMULATED_JOB, probe)
        config = probe.observation.config
        facts = {"workers": config.workers, "global_batch": config.global_batch}
        why = f"simulated probe {number} settled on {config}"
        record_event(connection, SIMULATED_JOB, probe.settled_at, "probe", why, facts)
    run = outcome.run
    objective = objective_within_limits(spec)
    curve = CurveReport(CurvePreview(run.curve, run.fitted), objective, run.choice)
    chosen_at = probes[-1].settled_at
    shown = curve_view(curve, spec, run.config, run.why, chosen_at)
    store_curve(connection, SIMULATED_JOB, shown, chosen_at)
    choice = {"phase": JobPhase.TRAINING, "chosen": run.config, "choice": run.why}
    jobs.change_outcome(connection, SIMULATED_JOB, **choice)
    record_event(connection, SIMULATED_JOB, chosen_at, "choice", run.why)
    reason = (
        f"simulated: reached its target on {run.config} after {outcome.time / 3600:.1f} h; its "
        f"machines would have cost {format_dollars(outcome.cost)}"
    )
    end = {"phase": JobPhase.SUCCEEDED, "reason": reason, "finished_at": now}
    search = f"simulated: searched with {len(outcome.observations)} probes"
    jobs.change_outcome(connection, SIMULATED_JOB, search=search, **end)
    record_event(connection, SIMULATED_JOB, now, "succeeded", reason)


def document_of(job: PaperJob) -> JobSpec:
    """Return the document that a user would have written for a job of the paper."""
    space = job.space
    return validate_job(
        {
            "name": f"simulated-{job.name}",
            "model": {"key": f"simulated/{job.name}", "dataset_size": job.model.dataset_size},
            "target": {"metric": "accuracy", "goal": 0.8, "max_epochs": 1000},
            "objective": "knee",
            "limits": {
                "max_cost": "100 USD",
                "max_time": "48h",
                "workers": list(space.workers),
                "batch": list(space.global_batches),
            },
            "search": "auto",
            "price": f"{PRICE_PER_HOUR} USD/h",
            "run": {"command": ["python", "simulated.py"]},
        }
    )


def settled_probes(outcome: SimulationOutcome, began: datetime) -> Iterator[SettledProbe]:
    """Yield the probes with when each settled, in the order in which they ran.

    Where one configuration is probed twice in a row, for time and then for noise, the simulator
    tells how long both took; they share that by their iterations.
    """
    ends = accumulate(interval.seconds for interval in outcome.intervals)
    probed = [
        (interval, end)
        for interval, end in zip(outcome.intervals, ends, strict=True)
        if interval.purpose == "probe"
    ]
    stays = groupby(probed, lambda each: each[0].config)
    probes = groupby(outcome.observations, lambda each: each.config)
    for (_, own), (_, stay) in zip(probes, stays, strict=True):
        settled, intervals = list(own), list(stay)
        seconds = sum(interval.seconds for interval, _ in intervals)
        each = seconds / sum(observation.iterations for observation in settled)
        end = intervals[-1][1] - seconds
        for observation in settled:
            end += each * observation.iterations
            yield SettledProbe(
                observation,
                seconds=each * observation.iterations,
                cost=Decimal(0),  # what a job spends on probes is part of what it spends
                settled_at=began + timedelta(seconds=end),
            )
