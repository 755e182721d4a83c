"""Health: whether the controller lives and can work, and what monitoring reads of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.api.refusal import refuse
from service.api.vitals import Vitals

router = APIRouter(tags=["health"])


def vitals_of(request: Request) -> Vitals:
    """Return the vitals of the application that was asked."""
    vitals = request.app.state.vitals
    assert isinstance(vitals, Vitals)
    return vitals


Watched = Annotated[Vitals, Depends(vitals_of)]


@router.get("/healthz")
def health() -> dict[str, str]:
    """Tell that the controller lives; whoever restarts it asks this."""
    return {"status": "ok"}


@router.get("/readyz")
def readiness(vitals: Watched) -> Response:
    """Tell whether the controller can work; whoever sends it requests asks this."""
    failed = vitals.failures()
    if not failed:
        return Response(b'{"status":"ok"}', media_type="application/json")
    answer = refuse("not_ready", f"these do not work now: {', '.join(failed)}")
    answer.headers["Retry-After"] = "2"
    return answer


@router.get("/metrics")
def metrics(vitals: Watched) -> Response:
    """Show what Prometheus collects."""
    return Response(vitals.scrape(), media_type=CONTENT_TYPE_LATEST)
