"""Tokens and the audit trail, for admins: create, list, revoke, and see who did what."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from scavenger.schemas.access import AuditList, NewTokenView, TokenList, TokenView, UserRole
from service.api.dependencies import State
from service.api.idempotency import REPLAYED, IdempotentRequestDep
from service.api.openapi import LOCATION_HEADER, answers_problems, page_responses
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.security import Admin, GuardedRoute
from service.api.streams import Streams
from service.api.validation import TextRule
from service.auth.permissions import UserPrincipal
from service.auth.tokens import TokenDigest, make_token
from service.db import access
from service.db.access import StoredToken
from service.db.idempotency import StoredAnswer

router = APIRouter(prefix="/v1", tags=["access"], route_class=GuardedRoute)

TOKEN_ID_PATTERN = re.compile(r"[0-9a-f]{12}")
MAX_TOKEN_LIFETIME = 10 * 365 * 86400

TokenName = Annotated[
    str,
    TextRule(
        r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,62}$",
        "write 1 to 63 letters, digits, blanks, dots, hyphens, _ or @, a letter or digit first",
    ),
]
ProjectName = Annotated[
    str,
    TextRule(
        r"^(\*|[a-z0-9][a-z0-9-]{0,62})$",
        "write 1 to 63 lower-case letters, digits or hyphens, no hyphen first, or * for every one",
    ),
]


class TokenRequest(BaseModel):
    """A token to create.

    Attributes:
        project: The user's own if it is missing.
        lifetime: Seconds until it expires; without it, the token never expires.
    """

    model_config = ConfigDict(extra="forbid")

    name: TokenName
    role: UserRole
    project: ProjectName | None = None
    lifetime: Annotated[float, Field(gt=0, le=MAX_TOKEN_LIFETIME, allow_inf_nan=False)] | None = (
        None
    )


@router.post(
    "/tokens",
    status_code=201,
    response_model=NewTokenView,
    responses={201: {"headers": LOCATION_HEADER}},
    openapi_extra=answers_problems("shown_once"),
)
def create(
    app_state: State, user: Admin, request: TokenRequest, idempotent: IdempotentRequestDep
) -> Response:
    """Create a token; this answer is the only one that ever shows the whole of it.

    The same request sent again, under its Idempotency-Key, creates none and names the first.
    """
    project = request.project or user.project
    if not user.sees(project):
        raise ApiProblem("forbidden", f"an admin of {user.project} makes tokens for that only")
    text, now = make_token(), app_state.now()
    credential = TokenDigest.of(text)
    token = StoredToken(
        id=credential.id,
        name=request.name,
        project=project,
        role=request.role,
        created_at=now,
        created_by=user.token,
        expires_at=None if request.lifetime is None else now + timedelta(seconds=request.lifetime),
    )
    answer = idempotent.run_once(app_state, partial(store_new_token, credential, token))
    if REPLAYED in answer.headers:
        known = TokenView.model_validate_json(bytes(answer.body)).id
        raise ApiProblem(
            "shown_once",
            f"this request made the token {known} before, and only that answer had its secret; if "
            f"it was lost, revoke {known} and create another under a new Idempotency-Key",
        )
    shown = NewTokenView(**token.model_dump(), token=text)
    return Response(shown.model_dump_json(), 201, location_of(token), "application/json")


def store_new_token(
    credential: TokenDigest, token: StoredToken, connection: Connection
) -> StoredAnswer:
    """Store a token; the answer that is stored with it, for a repetition, has no secret."""
    access.store_token(connection, credential, token)
    return StoredAnswer(201, token.model_dump_json(), location_of(token))


def location_of(token: StoredToken) -> dict[str, str]:
    """Return the header with the address of a token."""
    return {"Location": f"/v1/tokens/{token.id}"}


@router.get("/tokens")
def list_tokens(app_state: State, user: Admin) -> TokenList:
    """List the tokens of the user's project, newest first, without their secrets."""
    with app_state.engine.connect() as connection:
        found = access.tokens_of_project(connection, user.project)
    return TokenList(tokens=list(found))


@router.get("/tokens/{token}", openapi_extra=answers_problems("not_found"))
def get_token(app_state: State, user: Admin, token: str) -> TokenView:
    """Show a token of the user's project, without its secret."""
    with app_state.engine.connect() as connection:
        return find_token(connection, user, token)


@router.post("/tokens/{token}/actions/revoke", openapi_extra=answers_problems("not_found"))
def revoke(app_state: State, user: Admin, streams: Streams, token: str) -> TokenView:
    """Revoke a token, from this moment and for every controller."""
    with app_state.engine.begin() as connection:
        found = find_token(connection, user, token)
        access.revoke_token(connection, found.id, app_state.now())
        shown = find_token(connection, user, found.id)
    streams.end_streams(token=found.id)
    return shown


def find_token(connection: Connection, user: UserPrincipal, token: str) -> StoredToken:
    """Return a token of the user's project; a token of another one does not exist for them."""
    found = access.token_by_id(connection, token) if TOKEN_ID_PATTERN.fullmatch(token) else None
    if found is None or not user.sees(found.project):
        raise ApiProblem("not_found", "there is no token of that id; GET /v1/tokens lists them")
    return found


@router.get("/audit", responses=page_responses("list_requests"))
def list_requests(app_state: State, user: Admin, page: Page) -> AuditList:
    """List the changes that tokens of the project asked for, refused ones too, newest first."""
    before = page.number("audit")
    with app_state.engine.connect() as connection:
        found = access.audit_entries_before(connection, user.project, before, page.limit + 1)
    shown, following = page.split("audit", found, lambda last: (last.number,))
    return AuditList(entries=list(shown), next_cursor=following)
