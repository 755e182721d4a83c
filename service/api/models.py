"""Stored models: what finished jobs taught."""

from __future__ import annotations

from fastapi import APIRouter

from scavenger.view import StoredModelList
from service.api.show import show_stored
from service.api.world import Here
from service.db import models

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
def list_models(world: Here) -> StoredModelList:
    """List every stored model, newest first."""
    with world.engine.connect() as connection:
        found = models.newest(connection)
    return StoredModelList(models=[show_stored(*entry) for entry in found])
