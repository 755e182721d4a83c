"""Middleware that gives every request an id and every answer its security headers."""

from __future__ import annotations

import re
from contextvars import ContextVar
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestIdMiddleware:
    """Names each request, as its sender does where that is possible, and marks each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and add to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wished = Headers(scope=scope).get("x-request-id", "")
        name = wished if REQUEST_ID_PATTERN.fullmatch(wished) else uuid4().hex
        request_id.set(name)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = name
                for header, value in SECURITY_HEADERS.items():
                    headers.setdefault(header, value)
            await send(message)

        await self.app(scope, receive, marked)
