"""Liveness, readiness, Prometheus metrics, and the diagnostics for ``scavenger doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Annotated

import psutil
from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import Connection

from scavenger.client.diagnostics import (
    check_background_loops,
    check_clocks,
    check_cloud_sweeps,
    check_disk,
    check_durability,
    check_postgres,
    check_schema,
    check_tensorflow_servers,
    failed_check,
    passed_check,
)
from scavenger.job.planning import framework_of
from scavenger.schemas.diagnostics import CheckView, DiagnosticsView, HealthView
from service.api.dependencies import AppState, FromApp, State
from service.api.health import BACKGROUND_TASKS, HealthChecks
from service.api.metrics import JobMetrics, gauge_families
from service.api.openapi import problem_doc
from service.api.problems import ApiProblem
from service.api.security import (
    INSTALLATION_OPERATOR,
    INSTALLATION_VIEWER,
    PUBLIC,
    GuardedRoute,
)
from service.db import clock, controllers, database, jobs, sweeps
from service.observability.metrics import render_families
from service.state.presenters import job_view, load_with_recent_steps

router = APIRouter(tags=["health"], route_class=GuardedRoute)

MAX_JOBS = 1000  # that one request looks at

Health = Annotated[HealthChecks, Depends(FromApp("health"))]


@router.get("/healthz", dependencies=[PUBLIC])
def health() -> HealthView:
    """Answer while the controller lives, for what restarts it."""
    return HealthView(status="ok")


@router.get("/readyz", responses={503: problem_doc(["not_ready"])}, dependencies=[PUBLIC])
def readiness(checks: Health) -> HealthView:
    """Answer whether the controller can work, for load balancers."""
    if failed := checks.failures():
        raise ApiProblem("not_ready", f"these do not work now: {', '.join(failed)}")
    return HealthView(status="ok")


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[INSTALLATION_VIEWER])
def metrics(checks: Health) -> Response:
    """Return the metrics of the controller, for Prometheus."""
    return Response(checks.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/metrics/jobs", response_class=PlainTextResponse, dependencies=[INSTALLATION_VIEWER])
def metrics_of_jobs(app_state: State) -> Response:
    """Return the metrics of each unfinished job, for Prometheus; of the newest thousand."""
    with app_state.engine.connect() as connection:
        unfinished = jobs.unfinished(connection, MAX_JOBS)
        found = load_with_recent_steps(
            connection, app_state.machine_type, unfinished, app_state.now()
        )
    series = [
        JobMetrics(state, job_view(state, recent, app_state.storage)) for state, recent in found
    ]
    return Response(render_families(gauge_families(series)), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/checkup", dependencies=[INSTALLATION_OPERATOR])
def check_up(app_state: State) -> DiagnosticsView:
    """Check the database, the disk, the clocks and the background tasks."""
    with app_state.engine.begin() as connection:
        checks = [*database_checks(connection), *controller_checks(app_state)]
    return DiagnosticsView(version=version("scavenger"), at=app_state.now(), checks=checks)


def database_checks(connection: Connection) -> Iterator[CheckView]:
    """Yield what is found in and about the database."""
    server = database.describe_server(connection)
    yield check_postgres(server.version)
    yield check_durability(server.settings)
    yield check_schema(database.applied_revision(connection), database.newest_revision())
    now = clock.read(connection)
    yield check_clocks("database clock", now - clock.local_time())
    sweep = next(iter(sweeps.newest(connection, 1)), None)
    if sweep is None:
        yield check_cloud_sweeps(None, 0, None)
    else:
        held = sweep.tripped if sweep.confirmed_at is None else None
        yield check_cloud_sweeps(now - sweep.at, sweep.shown, held)
    unfinished = jobs.unfinished(connection, MAX_JOBS)
    yield check_tensorflow_servers([job.name for job in unfinished if has_open_servers(job)])
    yield passed_check("installation", controllers.installation_id(connection))


def has_open_servers(job: jobs.StoredJob) -> bool:
    """Whether a job's machines run servers of TensorFlow: a session has connections of its own."""
    trains = framework_of(job.spec, job.framework)
    return job.spec.run.is_under_agent and trains == "tensorflow"


def controller_checks(app_state: AppState) -> Iterator[CheckView]:
    """Yield what is found in the controller and on its computer."""
    heartbeats = {name: app_state.heartbeats.get(name) for name in BACKGROUND_TASKS}
    yield check_background_loops(
        {name: each is not None and each.is_alive for name, each in heartbeats.items()}
    )
    root = str(app_state.storage.root)
    try:
        yield check_disk(psutil.disk_usage(root).free)
    except OSError as error:
        found = f"{root} cannot be looked at: {error.strerror}"
        yield failed_check("disk", found, "Make the directory, or name another with --home.")
