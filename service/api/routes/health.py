"""Liveness, readiness, and the Prometheus endpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from scavenger.schemas import HealthView
from service.api.dependencies import State
from service.api.health import HealthChecks
from service.api.metrics import JobMetrics, render_job_metrics
from service.api.openapi import problem_doc
from service.api.problems import problem_response
from service.db import jobs
from service.state.presenters import load_with_recent_steps

router = APIRouter(tags=["health"])

MAX_JOBS_SCRAPED = 1000


def health_checks_of(request: Request) -> HealthChecks:
    """Return the vitals of the application that was asked."""
    vitals = request.app.state.vitals
    assert isinstance(vitals, HealthChecks)
    return vitals


AppHealth = Annotated[HealthChecks, Depends(health_checks_of)]


@router.get("/healthz")
def health() -> HealthView:
    """Tell that the controller lives; whoever restarts it asks this."""
    return HealthView(status="ok")


@router.get("/readyz", response_model=HealthView, responses={503: problem_doc(["not_ready"])})
def readiness(vitals: AppHealth) -> Response:
    """Tell whether the controller can work: a load balancer sends it requests while it can."""
    failed = vitals.failures()
    if not failed:
        return Response(HealthView(status="ok").model_dump_json(), media_type="application/json")
    return problem_response("not_ready", f"these do not work now: {', '.join(failed)}")


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(vitals: AppHealth) -> Response:
    """Show what Prometheus collects."""
    return Response(vitals.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/metrics/jobs", response_class=PlainTextResponse)
def metrics_of_jobs(app_state: State) -> Response:
    """Show how each job that goes on stands, for Prometheus; the newest thousand."""
    with app_state.engine.connect() as connection:
        found = load_with_recent_steps(
            connection,
            app_state.machine,
            jobs.unfinished(connection, MAX_JOBS_SCRAPED),
            app_state.now(),
        )
    stands = [JobMetrics.of(state, recent, app_state.storage) for state, recent in found]
    return Response(render_job_metrics(stands), media_type=CONTENT_TYPE_LATEST)
