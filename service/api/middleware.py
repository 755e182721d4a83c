"""Middleware: request id and security headers, access log, host name, and the audit trail.

Neither logs nor the audit trail hold bodies or query strings: both may contain secrets.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scavenger.protocol import RENEWAL_HEADER
from service.api.dependencies import AppState
from service.api.problems import RETRY_ADVICE, ApiProblem, request_id
from service.api.validation import JOB_ID_PATTERN, storable
from service.auth.permissions import UserPrincipal, WorkerPrincipal
from service.auth.tokens import WORKER_TOKEN_LIFETIME, ControllerKeys
from service.db import access
from service.db.access import AuditEntry
from service.db.database import DATABASE_AWAY
from service.observability import metrics
from service.observability.logs import log_context
from service.observability.tracing import span

log = logging.getLogger(__name__)

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HTTP_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}


@dataclass(frozen=True, slots=True)
class RequestIdMiddleware:
    """Gives each request an id, its sender's where that is possible, and each answer its headers.

    Stands outside all others, so that the answer to an internal error has them, too.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        name = wanted if REQUEST_ID_PATTERN.fullmatch(wanted) else uuid4().hex
        request_id.set(name)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = name
                for header, value in SECURITY_HEADERS.items():
                    headers.setdefault(header, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


@dataclass(frozen=True, slots=True)
class RequestGateMiddleware:
    """Checks the host name, answers problems, renews machine tokens and writes the audit trail.

    Attributes:
        allowed_hosts: Host names of the controller; empty means any.
    """

    app: ASGIApp
    app_state: AppState
    keys: ControllerKeys
    allowed_hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no route takes web sockets
            await send({"type": "websocket.close", "code": 1008})
            return
        is_answered = False

        async def send_audited(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                if message["status"] < 300:
                    self._renew_token(scope, MutableHeaders(scope=message))
                # Before the answer leaves: a change whose row failed must not go unnoticed.
                location = Headers(raw=message["headers"]).get("location")
                await self._audit(scope, message["status"], location)
            await send(message)

        try:
            check_host(Headers(scope=scope), self.allowed_hosts)
            await self.app(scope, receive, send_audited)
        except ApiProblem as problem:
            await problem.response()(scope, receive, send_audited)
        except DATABASE_AWAY:
            if is_answered:  # in the middle of a stream, whose reader sees that it ends too early
                raise
            away = ApiProblem("database_unavailable", RETRY_ADVICE)
            await away.response()(scope, receive, send_audited)
        except ClientDisconnect:
            log.info("the client of a %s request went away", scope["method"])
        finally:
            if not is_answered:  # the server answers what escapes from here with 500
                await self._audit(scope, 500)

    def _renew_token(self, scope: Scope, headers: MutableHeaders) -> None:
        """Hand a machine its next token, after half the lifetime of the present one."""
        machine = scope.get("principal")
        if not isinstance(machine, WorkerPrincipal):
            return
        now = self.app_state.now().timestamp()
        if now - machine.issued_at > WORKER_TOKEN_LIFETIME / 2:
            headers[RENEWAL_HEADER] = self.keys.issue_worker_token(
                machine.worker, machine.generation, now
            )

    async def _audit(self, scope: Scope, status: int, location: str | None = None) -> None:
        user = scope.get("principal")
        is_read = scope["method"] in SAFE_METHODS or scope.get("is_question", False)
        # Requests beyond the limit are left out: a table that is kept for ever would grow as fast
        # as a loop can send them.
        if not isinstance(user, UserPrincipal) or is_read or status == 429:
            return
        route = scope.get("audited_route", "")
        parts = scope["path_params"].values() if route else ()
        target = location.rpartition("/")[2] if location else next(iter(parts), None)
        entry = AuditEntry(
            at=self.app_state.now(),
            who=user.token,
            project=user.project,
            method=scope["method"],
            route=route,
            target=None if target is None else storable(target),
            status=status,
            request_id=request_id.get() or "",
        )
        try:
            await run_sync(partial(self._store, entry))
        except SQLAlchemyError as error:
            log.error("no audit row for %s: %s", entry, error)

    def _store(self, entry: AuditEntry) -> None:
        # In its own transaction: written with the change, it would vanish when that is rolled back.
        with self.app_state.engine.begin() as connection:
            access.write_audit_entry(connection, entry)


def check_host(headers: Headers, allowed: Collection[str]) -> None:
    """Refuse a request for another host name: a web page may have rebound its own to this address.

    Raises:
        ApiProblem: The name is not one of the controller's.
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if allowed and name.lower() not in allowed:
        detail = "this controller has another host name; SCAVENGER_NAMES adds names to it"
        raise ApiProblem("misdirected", detail)


@dataclass(frozen=True, slots=True)
class AccessLogMiddleware:
    """Logs and counts every request, with its status and duration."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # A label per method that a client makes up would be a time series each.
        method = scope["method"] if scope["method"] in HTTP_METHODS else "OTHER"
        with log_context(lambda: request_context(scope)), span(f"{method} request"):
            try:
                await self.app(scope, receive, send_noting_status)
            finally:
                seconds = time.perf_counter() - start
                # The template of the route, never the path: ids are many.
                route = str(getattr(scope.get("route"), "path", "unmatched"))
                # A stream lasts as long as its follower likes: it would say nothing of speed.
                if not scope.get("is_stream"):
                    metrics.REQUEST_SECONDS.labels(method, route, str(status)).observe(seconds)
                facts = {"method": method, "route": route, "status": status}
                log.info("request", extra={"facts": {**facts, "seconds": round(seconds, 6)}})


def request_context(scope: Scope) -> Mapping[str, str]:
    """Return what is known about a request by now: its id, its principal, and its job."""
    job = str(scope.get("path_params", {}).get("job", ""))
    principal = scope.get("principal")
    known = {
        "request_id": request_id.get() or "",
        "caller": getattr(principal, "worker", "") or getattr(principal, "token", ""),
        "job": job if JOB_ID_PATTERN.fullmatch(job) else "",
    }
    return {name: value for name, value in known.items() if value}
