"""The audit trail: requests that would change something, with their answers."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import TypeAdapter

from scavenger.schemas import AuditList
from service.api.dependencies import CurrentUser, State
from service.api.openapi import page_responses
from service.api.pagination import PageCursor, PageCursors, PageLimit
from service.db import access

router = APIRouter(prefix="/v1/audit", tags=["access"])

AUDIT_POSITION = TypeAdapter(tuple[int])


@router.get("", responses=page_responses("list_requests"))
def list_requests(
    app_state: State,
    user: CurrentUser,
    pages: PageCursors,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
) -> AuditList:
    """List requests of the project's tokens that would change something, newest first."""
    before = None if cursor is None else pages.read("audit", cursor, AUDIT_POSITION)[0]
    with app_state.engine.connect() as connection:
        found = access.audit_entries_before(connection, user.project, before, limit + 1)
    page = list(found[:limit])
    following = pages.write("audit", page[-1].number) if len(found) > limit else None
    return AuditList(entries=page, next_cursor=following)
