"""Gate: nothing is reached that the table of access does not open to whoever asks.

An ASGI middleware before routing. It finds the route as the router would, asks who is there, and
answers itself whatever may not go on; what is another project's is not there at all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scavenger.protocol import RENEWED
from service.api import content
from service.api.access import Door, Doors, NoDoor, Open, People, opens
from service.api.envelope import request_id
from service.api.rates import MACHINE, PERSON, STRANGER, Rate, Rates
from service.api.refusal import AGAIN, Refusal, refuse
from service.api.world import World
from service.caller import Caller, Machine, Newcomer, Person
from service.credential import Credential
from service.db import audit, jobs, tokens
from service.db.audit import Entry
from service.db.pool import AWAY
from service.db.tokens import Token
from service.keys import LIFE, Keys

log = logging.getLogger(__name__)

UNSHOWN = (
    "send the header Authorization: Bearer TOKEN; scavenger serve keeps one in connection.json, "
    "and scavenger token create makes others"
)
STRANGE = "this controller does not know this token"
NO_SUCH_JOB = "there is no job of that id; GET /v1/jobs lists them"
READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets a request pass when whoever sends it may do what it asks.

    Attributes:
        names: Host names under which the controller may be asked; none means any.
    """

    app: ASGIApp
    world: World
    keys: Keys
    doors: Doors
    rates: Rates
    names: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await Visit(self, Request(scope), receive, send).go()
        else:
            await send({"type": "websocket.close", "code": 1008})


@dataclass(slots=True)
class Visit:
    """One request at the gate."""

    gate: Gate
    request: Request
    receive: Receive
    send: Send
    person: Person | None = None
    machine: Machine | None = None
    status: int = 0

    async def go(self) -> None:
        """Let it pass, or answer it; what would change something is written down either way."""
        try:
            body = await self._admit()
            await self.gate.app(self.request.scope, body, self._note)
        except Refusal as refusal:
            await refusal.answer()(self.request.scope, self.receive, self._note)
        except ClientDisconnect:
            log.info("%s went away while it was heard", self.request.method)
        except AWAY:
            away = refuse("database_unavailable", AGAIN)
            await away(self.request.scope, self.receive, self._note)
        finally:
            if not self.status:
                await self._write_down(500)

    async def _admit(self) -> Receive:
        """Return where the body comes from, once it is clear that the request may go on."""
        gate, request = self.gate, self.request
        check_host(request.headers, gate.names)
        door = gate.doors.find(request.scope)
        if isinstance(door, NoDoor) and door.is_open:
            raise other_method(door.methods)
        if not (isinstance(door, Door) and isinstance(door.access, Open)):
            caller = await self._recognise(door)
            check(caller, door)
            request.scope["caller"] = caller
        return content.replay(await content.read(request, self.receive), self.receive)

    async def _recognise(self, door: Door | NoDoor) -> Caller:
        """Return who sends the request, or refuse strangers and the impatient."""
        text = bearer(self.request.headers)
        machine = self._find_machine(text) if text else None
        if machine is not None:
            self._count(MACHINE, machine.worker)
            self.machine = machine if isinstance(machine, Machine) else None
            return machine
        token, is_there = None, True
        if text:
            token, is_there = await run_sync(self._look_up, Credential.of(text), job_of(door))
        if token is None:
            self._count(STRANGER, self.request.client.host if self.request.client else "")
            raise Refusal("unauthenticated", STRANGE if text else UNSHOWN)
        self._count(PERSON, token.id)
        self.person = token.holder
        if objection := token.objection(self.gate.world.now()):
            raise Refusal("unauthenticated", f"{objection}; ask an admin for another")
        if not is_there and isinstance(door, Door) and opens(self.person, door.access):
            raise Refusal("not_found", NO_SUCH_JOB)
        return self.person

    def _find_machine(self, text: str) -> Machine | Newcomer | None:
        """Return whose token it is, if it is a machine's."""
        now, keys = self.gate.world.now().timestamp(), self.gate.keys
        return keys.machine(text, now) or keys.newcomer(text)

    def _look_up(self, credential: Credential, job: str | None) -> tuple[Token | None, bool]:
        """Return whose token it is, and whether the job is there for its holder."""
        now = self.gate.world.now()
        with self.gate.world.engine.begin() as connection:
            token = tokens.find(connection, credential)
            if token is None or token.objection(now):
                return token, True
            tokens.note_use(connection, token, now)
            project = None if job is None else jobs.project_of(connection, job)
        return token, job is None or (project is not None and token.holder.sees(project))

    def _count(self, rate: Rate, who: str) -> None:
        if wait := self.gate.rates.wait(rate, who):
            whole = max(1, math.ceil(wait))
            again = {"Retry-After": str(whole)}
            raise Refusal("too_many_requests", f"send it again in {whole} s", headers=again)

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
        now = self.gate.world.now().timestamp()
        if now - machine.issued_at > LIFE / 2:
            headers[RENEWED] = self.gate.keys.issue(machine.worker, machine.generation, now)

    async def _write_down(self, status: int, made: str | None = None) -> None:
        request, person = self.request, self.person
        # Those who ask too often would fill the table, which never forgets.
        if person is None or request.method in READING or status == 429:
            return
        door = self.gate.doors.find(request.scope)
        parts = door.parts.values() if isinstance(door, Door) else ()
        target = made.rpartition("/")[2] if made else next(iter(parts), None)
        entry = Entry(
            at=self.gate.world.now(),
            who=person.token,
            project=person.project,
            method=request.method,
            route=door.path if isinstance(door, Door) else "",
            target=None if target is None else storable(target),
            status=status,
            request_id=request_id.get() or "",
        )
        try:
            await run_sync(partial(write, self.gate.world, entry))
        except SQLAlchemyError as error:
            log.error("nobody will know who asked for %s: %s", entry, error)


def write(world: World, entry: Entry) -> None:
    """Write a request down in a transaction of its own."""
    with world.engine.begin() as connection:
        audit.write(connection, entry)


def check_host(headers: Headers, names: Collection[str]) -> None:
    """Refuse a request that was meant for another, as pages of strangers send them."""
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if names and name.lower() not in names:
        why = "nobody goes by that name here; whoever runs it may add it to SCAVENGER_NAMES"
        raise Refusal("misdirected", why)


def check(caller: Caller, door: Door | NoDoor) -> None:
    """Refuse what somebody may not do, and what cannot be done at all."""
    match door:
        case Door(access, _, _):
            if not opens(caller, access):
                raise Refusal("forbidden", closed(caller, door))
        case NoDoor() if not isinstance(caller, Person):
            raise Refusal("forbidden", "this token does not open this path")
        case NoDoor(()):
            raise Refusal("not_found", "there is no such path; they all begin with /v1/")
        case NoDoor(methods):
            raise other_method(methods)
        case _:
            assert_never(door)


def other_method(methods: Collection[str]) -> Refusal:
    """Say what can be asked at a path instead."""
    words = ", ".join(methods)
    return Refusal("method_not_allowed", f"this path takes {words}", headers={"Allow": words})


def closed(caller: Caller, door: Door) -> str:
    """Say why somebody may not use a route."""
    if not (isinstance(caller, Person) and isinstance(door.access, People)):
        return "this token does not open this path"
    needed = door.access.role
    if caller.role.covers(needed):
        return "this is about every project, and this token is for one"
    return f"this needs a token with the role {needed}; this one is of a {caller.role}"


def job_of(door: Door | NoDoor) -> str | None:
    """Return the job a request is about, as far as its path says."""
    job = door.parts.get("job") if isinstance(door, Door) else None
    return None if job is None else storable(job)


def storable(text: str) -> str:
    """Return part of a path as the database can compare and keep it."""
    return text.replace("\x00", "").encode(errors="replace").decode()[:200]


def bearer(headers: Headers) -> str:
    """Return the token a request carries, or nothing."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    text = token.strip() if kind.lower() == "bearer" else ""
    return text if text.isascii() else ""
