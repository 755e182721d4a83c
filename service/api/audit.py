"""The audit trail: who asked for which change, and how that was answered."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scavenger.view import AuditList
from service.api.world import Asker, Here
from service.db import audit

router = APIRouter(prefix="/v1/audit", tags=["access"])


@router.get("")
def list_requests(
    world: Here,
    asker: Asker,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> AuditList:
    """List requests of the project's tokens that would change something, newest first."""
    with world.engine.connect() as connection:
        found = audit.page(connection, asker.project, before, limit + 1)
    is_last = len(found) <= limit
    page = list(found[:limit])
    return AuditList(entries=page, next_before=None if is_last else page[-1].number)
