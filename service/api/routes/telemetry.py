"""Telemetry of a job: its measured series in buckets, as JSON or as a table."""

from __future__ import annotations

import csv
from datetime import datetime
from io import StringIO
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from scavenger.errors import DocumentProblem
from scavenger.job.fields import closest_name
from scavenger.schemas.base import Moment
from scavenger.schemas.telemetry import TelemetryView
from service.api.dependencies import AppState, State
from service.api.openapi import answers_problems
from service.api.problems import ApiProblem
from service.api.routes.jobs import find_job
from service.api.security import VIEWER, GuardedRoute
from service.db.jobs import StoredJob
from service.state.telemetry import TelemetryQuery, load_telemetry, series_names

router = APIRouter(prefix="/v1/jobs", tags=["telemetry"], route_class=GuardedRoute)

MIN_POINTS, MAX_POINTS, USUAL_POINTS = 10, 20_000, 2000
USUAL_SERIES = "loss,step_time,workers"

SeriesNames = Annotated[
    str,
    Query(
        alias="series",
        description="Names of series, separated by commas: loss, step_time, compute_time, "
        "sync_time, noise, noise_scale, samples_per_second, workers, global_batch, or the metric "
        "of the job's target",
        min_length=1,
        max_length=1000,
    ),
]
SpanBegin = Annotated[
    Moment | None,
    Query(alias="from", description="Where they begin; else where the job does (RFC 3339)"),
]
SpanEnd = Annotated[
    Moment | None, Query(alias="to", description="Where they end; else now (RFC 3339)")
]
BucketCount = Annotated[
    int, Query(description="Entries of each series at most", ge=MIN_POINTS, le=MAX_POINTS)
]


class CsvResponse(Response):
    """A table."""

    media_type = "text/csv"


async def telemetry_request(
    series: SeriesNames = USUAL_SERIES,
    since: SpanBegin = None,
    until: SpanEnd = None,
    points: BucketCount = USUAL_POINTS,
) -> tuple[str, datetime | None, datetime | None, int]:
    """Return what a request asks for."""
    return series, since, until, points


TelemetryRequest = Annotated[
    tuple[str, datetime | None, datetime | None, int], Depends(telemetry_request)
]


@router.get("/{job}/telemetry", openapi_extra=answers_problems("not_found"), dependencies=[VIEWER])
def get_telemetry(app_state: State, job: str, asked: TelemetryRequest) -> TelemetryView:
    """Show measured series of a job, each as the least and largest value of its buckets."""
    return read_telemetry(app_state, job, asked)


@router.get(
    "/{job}/telemetry.csv",
    response_class=CsvResponse,
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def get_telemetry_table(app_state: State, job: str, asked: TelemetryRequest) -> CsvResponse:
    """Return the same as a table: a row for each bucket, empty cells where there is no value."""
    table = StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["series", "unit", "at", "low", "high"])
    for series in read_telemetry(app_state, job, asked).series:
        for at, low, high in zip(series.at, series.low, series.high, strict=True):
            writer.writerow([series.name, series.unit, at.isoformat(), low, high])
    return CsvResponse(table.getvalue())


def read_telemetry(
    app_state: AppState, job: str, asked: tuple[str, datetime | None, datetime | None, int]
) -> TelemetryView:
    """Return the series that a request asks for, or refuse."""
    names, since, until, points = asked
    with app_state.engine.connect() as connection:
        found = find_job(connection, job)
        end = until or app_state.now()
        begin = since or min(found.created_at, end)
        if begin > end:
            raise ApiProblem("validation", "from lies behind to: swap them, or leave one out")
        wanted = TelemetryQuery(check_series(found, names.split(",")), begin, end, points)
        return load_telemetry(connection, found, wanted)


def check_series(job: StoredJob, names: list[str]) -> tuple[str, ...]:
    """Return the names of series; refuse one that the job does not have."""
    known = series_names(job)
    for name in dict.fromkeys(names):
        if name not in known:
            near = closest_name(name, known)
            hint = "" if near is None else f"did you mean {near}? "
            problem = DocumentProblem(
                "series", f"there is no such series; {hint}this job has {', '.join(known)}"
            )
            raise ApiProblem("validation", str(problem), [problem])
    return tuple(dict.fromkeys(names))
