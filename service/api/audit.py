"""The audit trail: who asked for which change, and how that was answered."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import TypeAdapter

from scavenger.view import AuditList
from service.api.cursors import Cursor, Limit, Pages
from service.api.description import is_a_page
from service.api.world import Asker, Here
from service.db import audit

router = APIRouter(prefix="/v1/audit", tags=["access"])

POSITION = TypeAdapter(tuple[int])


@router.get("", responses=is_a_page("list_requests"))
def list_requests(
    world: Here, asker: Asker, pages: Pages, limit: Limit = 50, cursor: Cursor = None
) -> AuditList:
    """List requests of the project's tokens that would change something, newest first."""
    before = None if cursor is None else pages.read("audit", cursor, POSITION)[0]
    with world.engine.connect() as connection:
        found = audit.page(connection, asker.project, before, limit + 1)
    page = list(found[:limit])
    following = pages.write("audit", page[-1].number) if len(found) > limit else None
    return AuditList(entries=page, next_cursor=following)
