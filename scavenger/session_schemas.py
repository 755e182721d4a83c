"""Schemas of signing in to the dashboard: the session of a browser, and a code that begins one."""

from __future__ import annotations

from datetime import datetime

from scavenger.schemas import UserRole, View


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
