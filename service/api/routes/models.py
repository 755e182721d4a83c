"""Stored models: what finished jobs taught, how good their forecasts were, and forgetting one."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from fastapi import APIRouter, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection
from starlette.convertors import StringConvertor, register_url_convertor

from scavenger.schemas.models import ForgottenModelView, ModelDetailView, StoredModelList
from service.api.dependencies import AppState, State
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import REPLAYED_HEADER, answers_problems, page_responses
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.security import GuardedRoute, Operator, ProjectViewer, Viewer
from service.auth.permissions import UserPrincipal
from service.db import stored_models
from service.db.idempotency import StoredAnswer
from service.db.stored_models import ModelRow
from service.state.models import model_detail
from service.state.presenters import stored_model_view

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=GuardedRoute)

MODEL_POSITION = TypeAdapter(tuple[datetime, str, str])


@router.get("", responses=page_responses("list_models", project="$request.query.project"))
def list_models(app_state: State, user: ProjectViewer, page: Page) -> StoredModelList:
    """List the stored models of the user's project, newest first."""
    before = page.position("models", MODEL_POSITION)
    with app_state.engine.connect() as connection:
        found = stored_models.newest(connection, user.project, page.limit + 1, before)
    shown, following = page.split(
        "models",
        found,
        lambda last: (last.updated_at.isoformat(), last.project, last.model.signature),
    )
    views = [stored_model_view(each.model_key, each.model, each.updated_at) for each in shown]
    return StoredModelList(models=views, next_cursor=following)


class SignaturePath(StringConvertor):
    """Signature of a model: it has slashes, as keys of models do, and is no path of an action."""

    regex = "(?:(?!/actions/forget$).)+"


register_url_convertor("signature", SignaturePath())


@router.get("/{signature:signature}", openapi_extra=answers_problems("not_found"))
def get_model(app_state: State, user: Viewer, signature: str) -> ModelDetailView:
    """Show a stored model, with what was forecast of its newest jobs and what came of them."""
    with app_state.engine.connect() as connection:
        found = find_model(connection, user, signature)
        return model_detail(connection, found, app_state.machine_type, app_state.now())


@router.post(
    "/{signature:signature}/actions/forget",
    response_model=ForgottenModelView,
    responses={200: {"headers": REPLAYED_HEADER}},
    openapi_extra=answers_problems("not_found"),
)
def forget_model(
    app_state: State, user: Operator, signature: str, idempotent: IdempotentRequestDep
) -> Response:
    """Forget a stored model: the next job of its signature searches anew."""
    return idempotent.run_once(app_state, partial(forget_found, app_state, user, signature))


def forget_found(
    app_state: AppState, user: UserPrincipal, signature: str, connection: Connection
) -> StoredAnswer:
    """Store that a model is to be forgotten, and return the answer that says so."""
    # Also one that is forgotten already: the answer to an earlier request may be lost.
    found = find_model(connection, user, signature, is_forgotten=True)
    now = app_state.now()
    stored_models.forget(connection, found.project, signature, now)
    view = ForgottenModelView(
        project=found.project, signature=signature, model_key=found.model_key, forgotten_at=now
    )
    return StoredAnswer(200, view.model_dump_json(), {})


def find_model(
    connection: Connection, user: UserPrincipal, signature: str, *, is_forgotten: bool = False
) -> ModelRow:
    """Return a model of the user's project, of every project the newest; or refuse."""
    # Postgres cannot compare every text, and no signature holds what cannot be printed.
    found = (
        stored_models.newest(
            connection, user.project, 1, signature=signature, is_forgotten=is_forgotten
        )
        if signature.isprintable()
        else []
    )
    if not found:
        why = "there is no model of that signature; GET /v1/models lists them"
        raise ApiProblem("not_found", why)
    return found[0]
