"""Journal: one line for each request, with the id by which a person finds it again.

An ASGI middleware around the gate, so that what is refused is written down, too. Neither bodies nor
query strings are: both may hold what nobody should read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import meters
from service.api.envelope import request_id
from service.api.jobs import JOB_ID
from service.caller import Machine, Person
from service.logs import about
from service.tracing import span

log = logging.getLogger(__name__)

METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}


class Journal:
    """Tells how every request went."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and write its line."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with about(lambda: subject_of(scope)), span(f"{method_of(scope)} request"):
            try:
                await self.app(scope, receive, noted)
            finally:
                write(scope, status, time.perf_counter() - began)


def write(scope: Scope, status: int, seconds: float) -> None:
    """Write the line of a request and count it."""
    method, route = method_of(scope), route_of(scope)
    meters.REQUESTS.labels(method, route, str(status)).observe(seconds)
    facts = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
    log.info("request", extra={"facts": facts})


def subject_of(scope: Scope) -> Mapping[str, str]:
    """Return what is known about a request by now: its id, who asks, and for which job."""
    job = str(scope.get("path_params", {}).get("job", ""))
    known = {
        "request_id": request_id.get() or "",
        "caller": caller_of(scope),
        "job": job if JOB_ID.fullmatch(job) else "",
    }
    return {name: value for name, value in known.items() if value}


def caller_of(scope: Scope) -> str:
    """Name who asks; empty while nobody knows."""
    match scope.get("caller"):
        case Machine(worker):
            return worker
        case Person(token):
            return token
        case _:
            return ""


def method_of(scope: Scope) -> str:
    """Return a method of HTTP; whatever else was sent is one word."""
    return scope["method"] if scope["method"] in METHODS else "OTHER"


def route_of(scope: Scope) -> str:
    """Return the template of a request's route, never the path itself; ids are many."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
