"""Health: whether the controller lives and can work, and what monitoring reads of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from scavenger.view import Alive
from service.api.description import problem
from service.api.glance import look_at
from service.api.refusal import refuse
from service.api.series import Stand, scrape
from service.api.vitals import Vitals
from service.api.world import Here
from service.db import jobs

router = APIRouter(tags=["health"])

MOST_JOBS = 1000


def vitals_of(request: Request) -> Vitals:
    """Return the vitals of the application that was asked."""
    vitals = request.app.state.vitals
    assert isinstance(vitals, Vitals)
    return vitals


Watched = Annotated[Vitals, Depends(vitals_of)]


@router.get("/healthz")
def health() -> Alive:
    """Tell that the controller lives; whoever restarts it asks this."""
    return Alive(status="ok")


@router.get("/readyz", response_model=Alive, responses={503: problem(["not_ready"])})
def readiness(vitals: Watched) -> Response:
    """Tell whether the controller can work: a load balancer sends it requests while it can."""
    failed = vitals.failures()
    if not failed:
        return Response(Alive(status="ok").model_dump_json(), media_type="application/json")
    return refuse("not_ready", f"these do not work now: {', '.join(failed)}")


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(vitals: Watched) -> Response:
    """Show what Prometheus collects."""
    return Response(vitals.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/metrics/jobs", response_class=PlainTextResponse)
def metrics_of_jobs(world: Here) -> Response:
    """Show how each job that goes on stands, for Prometheus; the newest thousand."""
    with world.engine.connect() as connection:
        found = look_at(world, connection, jobs.unfinished(connection, MOST_JOBS))
    stands = [Stand.of(snapshot, recent, world.storage) for snapshot, recent in found]
    return Response(scrape(stands), media_type=CONTENT_TYPE_LATEST)
