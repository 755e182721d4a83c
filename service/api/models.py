"""Stored models: what finished jobs taught."""

from __future__ import annotations

from fastapi import APIRouter

from scavenger.view import StoredModelList
from service.api.show import show_stored
from service.api.world import Asker, Here
from service.db import models

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
def list_models(world: Here, asker: Asker) -> StoredModelList:
    """List every stored model of the asker's project, newest first."""
    with world.engine.connect() as connection:
        found = models.newest(connection, asker.project)
    return StoredModelList(models=[show_stored(*entry) for entry in found])
