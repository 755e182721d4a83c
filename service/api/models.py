"""Stored models: what finished jobs taught."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import TypeAdapter

from scavenger.view import StoredModelList
from service.api.cursors import Cursor, Limit, Pages
from service.api.description import is_a_page
from service.api.show import show_stored
from service.api.world import Asker, Here
from service.db import models

router = APIRouter(prefix="/v1/models", tags=["models"])

POSITION = TypeAdapter(tuple[datetime, str, str])


@router.get("", responses=is_a_page("list_models"))
def list_models(
    world: Here, asker: Asker, pages: Pages, limit: Limit = 50, cursor: Cursor = None
) -> StoredModelList:
    """List the stored models of the asker's project, newest first."""
    before = None if cursor is None else pages.read("models", cursor, POSITION)
    with world.engine.connect() as connection:
        found = models.newest(connection, asker.project, limit + 1, before)
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        following = pages.write(
            "models", last.updated_at.isoformat(), last.project, last.model.signature
        )
    shown = [show_stored(one.model_key, one.model, one.updated_at) for one in found[:limit]]
    return StoredModelList(models=shown, next_cursor=following)
