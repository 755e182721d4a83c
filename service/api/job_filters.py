"""Which jobs the list of jobs shows, and which of their fields."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from scavenger.schemas.base import Moment
from scavenger.schemas.jobs import JobPhase, JobView
from service.api.openapi import ResponseDocs, page_responses
from service.api.validation import TextRule
from service.db.jobs import JobFilter


def comma_separated(names: list[str], what: str) -> TextRule:
    """Return the rule of a query parameter that takes some of these names."""
    one = "|".join(names)
    return TextRule(
        f"^({one})(,({one}))*$", f"write {what}, separated by commas: {', '.join(names)}"
    )


FIELD_NAMES = sorted(JobView.model_fields)
FILTER_NAMES = ("phase", "model", "project", "since", "q", "fields")

JobText = Annotated[
    str | None,
    Query(
        alias="q",
        description="Only jobs whose id begins or ends with this, or whose name begins with it",
        min_length=1,
    ),
]
JobPhases = Annotated[
    str | None,
    Query(alias="phase", description="Only jobs in these phases, separated by commas"),
    comma_separated([str(phase) for phase in JobPhase], "phases"),
]
JobModel = Annotated[
    str | None, Query(alias="model", description="Only jobs with this model key", min_length=1)
]
JobProject = Annotated[
    str | None, Query(alias="project", description="Only jobs of this project", min_length=1)
]
JobsSince = Annotated[
    Moment | None,
    Query(alias="since", description="Only jobs submitted at this moment or later (RFC 3339)"),
]
JobFieldNames = Annotated[
    str | None,
    Query(description="Only these fields of each job, separated by commas; id is always there"),
    comma_separated(FIELD_NAMES, "fields of a job"),
]


async def job_filter(
    text: JobText = None,
    phases: JobPhases = None,
    model: JobModel = None,
    project: JobProject = None,
    since: JobsSince = None,
) -> JobFilter:
    """Return which jobs a request asks for."""
    wanted = () if phases is None else tuple(JobPhase(name) for name in phases.split(","))
    return JobFilter(text, wanted, model, project, since)


JobFilterDep = Annotated[JobFilter, Depends(job_filter)]
REFERENCES = [{"$ref": f"#/components/schemas/{name}"} for name in ("JobList", "JobRowList")]
LIST_RESPONSES: ResponseDocs = {
    200: {
        "description": "A page of jobs: whole ones, or rows with the fields that were asked for",
        "content": {"application/json": {"schema": {"anyOf": REFERENCES}}},
        **page_responses("list_jobs", **{name: f"$request.query.{name}" for name in FILTER_NAMES})[
            200
        ],
    }
}
