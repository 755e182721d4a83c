"""Schemas of access: tokens, sessions of the dashboard, and who did what."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from scavenger.schemas.base import View


class UserRole(StrEnum):
    """Role of a token; each includes the permissions of the ones before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: UserRole) -> bool:
        """Tell whether this role includes another.

        >>> UserRole.OPERATOR.covers(UserRole.VIEWER)
        True
        """
        order = list(UserRole)
        return order.index(self) >= order.index(other)


class TokenView(View):
    """A token of a user, without its secret.

    Attributes:
        id: The first part of the token, which is no secret.
        project: Its project, or ``*`` for all.
        created_by: Id of the token that created it, or ``serve``.
    """

    id: str
    name: str
    project: str
    role: UserRole
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewTokenView(TokenView):
    """A new token with its secret, which is never shown again."""

    token: str


class TokenList(View):
    """Tokens, newest first."""

    tokens: list[TokenView]


class AuditEntryView(View):
    """One request that asked for a change.

    Attributes:
        who: Id of its token.
        route: Path of the request, with the names of its parameters.
        target: Id of its job or token, if the path has one.
        status: HTTP status of the answer.
    """

    number: int
    at: datetime
    who: str
    project: str
    method: str
    route: str
    target: str | None
    status: int
    request_id: str


class AuditList(View):
    """Requests that asked for changes, newest first."""

    entries: list[AuditEntryView]
    next_cursor: str | None


class SessionView(View):
    """Who sends a request, by session or by token.

    Attributes:
        token: Id of the token that the session began with.
        name: Name of that token.
        project: Its project, or ``*`` for all.
        csrf: What the header ``X-CSRF`` of each request must hold that is no GET; empty where
            the request carries a token and so belongs to no session.
        expires_at: When the session ends unless it is used before, or when the token does; None
            for a token that never expires.
    """

    token: str
    name: str
    project: str
    role: UserRole
    csrf: str
    expires_at: datetime | None


class SignInCodeView(View):
    """A code that signs a browser in, once.

    Attributes:
        code: What ``POST /v1/session`` takes instead of a token.
    """

    code: str
    expires_at: datetime
