"""Stored models: what finished jobs taught."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import TypeAdapter

from scavenger.schemas import StoredModelList
from service.api.dependencies import State
from service.api.openapi import page_responses
from service.api.pagination import Page
from service.api.security import GuardedRoute, Viewer
from service.db import stored_models
from service.state.presenters import stored_model_view

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=GuardedRoute)

MODEL_POSITION = TypeAdapter(tuple[datetime, str, str])


@router.get("", responses=page_responses("list_models"))
def list_models(app_state: State, user: Viewer, page: Page) -> StoredModelList:
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
