"""API tokens: admins of a project create, list and revoke them."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from scavenger.schemas import NewTokenView, TokenList, TokenView, UserRole
from service.api.dependencies import CurrentUser, State
from service.api.openapi import LOCATION_HEADER, answers_problems
from service.api.problems import ApiProblem
from service.api.validation import TextRule
from service.auth.principals import UserPrincipal
from service.auth.tokens import ApiToken, make_token
from service.db import access
from service.db.access import StoredToken

router = APIRouter(prefix="/v1/tokens", tags=["access"])

TOKEN_ID_PATTERN = re.compile(r"[0-9a-f]{12}")
MAX_LIFETIME = 10 * 365 * 86400

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
    """A token that somebody wants.

    Attributes:
        project: The user's own if it is not named.
        lifetime: Seconds it is good for; for ever if not named.
    """

    model_config = ConfigDict(extra="forbid")

    name: TokenName
    role: UserRole
    project: ProjectName | None = None
    lifetime: Annotated[float, Field(gt=0, le=MAX_LIFETIME, allow_inf_nan=False)] | None = None


@router.post("", status_code=201, responses={201: {"headers": LOCATION_HEADER}})
def create(
    app_state: State, user: CurrentUser, wish: TokenRequest, response: Response
) -> NewTokenView:
    """Make a token; this answer is the only place where all of it is ever shown."""
    project = wish.project or user.project
    if not user.sees(project):
        raise ApiProblem("forbidden", f"an admin of {user.project} makes tokens for that only")
    text, now = make_token(), app_state.now()
    credential = ApiToken.of(text)
    token = StoredToken(
        id=credential.id,
        name=wish.name,
        project=project,
        role=wish.role,
        created_at=now,
        created_by=user.token,
        expires_at=None if wish.lifetime is None else now + timedelta(seconds=wish.lifetime),
    )
    with app_state.engine.begin() as connection:
        access.store_token(connection, credential, token)
    response.headers["Location"] = f"/v1/tokens/{token.id}"
    return NewTokenView(**asdict(token), token=text)


@router.get("")
def list_tokens(app_state: State, user: CurrentUser) -> TokenList:
    """List the tokens of the user's project, newest first, without their secrets."""
    with app_state.engine.connect() as connection:
        found = access.tokens_of_project(connection, user.project)
    return TokenList(tokens=[token_view(token) for token in found])


@router.get("/{token}", openapi_extra=answers_problems("not_found"))
def get_token(app_state: State, user: CurrentUser, token: str) -> TokenView:
    """Show a token of the user's project, without its secret."""
    with app_state.engine.connect() as connection:
        return token_view(find_visible(connection, user, token))


@router.post("/{token}/actions/revoke", openapi_extra=answers_problems("not_found"))
def revoke(app_state: State, user: CurrentUser, token: str) -> TokenView:
    """Let a token open nothing any more, from now on."""
    with app_state.engine.begin() as connection:
        found = find_visible(connection, user, token)
        access.revoke_token(connection, found.id, app_state.now())
        return token_view(find_visible(connection, user, found.id))


def find_visible(connection: Connection, user: UserPrincipal, token: str) -> StoredToken:
    """Return a token, or refuse: what is another project's is not there."""
    found = access.token_by_id(connection, token) if TOKEN_ID_PATTERN.fullmatch(token) else None
    if found is None or not user.sees(found.project):
        raise ApiProblem("not_found", "there is no token of that id; GET /v1/tokens lists them")
    return found


def token_view(token: StoredToken) -> TokenView:
    """Show a token."""
    return TokenView(**asdict(token))
