"""Fleet: jobs that train for a while already, with machines, telemetry and a past, all at once.

Machines are launched in a fake cloud and written down as if a controller had done it; telemetry is
one packed report, stored again and again by the database itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, insert, text

from scavenger.cluster import ClusterConfig
from scavenger.job.planning import planning_state, signature_of
from scavenger.measurement.steps import StepColumns
from scavenger.planning.decision import fit_model
from scavenger.planning.transfer import StoredModel
from scavenger.protocol import Hello, Member, Progress, StepReport
from scavenger.schemas.access import UserRole
from scavenger.schemas.jobs import JobPhase
from service.api.telemetry import store_report, validate_rows
from service.auth.permissions import FIRST_PROJECT
from service.auth.tokens import TokenDigest, make_token
from service.clouds.labels import ResourceLabels
from service.clouds.provider import LaunchRequest, Provider
from service.db import access, clock, directives, jobs, measurements, stored_models, vms, workers
from service.db import jobs as events
from service.db.access import AuditEntry, StoredToken
from service.db.schema import readings
from service.db.schema import sweeps as swept
from service.db.step_arrays import pack, to_arrays
from service.db.telemetry import NewRows, store_rows
from service.db.vms import LaunchCounter
from service.offers import Offer
from tests.builders import boot, directive, offer, probe, spec, steps
from tests.telemetry.source import measured

ROWS = 100  # records a report
PHI = 200.0  # samples, as the probes say
AGE = timedelta(minutes=20)
LATER = timedelta(hours=1)  # so that no worker falls silent while this is measured
STANDS = Progress(1, 10_000, 2_400_000, 8.0, {"accuracy": 0.8, "loss": 0.5})
CONFIG = ClusterConfig(5, 640)
PROBED = ((1, 160), (8, 160), (8, 640))
EVENTS, MODELS, PAST = 50, 200, 300
FILL = text("""
INSERT INTO chunks (received_at, worker, sequence, job, generation, rows, columns)
SELECT day + (now() - day) * n / :reports, :worker, n * :rows, :job, 1, :rows, :columns
FROM generate_series(1, :reports) AS n, (SELECT date_trunc('day', now(), 'UTC') AS day) AS today
""")
COPIES = "n, lpad(n::text, 5, '0') AS number FROM generate_series(2, :jobs) AS n"
COPY_JOBS = text(f"""
INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object('id', 'rest_' || number))).*
FROM jobs AS j, (SELECT {COPIES}) AS copies WHERE j.id = 'rest_00001'
""")
COPY_OUTCOMES = text(f"""
INSERT INTO outcomes
SELECT (jsonb_populate_record(o, jsonb_build_object('job', 'rest_' || number))).*
FROM outcomes AS o, (SELECT {COPIES}) AS copies WHERE o.job = 'rest_00001'
""")
COPY_MACHINES = text(f"""
INSERT INTO vms SELECT (jsonb_populate_record(v, jsonb_build_object(
    'job', 'rest_' || number,
    'id', replace(v.id, '00001', number),
    'launch_key', md5(v.launch_key || number)))).*
FROM vms AS v, (SELECT {COPIES}) AS copies WHERE v.job = 'rest_00001'
""")

PLACE = offer(cloud="fake", zone="a", machine_type="small")


def build_resting(engine: Engine, count: int, settle: Callable[[], object]) -> None:
    """Write jobs whose machines were all lost lately, so that none is launched for an hour.

    Args:
        engine: The database.
        count: How many jobs.
        settle: Lets a controller look at the first job; the others are copies of what it wrote.
    """
    with engine.begin() as connection:
        job, now = "rest_00001", clock.read(connection)
        limits = {"max_cost": "1000 USD", "workers": "1..1", "batch": [160]}
        jobs.create(connection, job, spec(limits=limits), now)
        for place in range(1, 6):
            terms = offer("0.36")
            vms.record_intent(connection, job, place, terms, now, timedelta(hours=1))
            vms.record_gone(connection, f"{job}-w{place}", now)
    settle()
    with engine.begin() as connection:
        for copy in (COPY_JOBS, COPY_OUTCOMES, COPY_MACHINES):
            connection.execute(copy, {"jobs": count})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is to be built.

    Attributes:
        jobs: How many jobs train, on five machines each.
        records: Measured iterations of all jobs.
        wishes: What jobs ask for besides.
        place: Where their machines are.
        first: Number of the first job.
    """

    engine: Engine
    provider: Provider
    resource_labels: ResourceLabels
    jobs: int
    records: int
    wishes: Mapping[str, Any] = field(default_factory=dict)
    place: Offer = PLACE
    first: int = 0

    def build(self) -> None:
        """Write everything down, and launch the machines."""
        with self.engine.begin() as connection:
            now = clock.read(connection)
            self._learn(connection, now)
            self._remember(connection, now)
        for number in range(self.first, self.first + self.jobs):
            with self.engine.begin() as connection:
                self._train(connection, f"job_{number:04d}", number, now)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))

    def _train(self, connection: Connection, job: str, number: int, now: datetime) -> None:
        """Write a job that trains."""
        began, wish = now - AGE, {**document(number), **self.wishes}
        jobs.create(connection, job, spec(**wish), began + timedelta(seconds=number))
        jobs.change_outcome(
            connection,
            job,
            phase=JobPhase.TRAINING,
            reason=f"training on {CONFIG}",
            search="searched: 3 probes",
            chosen=CONFIG,
            choice="the knee",
        )
        names = [self._launch(connection, job, place, now) for place in range(1, 6)]
        members = tuple(Member(name, "10.0.0.1:7777") for name in names)
        told = directive(CONFIG.workers, CONFIG.global_batch, members=members)
        directives.publish(connection, job, told, now - AGE / 2)
        for config in PROBED:
            measurements.record_probe(connection, job, probe(*config))
        curve = [{"job": job, "epochs": 0.2 * n, "value": 0.9 - 0.8 / n} for n in range(1, 41)]
        connection.execute(insert(readings), curve)
        for place in range(EVENTS):
            events.record_event(
                connection, job, began, "probe", f"sentence {place}", {"generation": 1}
            )
        self._measure(connection, job, names[0], now)

    def _launch(self, connection: Connection, job: str, place: int, now: datetime) -> str:
        """Launch a machine, and write down what it said."""
        worker, began = f"{job}-w{place}", now - AGE
        vms.record_intent(connection, job, place, self.place, began, timedelta(hours=9))
        key = vms.of_job(connection, job)[-1].launch_key
        labels = self.resource_labels.labels(key, LaunchCounter().count_launch(connection))
        told = boot(job=job, worker=worker, prepaid=9 * 3600.0, agent="a" * 64)
        request = LaunchRequest(key, self.place, told, labels=labels)
        made = self.provider.launch(request)
        vms.record_attempt(connection, worker, began, now + timedelta(hours=9), "a-1")
        vms.record_launch(connection, worker, made.provider_id)
        workers.record_hello(connection, job, Hello(worker, "10.0.0.1:7777"), now)
        store_report(connection, validate_rows(StepReport(worker, STANDS), {}), now + LATER)
        return worker

    def _measure(self, connection: Connection, job: str, worker: str, now: datetime) -> None:
        """Store a report as it is stored when it comes, and the others as copies of it."""
        batch = to_arrays(report())
        reports = self.records // self.jobs // ROWS
        last = reports * ROWS
        fresh = NewRows(0, 0, last, 1, 0, batch, StepReport(worker, STANDS))
        store_rows(connection, fresh, now + LATER)
        copied = {"worker": worker, "job": job, "rows": ROWS, "columns": pack(batch)}
        connection.execute(FILL, {**copied, "reports": reports - 1})

    def _learn(self, connection: Connection, now: datetime) -> None:
        """Store what earlier jobs taught."""
        for number in range(MODELS):
            wish = spec(**document(number))
            known = planning_state(wish, tuple(probe(*c).observation for c in PROBED), None)
            fitted_model = fit_model(known)
            assert fitted_model is not None
            signature = f"{signature_of(wish, 'fake')}{number}"
            taught = StoredModel(
                signature, fitted_model.model, fitted_model.observations, {}, jobs=1
            )
            stored_models.store(connection, FIRST_PROJECT, wish.model.key, taught, now)

    def _remember(self, connection: Connection, now: datetime) -> None:
        """Write down who asked for what, and what was swept."""
        for number in range(PAST):
            asked = ("scv_bench", FIRST_PROJECT, "POST", "/v1/jobs", f"job_{number}", 201, "-")
            access.write_audit_entry(connection, AuditEntry(now, *asked))
            made = make_token()
            credential = TokenDigest.of(made)
            name, role = f"person {number}", UserRole.VIEWER
            facts = {"created_at": now, "created_by": "bench"}
            access.store_token(
                connection,
                credential,
                StoredToken(id=credential.id, name=name, project="*", role=role, **facts),
            )
            connection.execute(
                insert(swept).values(
                    cloud="fake", at=now - timedelta(hours=2), shown=1000, suspects=[], ended=0
                )
            )


def report() -> StepColumns:
    """Return what a leader measures, with the noise that its job was planned with."""
    noise = steps(ROWS, PHI, CONFIG)
    norms = {"local_norm_sq": noise.local_norm_sq, "mean_norm_sq": noise.mean_norm_sq}
    return replace(measured(0, ROWS), shards=noise.shards, **norms)


def document(number: int) -> dict[str, Any]:
    """Return what is asked for: most jobs are controlled, every fifth is only advised."""
    limits = {"max_cost": "1000 USD", "workers": "1..8", "batch": [160, 640]}
    return {
        "model": {"key": f"digits/{number}", "dataset_size": 50_000},
        "limits": limits,
        "level": "control" if number % 5 else "advise",
    }
