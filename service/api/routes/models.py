"""Stored models: what finished jobs taught."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import TypeAdapter

from scavenger.schemas import StoredModelList
from service.api.dependencies import CurrentUser, State
from service.api.openapi import page_responses
from service.api.pagination import PageCursor, PageCursors, PageLimit
from service.db import models
from service.state.presenters import stored_model_view

router = APIRouter(prefix="/v1/models", tags=["models"])

MODEL_POSITION = TypeAdapter(tuple[datetime, str, str])


@router.get("", responses=page_responses("list_models"))
def list_models(
    app_state: State,
    user: CurrentUser,
    pages: PageCursors,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
) -> StoredModelList:
    """List the stored models of the user's project, newest first."""
    before = None if cursor is None else pages.read("models", cursor, MODEL_POSITION)
    with app_state.engine.connect() as connection:
        found = models.newest(connection, user.project, limit + 1, before)
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        following = pages.write(
            "models", last.updated_at.isoformat(), last.project, last.model.signature
        )
    shown = [stored_model_view(one.model_key, one.model, one.updated_at) for one in found[:limit]]
    return StoredModelList(models=shown, next_cursor=following)
