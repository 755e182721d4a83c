"""Signing in to the dashboard: a token or a code begins a session, which a cookie stands for.

The cookie is sent with every request of the browser and cannot be read by a script; what guards
against other pages that make the browser ask is in ``service.api.security``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection

from scavenger.schemas.access import SessionView, SignInCodeView
from service.api.dependencies import AppState, FromApp, SigningKeys, State
from service.api.openapi import answers_problems
from service.api.problems import ApiProblem
from service.api.security import (
    PUBLIC,
    Guard,
    GuardedRoute,
    RequestOrigin,
    Viewer,
    request_origin,
)
from service.api.streams import Streams
from service.auth.sessions import (
    SESSION_COOKIE,
    SESSION_LIFETIME,
    make_session_secret,
    make_sign_in_code,
    secret_digest,
)
from service.auth.tokens import ControllerKeys, TokenDigest
from service.db import access, sessions
from service.db.access import StoredToken
from service.db.sessions import StoredSession

router = APIRouter(prefix="/v1/session", tags=["session"], route_class=GuardedRoute)

MAX_CREDENTIAL_LENGTH = 200
Credential = Annotated[str, Field(min_length=1, max_length=MAX_CREDENTIAL_LENGTH)]
EITHER = "give either token or code"

Gate = Annotated[Guard, Depends(FromApp("guard"))]


class SignIn(BaseModel):
    """What begins a session: a token, or a code that ``scavenger dashboard`` has bought."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 1}
    )

    token: Credential = ""
    code: Credential = ""

    @model_validator(mode="after")
    def _has_one(self) -> SignIn:
        if bool(self.token) == bool(self.code):
            raise ValueError(EITHER)
        return self


@router.post(
    "",
    openapi_extra=answers_problems("unauthenticated", "csrf"),
    dependencies=[PUBLIC],
)
def sign_in(
    app_state: State,
    keys: SigningKeys,
    guard: Gate,
    request: Request,
    response: Response,
    wanted: SignIn,
) -> SessionView:
    """Begin a session with a token or a code; the answer sets the cookie that stands for it."""
    # Else another page could sign this browser in under a token of its own choice.
    if request_origin(request) is RequestOrigin.OTHER:
        raise ApiProblem("csrf", "sign in on a page of this controller")
    now, secret = app_state.now(), make_session_secret()
    digest = secret_digest(secret)
    with app_state.engine.begin() as connection:
        token = find_token(connection, app_state, wanted)
        reason = "" if token is None else token.invalid_reason(now)
        if token is not None and not reason:
            access.record_token_use(connection, token, now)
            sessions.store_session(connection, digest, token.id, now)
    if token is None:
        kind = "token" if wanted.token else "code"
        guard.refuse_stranger(request, f"this controller does not know this {kind}")
    if reason:
        guard.refuse_stranger(request, f"{reason}; ask an admin for another")
    request.scope["principal"] = token.holder  # from here on the audit trail names it
    set_cookie(response, secret, is_https=app_state.is_https)
    return session_view(StoredSession(digest, token, now, now), keys)


@router.get("")
def get_session(app_state: State, keys: SigningKeys, user: Viewer) -> SessionView:
    """Show who asks: the session of a cookie with its csrf, or the holder of a token."""
    with app_state.engine.connect() as connection:
        if user.session is not None:
            session = sessions.find_session(connection, user.session)
            if session is not None:
                return session_view(session, keys)
        token = access.token_by_id(connection, user.token)
    assert token is not None
    return token_view(token)


@router.delete("", status_code=204)
def sign_out(app_state: State, user: Viewer, streams: Streams) -> Response:
    """End the session of a cookie; a request with a token has none, and nothing ends."""
    if user.session is not None:
        with app_state.engine.begin() as connection:
            sessions.end_session(connection, user.session)
        streams.end_streams(session=user.session)
    answer = Response(status_code=204)
    answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return answer


@router.post("/codes", status_code=201, openapi_extra=answers_problems("conflict_state"))
def buy_code(app_state: State, user: Viewer) -> SignInCodeView:
    """Make a code that signs a browser in, once and within a minute, as the holder of a token."""
    # A session could otherwise outlive its seven days, one code after another.
    if user.session is not None:
        why = "a session buys no code: send a token, or run scavenger dashboard"
        raise ApiProblem("conflict_state", why)
    code = make_sign_in_code()
    with app_state.engine.begin() as connection:
        expires_at = sessions.store_code(
            connection, secret_digest(code), user.token, app_state.now()
        )
    return SignInCodeView(code=code, expires_at=expires_at)


def find_token(connection: Connection, app_state: AppState, wanted: SignIn) -> StoredToken | None:
    """Return the token that a browser signs in with; None if token or code is unknown."""
    if wanted.token:
        return access.find_token(connection, TokenDigest.of(wanted.token))
    return sessions.redeem_code(connection, secret_digest(wanted.code), app_state.now())


def set_cookie(response: Response, secret: str, *, is_https: bool) -> None:
    """Let the browser keep a session where no script can read it."""
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=is_https,
    )


def session_view(session: StoredSession, keys: ControllerKeys) -> SessionView:
    """Show a session."""
    shown = token_view(session.token)
    csrf = keys.csrf_token(session.digest)
    return shown.model_copy(update={"csrf": csrf, "expires_at": session.ends_at})


def token_view(token: StoredToken) -> SessionView:
    """Show the holder of a token."""
    return SessionView(
        token=token.id,
        name=token.name,
        project=token.project,
        role=token.role,
        csrf="",
        expires_at=token.expires_at,
    )
