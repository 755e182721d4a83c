"""Tokens of people: made, listed and revoked by admins of their project."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from scavenger.view import NewTokenView, PersonRole, TokenList, TokenView
from service.api.description import PLACE, refuses
from service.api.refusal import Refusal
from service.api.spelling import Spelling
from service.api.world import Asker, Here
from service.caller import Person
from service.credential import Credential, make_token
from service.db import tokens
from service.db.tokens import Token

router = APIRouter(prefix="/v1/tokens", tags=["access"])

TOKEN_ID = re.compile(r"[0-9a-f]{12}")
LONGEST = 10 * 365 * 86400

Name = Annotated[
    str,
    Spelling(
        r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,62}$",
        "write 1 to 63 letters, digits, blanks, dots, hyphens, _ or @, a letter or digit first",
    ),
]
Project = Annotated[
    str,
    Spelling(
        r"^(\*|[a-z0-9][a-z0-9-]{0,62})$",
        "write 1 to 63 lower-case letters, digits or hyphens, no hyphen first, or * for every one",
    ),
]


class Wish(BaseModel):
    """A token that somebody wants.

    Attributes:
        project: The asker's own if it is not named.
        lifetime: Seconds it is good for; for ever if not named.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name
    role: PersonRole
    project: Project | None = None
    lifetime: Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)] | None = None


@router.post("", status_code=201, responses={201: {"headers": PLACE}})
def create(world: Here, asker: Asker, wish: Wish, response: Response) -> NewTokenView:
    """Make a token; this answer is the only place where all of it is ever shown."""
    project = wish.project or asker.project
    if not asker.sees(project):
        raise Refusal("forbidden", f"an admin of {asker.project} makes tokens for that only")
    text, now = make_token(), world.now()
    credential = Credential.of(text)
    token = Token(
        id=credential.id,
        name=wish.name,
        project=project,
        role=wish.role,
        created_at=now,
        created_by=asker.token,
        expires_at=None if wish.lifetime is None else now + timedelta(seconds=wish.lifetime),
    )
    with world.engine.begin() as connection:
        tokens.store(connection, credential, token)
    response.headers["Location"] = f"/v1/tokens/{token.id}"
    return NewTokenView(**asdict(token), token=text)


@router.get("")
def list_tokens(world: Here, asker: Asker) -> TokenList:
    """List the tokens of the asker's project, newest first, without their secrets."""
    with world.engine.connect() as connection:
        found = tokens.of_project(connection, asker.project)
    return TokenList(tokens=[show(token) for token in found])


@router.get("/{token}", openapi_extra=refuses("not_found"))
def get_token(world: Here, asker: Asker, token: str) -> TokenView:
    """Show a token of the asker's project, without its secret."""
    with world.engine.connect() as connection:
        return show(find(connection, asker, token))


@router.post("/{token}/actions/revoke", openapi_extra=refuses("not_found"))
def revoke(world: Here, asker: Asker, token: str) -> TokenView:
    """Let a token open nothing any more, from now on."""
    with world.engine.begin() as connection:
        found = find(connection, asker, token)
        tokens.revoke(connection, found.id, world.now())
        return show(find(connection, asker, found.id))


def find(connection: Connection, asker: Person, token: str) -> Token:
    """Return a token, or refuse: what is another project's is not there."""
    found = tokens.by_id(connection, token) if TOKEN_ID.fullmatch(token) else None
    if found is None or not asker.sees(found.project):
        raise Refusal("not_found", "there is no token of that id; GET /v1/tokens lists them")
    return found


def show(token: Token) -> TokenView:
    """Show a token."""
    return TokenView(**asdict(token))
