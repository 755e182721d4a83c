"""Life: a job of two workers, whose life is written into the database as it would have been."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.measurement.steps import StepColumns
from scavenger.planning.transfer import StoredModel
from scavenger.protocol import Hello, Progress, StepReport
from scavenger.schemas.jobs import JobPhase
from service.api.telemetry import store_report, validate_rows
from service.db import directives, jobs, measurements, stored_models, vms, workers
from service.reconciler.actions import Finish
from service.reconciler.apply import record_action
from service.state.job_state import JobState
from service.state.loader import load_job_state
from tests.builders import NOW, directive, offer, probe, spec, steps

CORNERS = ((1, 32), (1, 128), (2, 128), (2, 32))
EARLIER = NOW - timedelta(minutes=6)


class Life:
    """One job."""

    def __init__(self, connection: Connection, job: str = "job_1", **document: Any) -> None:
        self.connection, self.job, self.rows = connection, job, 0
        jobs.create(connection, self.job, spec(**document), NOW)
        for number in (1, 2):
            terms = offer("0.36")
            vms.record_intent(connection, self.job, number, terms, EARLIER, timedelta(minutes=20))
            vms.record_launch(connection, self.worker(number), f"provider-{number}")
            hello = Hello(self.worker(number), f"127.0.0.1:{9000 + number}")
            workers.record_hello(connection, self.job, hello, EARLIER)

    def worker(self, number: int) -> str:
        return f"{self.job}-w{number}"

    def probe(self) -> None:
        for corner in CORNERS:
            measurements.record_probe(self.connection, self.job, probe(*corner))

    def train(self, generation: int, config: ClusterConfig, columns: StepColumns) -> None:
        """Run a generation for as many iterations as there are rows, and report them."""
        told = directive(config.workers, config.global_batch, generation=generation)
        members = tuple(replace(m, worker=f"{self.job}-{m.worker}") for m in told.members)
        told = replace(told, members=members)
        directives.publish(self.connection, self.job, told, EARLIER)
        for number in range(1, config.workers + 1):
            worker, end = self.worker(number), columns.iteration[-1] + 1
            progress = Progress(generation, end, 0, 10.0, {"accuracy": 0.98})
            report = StepReport(worker, progress, self.rows, columns)
            if number > 1:  # the leader measures
                report = StepReport(worker, progress)
            store_report(self.connection, validate_rows(report, {}), NOW)
        self.rows += len(columns)

    def choose(self, config: ClusterConfig) -> None:
        chosen = {"phase": JobPhase.TRAINING, "chosen": config, "choice": "the knee"}
        jobs.change_outcome(self.connection, self.job, **chosen)

    def look(self, after: timedelta = timedelta(0)) -> JobState:
        return load_job_state(self.connection, "local", self.job, NOW + after)

    def finish(self, epochs: float = 10.0) -> None:
        reached = Finish(JobPhase.SUCCEEDED, "target reached", epochs=epochs)
        record_action(self.connection, "local", self.look(), reached)

    def stored(self) -> StoredModel:
        found = stored_models.find(self.connection, "default", "digits|1437|none|local")
        assert found is not None
        return found


def numbered(first: int, rows: int, config: ClusterConfig) -> StepColumns:
    columns = steps(rows, 200.0, config)
    return replace(columns, iteration=tuple(range(first, first + rows)))
