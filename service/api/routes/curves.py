"""The cost/time curve of a job, and the choices that were made from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy import Connection

from scavenger.curve_basis import JobPosition, count_curve
from scavenger.drawing import draw_curve
from scavenger.errors import InvalidDocument, NothingFeasible
from scavenger.job.planning import layouts_of, objective_within_limits
from scavenger.job.spec import JobSpec
from scavenger.job.validation import validate_job
from scavenger.planning.decision import preview_curve
from scavenger.planning.layout_search import FoundLayouts
from scavenger.report import CurveReport
from scavenger.schemas.curves import CurveView, DecisionList, WantedBasis
from scavenger.schemas.plans import WhatIf
from service.api.dependencies import AppState, State
from service.api.negotiation import prefers
from service.api.openapi import answers_problems, page_responses
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.routes.jobs import find_job
from service.api.security import VIEWER, GuardedRoute
from service.api.validation import ChangesNothing
from service.db import curves, directives, layout_profiles, measurements
from service.db.jobs import StoredJob
from service.state.curves import curve_view, job_position
from service.state.loader import load_job_states
from service.state.presenters import curve_view_of_job

router = APIRouter(prefix="/v1/jobs", tags=["curves"], route_class=GuardedRoute)

SVG_MEDIA_TYPE = "image/svg+xml"
VARIES = {"Vary": "Accept"}
# The picture has its colours in a style of its own, and fetches nothing.
PICTURE_HEADERS = {
    **VARIES,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
}

DecisionNumber = Annotated[
    int | None,
    Query(
        description="The choice whose curve is wanted; its last one if absent", ge=1, le=2**31 - 1
    ),
]
WantedBasisQuery = Annotated[
    WantedBasis,
    Query(
        description="What is counted: what is left, the total, or what the choice was made from; "
        "auto is what is left while the job runs, and else the total"
    ),
]


@router.get(
    "/{job}/curve",
    response_model=CurveView,
    responses={200: {"content": {SVG_MEDIA_TYPE: {"schema": {"type": "string"}}}}},
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def get_curve(
    app_state: State,
    request: Request,
    job: str,
    decision: DecisionNumber = None,
    basis: WantedBasisQuery = "auto",
) -> Response:
    """Show the cost/time curve of a job's last choice, with its probes and resizes.

    Before there is one, it is drawn from what is known by now. The curve of an earlier choice comes
    with the probes and resizes until then. Asked for ``image/svg+xml``, it answers with a picture.
    """
    with app_state.engine.connect() as connection:
        found = find_job(connection, job)
        drawn = read_curve(app_state, connection, found, decision)
        position = None if decision is not None else find_position(app_state, connection, found)
    curve = count_curve(drawn, basis, position)
    if prefers(request.headers.get("accept", ""), SVG_MEDIA_TYPE):
        picture = draw_curve(curve, found.name)
        return Response(picture, headers=PICTURE_HEADERS, media_type=SVG_MEDIA_TYPE)
    return Response(curve.model_dump_json(), headers=VARIES, media_type="application/json")


@router.get(
    "/{job}/decisions",
    responses=page_responses("list_decisions", job="$request.path.job"),
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def list_decisions(app_state: State, page: Page, job: str) -> DecisionList:
    """List the choices of a job whose curves are kept, oldest first."""
    name = f"decisions of {job}"
    with app_state.engine.connect() as connection:
        find_job(connection, job)
        after = page.number(name) or 0
        found = curves.decisions_after(connection, job, after, page.limit + 1)
    shown, following = page.split(name, found, lambda last: (last.number,))
    return DecisionList(decisions=list(shown), next_cursor=following)


@router.post(
    "/{job}/curve/whatif",
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER, Depends(ChangesNothing())],
)
def ask_what_if(
    app_state: State, job: str, question: WhatIf, basis: WantedBasisQuery = "auto"
) -> CurveView:
    """Draw a job's curve with another price, other workers, limits or objective.

    It follows from all that is known now. Nothing is stored, and the job goes on as it is.
    """
    now = app_state.now()
    with app_state.engine.connect() as connection:
        found = find_job(connection, job)
        (state,) = load_job_states(connection, app_state.machine_type, [found], now)
        resizes = directives.history(connection, job)
        checks = measurements.stack_checks_of_jobs(connection, [found.id])[found.id]
        layouts = layouts_of_job(connection, found)
    spec = change_spec(state.planned_spec, question)
    wished = objective_within_limits(spec)
    usable = state.knowledge.space.stacks
    space = replace(spec.space, stacks=usable)
    known = replace(state.knowledge, space=space, objective=wished, price=spec.price_model)
    report = CurveReport.of(wished, preview_curve(known))
    chosen = None if report.choice is None else report.choice.point.config
    drawn = curve_view(report, spec, chosen, explain_report(report), now)
    pause = app_state.clouds.traits_of(found.spec).resize_seconds
    shown = curve_view_of_job(
        drawn, found, state.probes, resizes, pause, stack_checks=checks, layouts=layouts
    )
    asked = replace(state, job=replace(state.job, spec=spec))
    return count_curve(shown, basis, job_position(asked))


def change_spec(spec: JobSpec, question: WhatIf) -> JobSpec:
    """Return a job as a question wants it, or refuse with all that is wrong."""
    document = spec.document()
    asked = question.model_dump(mode="json", exclude_unset=True)
    limits = {**document["limits"], **(asked.pop("limits", None) or {})}
    if asked.get("workers") is not None:
        limits |= {"workers": asked["workers"]}
        limits.pop("worker_step", None)
    asked.pop("workers", None)
    changed = {name: value for name, value in asked.items() if value is not None}
    kept = {name: value for name, value in limits.items() if value is not None}
    try:
        return validate_job({**document, **changed, "limits": kept})
    except InvalidDocument as error:
        raise ApiProblem("validation", str(error), error.problems) from None


def explain_report(report: CurveReport) -> str:
    """Say what would be chosen, or why nothing would be."""
    if report.preview is None:
        return "nothing is measured yet"
    try:
        return report.objective.choose(report.preview.curve).why
    except NothingFeasible as error:
        return str(error)


def read_curve(
    app_state: AppState, connection: Connection, job: StoredJob, decision: int | None
) -> CurveView:
    """Return the curve of a choice, or of the last one, with all that belongs to it."""
    if decision is None:
        drawn = curves.newest_curve(connection, job.id) or preview_job(app_state, connection, job)
    else:
        drawn = find_curve(connection, job.id, decision)
    probes = measurements.probes_of_jobs(connection, [job.id])[job.id]
    resizes = directives.history(connection, job.id)
    if decision is not None:
        probes = tuple(probe for probe in probes if probe.settled_at <= drawn.as_of)
        resizes = [resize for resize in resizes if resize.published_at <= drawn.as_of]
    pause = app_state.clouds.traits_of(job.spec).resize_seconds
    calibration = curves.judge_forecasts(connection, job.project, job.spec.model.key, drawn.as_of)
    checks = measurements.stack_checks_of_jobs(connection, [job.id])[job.id]
    layouts = layouts_of_job(connection, job)
    return curve_view_of_job(drawn, job, probes, resizes, pause, calibration, checks, layouts)


def layouts_of_job(connection: Connection, job: StoredJob) -> FoundLayouts | None:
    """Return the layouts that a job searches; None where it searches none, or knows none yet."""
    if job.spec.limits.layout_search is None:
        return None
    known = layout_profiles.of_jobs(connection, [job.id]).get(job.id)
    return None if known is None or known.profile is None else layouts_of(job.spec, known.profile)


def find_position(
    app_state: AppState, connection: Connection, job: StoredJob
) -> JobPosition | None:
    """Return where a job is now; None where it does not run."""
    if job.phase.is_final:
        return None
    (state,) = load_job_states(connection, app_state.machine_type, [job], app_state.now())
    return job_position(state)


def find_curve(connection: Connection, job: str, number: int) -> CurveView:
    """Return the curve of a choice, or refuse."""
    found = curves.find_curve(connection, job, number)
    if found is None:
        detail = f"the curve of decision {number} is not kept; GET /v1/jobs/{job}/decisions lists"
        raise ApiProblem("not_found", f"{detail} those that are")
    return found


def preview_job(app_state: AppState, connection: Connection, job: StoredJob) -> CurveView:
    """Draw the curve of a job for which none is stored.

    One that ended before it chose is drawn from its own measurements alone, so that later jobs do
    not change it; one that chose before curves were stored, from all that is known.
    """
    now = app_state.now()
    (state,) = load_job_states(connection, app_state.machine_type, [job], now)
    job, known, why = state.job, state.knowledge, job.choice or job.reason
    if job.phase.is_final and job.chosen is None:
        known = replace(known, stored=None, other_models=())
    curve = CurveReport.of(objective_within_limits(state.planned_spec), preview_curve(known))
    return curve_view(curve, state.planned_spec, job.chosen, why, job.finished_at or now)
