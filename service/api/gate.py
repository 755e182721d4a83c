"""Gate: nothing but health is reached without a token, and no body is larger than allowed.

An ASGI middleware, so that it stands before routing: a route that is added tomorrow is closed too.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.refusal import refuse
from service.keys import Keys, Machine

OPEN = {"/healthz", "/readyz"}
AGENT = "/v1/agent/"
LARGEST_BODY = 1 << 20


class TooLarge(Exception):
    """A body went past the limit while it was read."""


class Gate:
    """Lets a request pass when its token opens its path."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the token, then the size, then pass the request on."""
        if scope["type"] == "lifespan" or scope.get("path") in OPEN:
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        answer = self._stop(Request(scope))
        if answer is None:
            await self._pass(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _stop(self, request: Request) -> ASGIApp | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self.keys.recognise(token.strip()) if kind.lower() == "bearer" else None
        if caller is None:
            return refuse(
                "unauthenticated",
                "send the header Authorization: Bearer TOKEN, with the token that "
                "scavenger serve printed",
            )
        if isinstance(caller, Machine) != request.url.path.startswith(AGENT):
            return refuse("forbidden", "this token does not open this path")
        request.scope["caller"] = caller
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > LARGEST_BODY:
            return refuse("payload_too_large", too_large(int(length)))
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > LARGEST_BODY:
                raise TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except TooLarge:
            await refuse("payload_too_large", too_large(seen))(scope, receive, send)


def too_large(size: int) -> str:
    """Say how large a body may be."""
    return f"the body has {size} bytes; at most {LARGEST_BODY} are accepted"
