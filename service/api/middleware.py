"""Middleware: body limits, authentication and permissions, the audit trail, and the access log.

The authentication middleware finds the route as the router would, identifies the principal, and
rejects every request that the route's permission does not allow; what belongs to another project is
not found. Bodies are read whole, within limits of size, nesting and time. The access log never
contains bodies or query strings: both may hold secrets.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import assert_never

from anyio import fail_after
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scavenger.protocol import RENEWAL_HEADER
from service.api.dependencies import AppState
from service.api.problems import RETRY_ADVICE, ApiProblem, problem_response
from service.api.request_id import request_id
from service.api.routes.jobs import JOB_ID_PATTERN
from service.auth.permissions import (
    NoRoute,
    PeopleFromRole,
    PublicAccess,
    RouteMatch,
    RouteTable,
    is_permitted,
)
from service.auth.principals import BootstrapPrincipal, Principal, UserPrincipal, WorkerPrincipal
from service.auth.rate_limit import (
    MACHINE_LIMIT,
    PERSON_LIMIT,
    STRANGER_LIMIT,
    RateLimit,
    RateLimiter,
)
from service.auth.tokens import WORKER_TOKEN_LIFETIME, ApiToken, ControllerKeys
from service.db import access, jobs
from service.db.access import AuditEntry, StoredToken
from service.db.database import DATABASE_AWAY
from service.observability import metrics
from service.observability.logs import log_context
from service.observability.tracing import span

MAX_BODY_BYTES = 1 << 20
MAX_BODY_NESTING = 32
BODY_TIMEOUT = 30.0
JSON_STRING = re.compile(rb'"[^"]*"')
ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
NESTING_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


async def read_body(request: Request, receive: Receive, patience: float = BODY_TIMEOUT) -> bytes:
    """Return the body of a request.

    Raises:
        Refusal: It is too large, too slow, or JSON nested too deep for those who read it.
        ClientDisconnect: The sender is gone.
    """
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise ApiProblem("payload_too_large", too_large_reason(int(length)))
    try:
        with fail_after(patience):
            body = b"".join([part async for part in body_parts(receive)])
    except TimeoutError:
        raise ApiProblem("too_slow", f"a body has to be here within {patience:g} s") from None
    if is_nested_too_deep(body) and "yaml" not in request.headers.get("content-type", ""):
        limit = f"write at most {MAX_BODY_NESTING} lists and mappings inside each other"
        raise ApiProblem("validation", f"nested too deep: {limit}")
    return body


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a body as it comes, as long as it is not too large."""
    size, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiProblem("payload_too_large", too_large_reason(size))
        yield part
        is_more = message.get("more_body", False)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return what hands a body over that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def is_nested_too_deep(body: bytes) -> bool:
    r"""Tell whether a JSON text is nested deeper than allowed, without reading it.

    >>> [is_deep(text * 33) for text in (b"[", b"[1],", b'"[\\"",', b'{"a":')]
    [True, False, False, True]
    """
    if body.count(b"[") + body.count(b"{") <= MAX_BODY_NESTING:
        return False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = JSON_STRING.sub(b"", plain.translate(None, ALL_BUT_BRACKETS)).replace(b'"', b"")
    return any(
        level > MAX_BODY_NESTING for level in accumulate(NESTING_STEPS[byte] for byte in brackets)
    )


def too_large_reason(size: int) -> str:
    """Say how large a body may be."""
    return f"the body has {size} bytes; at most {MAX_BODY_BYTES} are accepted"


log = logging.getLogger(__name__)

CREDENTIALS_MISSING = (
    "send the header Authorization: Bearer TOKEN; scavenger serve keeps one in connection.json, "
    "and scavenger token create makes others"
)
CREDENTIALS_UNKNOWN = "this controller does not know this token"
NO_SUCH_JOB = "there is no job of that id; GET /v1/jobs lists them"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class AuthMiddleware:
    """Lets a request pass when whoever sends it may do what it asks.

    Attributes:
        names: Host names under which the controller may be asked; none means any.
    """

    app: ASGIApp
    app_state: AppState
    keys: ControllerKeys
    routes: RouteTable
    limiter: RateLimiter
    names: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await GuardedRequest(self, Request(scope), receive, send).go()
        else:
            await send({"type": "websocket.close", "code": 1008})


@dataclass(slots=True)
class GuardedRequest:
    """One request at the gate."""

    gate: AuthMiddleware
    request: Request
    receive: Receive
    send: Send
    person: UserPrincipal | None = None
    machine: WorkerPrincipal | None = None
    status: int = 0

    async def go(self) -> None:
        """Let it pass, or answer it; what would change something is written down either way."""
        try:
            body = await self._admit()
            await self.gate.app(self.request.scope, body, self._note)
        except ApiProblem as refusal:
            await refusal.answer()(self.request.scope, self.receive, self._note)
        except ClientDisconnect:
            log.info("%s went away while it was heard", self.request.method)
        except DATABASE_AWAY:
            away = problem_response("database_unavailable", RETRY_ADVICE)
            await away(self.request.scope, self.receive, self._note)
        finally:
            if not self.status:
                await self._write_down(500)

    async def _admit(self) -> Receive:
        """Return where the body comes from, once it is clear that the request may go on."""
        gate, request = self.gate, self.request
        check_host(request.headers, gate.names)
        route = gate.routes.find(request.scope)
        if isinstance(route, NoRoute) and route.is_open:
            raise method_not_allowed(route.methods)
        if not (isinstance(route, RouteMatch) and isinstance(route.access, PublicAccess)):
            caller = await self._recognise(route)
            check_permission(caller, route)
            request.scope["caller"] = caller
        return replay_body(await read_body(request, self.receive), self.receive)

    async def _recognise(self, route: RouteMatch | NoRoute) -> Principal:
        """Return who sends the request, or refuse strangers and the impatient."""
        text = bearer_token(self.request.headers)
        machine = self._find_machine(text) if text else None
        if machine is not None:
            self._count(MACHINE_LIMIT, machine.worker)
            self.machine = machine if isinstance(machine, WorkerPrincipal) else None
            return machine
        token, is_there = None, True
        if text:
            token, is_there = await run_sync(self._look_up, ApiToken.of(text), requested_job(route))
        if token is None:
            self._count(STRANGER_LIMIT, self.request.client.host if self.request.client else "")
            raise ApiProblem(
                "unauthenticated", CREDENTIALS_UNKNOWN if text else CREDENTIALS_MISSING
            )
        self._count(PERSON_LIMIT, token.id)
        self.person = token.holder
        if objection := token.objection(self.gate.app_state.now()):
            raise ApiProblem("unauthenticated", f"{objection}; ask an admin for another")
        if (
            not is_there
            and isinstance(route, RouteMatch)
            and is_permitted(self.person, route.access)
        ):
            raise ApiProblem("not_found", NO_SUCH_JOB)
        return self.person

    def _find_machine(self, text: str) -> WorkerPrincipal | BootstrapPrincipal | None:
        """Return whose token it is, if it is a machine's."""
        now, keys = self.gate.app_state.now().timestamp(), self.gate.keys
        return keys.read_worker_token(text, now) or keys.read_bootstrap_token(text)

    def _look_up(self, credential: ApiToken, job: str | None) -> tuple[StoredToken | None, bool]:
        """Return whose token it is, and whether the job is there for its holder."""
        now = self.gate.app_state.now()
        with self.gate.app_state.engine.begin() as connection:
            token = access.find_token(connection, credential)
            if token is None or token.objection(now):
                return token, True
            access.record_token_use(connection, token, now)
            project = None if job is None else jobs.project_of(connection, job)
        return token, job is None or (project is not None and token.holder.sees(project))

    def _count(self, rate: RateLimit, who: str) -> None:
        if wait := self.gate.limiter.wait(rate, who):
            whole = max(1, math.ceil(wait))
            again = {"Retry-After": str(whole)}
            raise ApiProblem("too_many_requests", f"send it again in {whole} s", headers=again)

    async def _note(self, message: Message) -> None:
        """Pass an answer on; what was asked is written down before anybody hears of it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status < 300:
                self._renew(MutableHeaders(scope=message))
            await self._write_down(self.status, Headers(raw=message["headers"]).get("location"))
        await self.send(message)

    def _renew(self, headers: MutableHeaders) -> None:
        """Give a machine that was just heard its next token, in good time."""
        if (machine := self.machine) is None:
            return
        now = self.gate.app_state.now().timestamp()
        if now - machine.issued_at > WORKER_TOKEN_LIFETIME / 2:
            headers[RENEWAL_HEADER] = self.gate.keys.issue_worker_token(
                machine.worker, machine.generation, now
            )

    async def _write_down(self, status: int, made: str | None = None) -> None:
        request, person = self.request, self.person
        # Those who ask too often would fill the table, which never forgets.
        if person is None or request.method in SAFE_METHODS or status == 429:
            return
        route = self.gate.routes.find(request.scope)
        parts = route.parts.values() if isinstance(route, RouteMatch) else ()
        target = made.rpartition("/")[2] if made else next(iter(parts), None)
        entry = AuditEntry(
            at=self.gate.app_state.now(),
            who=person.token,
            project=person.project,
            method=request.method,
            route=route.path if isinstance(route, RouteMatch) else "",
            target=None if target is None else storable(target),
            status=status,
            request_id=request_id.get() or "",
        )
        try:
            await run_sync(partial(write_audit, self.gate.app_state, entry))
        except SQLAlchemyError as error:
            log.error("nobody will know who asked for %s: %s", entry, error)


def write_audit(app_state: AppState, entry: AuditEntry) -> None:
    """Write a request down in a transaction of its own."""
    with app_state.engine.begin() as connection:
        access.write_audit_entry(connection, entry)


def check_host(headers: Headers, names: Collection[str]) -> None:
    """Refuse a request that was meant for another, as pages of strangers send them."""
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if names and name.lower() not in names:
        why = "nobody goes by that name here; whoever runs it may add it to SCAVENGER_NAMES"
        raise ApiProblem("misdirected", why)


def check_permission(caller: Principal, route: RouteMatch | NoRoute) -> None:
    """Refuse what somebody may not do, and what cannot be done at all."""
    match route:
        case RouteMatch(access, _, _):
            if not is_permitted(caller, access):
                raise ApiProblem("forbidden", denial_reason(caller, route))
        case NoRoute() if not isinstance(caller, UserPrincipal):
            raise ApiProblem("forbidden", "this token does not open this path")
        case NoRoute(()):
            raise ApiProblem("not_found", "there is no such path; they all begin with /v1/")
        case NoRoute(methods):
            raise method_not_allowed(methods)
        case _:
            assert_never(route)


def method_not_allowed(methods: Collection[str]) -> ApiProblem:
    """Say what can be asked at a path instead."""
    words = ", ".join(methods)
    return ApiProblem("method_not_allowed", f"this path takes {words}", headers={"Allow": words})


def denial_reason(caller: Principal, route: RouteMatch) -> str:
    """Say why somebody may not use a route."""
    if not (isinstance(caller, UserPrincipal) and isinstance(route.access, PeopleFromRole)):
        return "this token does not open this path"
    needed = route.access.role
    if caller.role.covers(needed):
        return "this is about every project, and this token is for one"
    return f"this needs a token with the role {needed}; this one is of a {caller.role}"


def requested_job(route: RouteMatch | NoRoute) -> str | None:
    """Return the job a request is about, as far as its path says."""
    job = route.parts.get("job") if isinstance(route, RouteMatch) else None
    return None if job is None else storable(job)


def storable(text: str) -> str:
    """Return part of a path as the database can compare and keep it."""
    return text.replace("\x00", "").encode(errors="replace").decode()[:200]


def bearer_token(headers: Headers) -> str:
    """Return the token a request carries, or nothing."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    text = token.strip() if kind.lower() == "bearer" else ""
    return text if text.isascii() else ""


HTTP_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}


class AccessLogMiddleware:
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

        with log_context(lambda: request_context(scope)), span(f"{method_label(scope)} request"):
            try:
                await self.app(scope, receive, noted)
            finally:
                write_access_log(scope, status, time.perf_counter() - began)


def write_access_log(scope: Scope, status: int, seconds: float) -> None:
    """Write the line of a request and count it."""
    method, route = method_label(scope), route_label(scope)
    metrics.REQUEST_SECONDS.labels(method, route, str(status)).observe(seconds)
    facts = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
    log.info("request", extra={"facts": facts})


def request_context(scope: Scope) -> Mapping[str, str]:
    """Return what is known about a request by now: its id, who asks, and for which job."""
    job = str(scope.get("path_params", {}).get("job", ""))
    known = {
        "request_id": request_id.get() or "",
        "caller": principal_in_scope(scope),
        "job": job if JOB_ID_PATTERN.fullmatch(job) else "",
    }
    return {name: value for name, value in known.items() if value}


def principal_in_scope(scope: Scope) -> str:
    """Name who asks; empty while nobody knows."""
    match scope.get("caller"):
        case WorkerPrincipal(worker):
            return worker
        case UserPrincipal(token):
            return token
        case _:
            return ""


def method_label(scope: Scope) -> str:
    """Return a method of HTTP; whatever else was sent is one word."""
    return scope["method"] if scope["method"] in HTTP_METHODS else "OTHER"


def route_label(scope: Scope) -> str:
    """Return the template of a request's route, never the path itself; ids are many."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
