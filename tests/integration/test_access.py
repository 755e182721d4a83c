"""Who may do what, through the API on a real database: every route, every role, every project."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.websockets import WebSocketDisconnect

from scavenger.schemas import ProblemView, UserRole
from service.api import middleware
from service.api.dependencies import AppState
from service.api.problems import ApiProblem
from service.api.request_id import SECURITY_HEADERS
from service.app import build_app
from service.auth.permissions import (
    ROUTE_PERMISSIONS,
    BootstrapOnly,
    PeopleFromRole,
    Permission,
    PublicAccess,
    RouteTable,
    WorkersOnly,
)
from service.auth.rate_limit import RateLimiter
from service.auth.tokens import ApiToken, ControllerKeys, make_token
from service.clouds.storage import CheckpointStorage
from service.db import access as tokens
from service.db import jobs, models
from service.db.access import StoredToken
from service.db.schema import audit
from service.state.loader import load_knowledge
from tests.builders import NOW, document
from tests.integration.test_lesson import OLD

OPEN = ["/healthz", "/readyz"]
KEYS = ControllerKeys(token="a word from before", secret="s" * 48)
DAY = timedelta(days=1)
JSON = {"Content-Type": "application/json"}
ROUTES = list(ROUTE_PERMISSIONS.items())


@dataclass(frozen=True, slots=True)
class Ahead(AppState):
    """A world whose clock is ahead."""

    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def unhurried() -> RateLimiter:
    """Rates for whom an hour lies between any two requests."""
    return RateLimiter(count(0, 3600).__next__)


class House:
    """The API on a real database, and whoever comes to it."""

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        self.engine, self.stack = engine, stack
        self.client = self.open()
        self.tokens: dict[tuple[str, str], str] = {}
        self.job = self.submit("alpha")

    def open(self, ahead: timedelta = timedelta(0), **options: Any) -> TestClient:
        world = Ahead(
            self.engine, "local", CheckpointStorage(Path("/srv")), lambda: None, ahead=ahead
        )
        app = build_app(world, KEYS, **({"limiter": unhurried()} | options))
        return self.stack.enter_context(TestClient(app, raise_server_exceptions=False))

    def token(self, role: str = "admin", project: str = "alpha", **changes: Any) -> str:
        """The token of somebody, made once."""
        if changes or (role, project) not in self.tokens:
            made, now = make_token(), datetime.now(UTC)
            facts = {"created_at": now, "created_by": "test", **changes}
            credential = ApiToken.of(made)
            token = StoredToken(credential.id, f"{role} of", project, UserRole(role), **facts)
            with self.engine.begin() as connection:
                tokens.store_token(connection, credential, token)
            self.tokens[role, project] = made
        return self.tokens[role, project]

    def ask(self, method: str, path: str, token: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        return self.client.request(method, path, headers=headers, **options)

    def submit(self, project: str) -> str:
        answer = self.ask("POST", "/v1/jobs", self.token("submitter", project), json=document())
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def fill(self, template: str) -> str:
        """A path of the route, about what belongs to the project alpha."""
        prey = ApiToken.of(self.token("viewer", "alpha")).id
        named = {"{job}": self.job, "{token}": prey, "{problem}": "not-found"}
        return "/".join(named.get(part, part) for part in template.split("/"))

    def written(self) -> list[Mapping[str, Any]]:
        with self.engine.connect() as connection:
            query = select(audit).order_by(audit.c.number)
            return [dict(row) for row in connection.execute(query).mappings()]


@pytest.fixture
def house(engine: Engine) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(engine, stack)


def code_of(answer: Any) -> str:
    return ProblemView.model_validate_json(answer.text).code


# Nobody comes in without a token.

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "X")
SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: f"{path}/",
    lambda path: f"/{path}",
    lambda path: path.replace("/v1/", "/v1//"),
    lambda path: path.replace("/v1/", "/v1%2f"),
    lambda path: f"/healthz/..{path}",
    lambda path: f"/healthz%2f..{path}",
    lambda path: path.replace("v1", "V1"),
    lambda path: f"{path};/healthz",
    lambda path: f"{path}%00",
)


def test_the_table_has_a_row_for_each_route_of_the_application(house: House) -> None:
    app: Any = house.client.app
    found = [(m, r.path) for r in iter_route_contexts(app.routes) for m in r.methods or ()]
    assert sorted(found) == sorted(ROUTE_PERMISSIONS)
    assert [
        path for (_, path), access in ROUTE_PERMISSIONS.items() if access == PublicAccess()
    ] == OPEN


async def status_of(app: Any, method: str, path: str) -> int:
    """Ask without a token, in exactly these words; a client would tidy them up."""
    said: list[Any] = []
    scope = {"type": "http", "method": method, "path": unquote(path), "query_string": b""}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "root_path": ""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    return int(said[0]["status"])


def test_nothing_but_health_is_reached_without_a_token_however_it_is_spelt(house: House) -> None:
    paths = {house.fill(path) for _, path in ROUTE_PERMISSIONS} | {
        "/docs",
        "/redoc",
        "/openapi.json",
        "/",
        "*",
    }
    asked = {(m, spelling(path)) for m in METHODS for path in paths for spelling in SPELLINGS}
    assert len(asked) > 1500

    async def all_of_them() -> dict[tuple[str, str], int]:
        return {(m, path): await status_of(house.client.app, m, path) for m, path in asked}

    found = asyncio.run(all_of_them())
    reached = [words for words, status in found.items() if status not in (401, 405)]
    assert sorted(reached) == [("GET", path) for path in OPEN]
    assert {path for (_, path), status in found.items() if status == 405} == set(OPEN)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic a word from before", "Bearer scv_x", "Bearer \xff", "a word"],
)
def test_what_is_no_token_opens_nothing(house: House, header: str) -> None:
    answer = house.client.get("/v1/jobs", headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_half_of_a_token_opens_nothing(house: House) -> None:
    whole = house.token()
    for part in (whole[:-1], whole + "x", whole[:17] + "A" * 43, whole.upper()):
        assert house.ask("GET", "/v1/jobs", part).status_code == 401
    assert house.ask("GET", "/v1/jobs", whole).status_code == 200


def test_web_sockets_are_closed(house: House) -> None:
    for path in ("/healthz", "/v1/jobs", "/ws"):
        headers = {"Authorization": f"Bearer {house.token()}"}
        with (
            pytest.raises(WebSocketDisconnect),
            house.client.websocket_connect(path, headers=headers),
        ):
            pass


def test_paths_and_methods_that_are_not_there_are_answered_at_the_gate(house: House) -> None:
    token = house.token()
    for path in ("/docs", "/redoc", "/v1/jobs/", "//v1/jobs", "/V1/jobs", "/"):
        answer = house.ask("GET", path, token)
        assert (answer.status_code, code_of(answer)) == (404, "not_found"), path
    answer = house.ask("DELETE", "/v1/jobs", token)
    assert (answer.status_code, code_of(answer)) == (405, "method_not_allowed")
    assert "GET, POST" in answer.json()["detail"]
    assert answer.headers["Allow"] == "GET, POST"
    assert house.ask("TRACE", "/healthz", "").headers["Allow"] == "GET"
    assert house.ask("HEAD", "/v1/jobs", token).status_code == 405


def test_a_route_without_a_row_and_a_row_without_a_route_keep_a_controller_from_starting() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/new")
    def new() -> None: ...

    with pytest.raises(ValueError, match=r"nobody said who may use \[\('GET', '/new'\)\]"):
        RouteTable(app, {})
    with pytest.raises(ValueError, match=r"which are no routes"):
        RouteTable(app, {("GET", "/new"): PublicAccess(), ("GET", "/old"): PublicAccess()})
    RouteTable(app, {("GET", "/new"): PublicAccess()})
    app.router.routes.append(Mount("/files", PlainTextResponse("all of them")))
    with pytest.raises(ValueError, match="Mount /files: it has no methods"):
        RouteTable(app, {("GET", "/new"): PublicAccess()})


# Who may do what.

VISITORS = [(role.value, project) for role in UserRole for project in ("alpha", "beta", "*")]


def expected(access: Permission, role: str, project: str, path: str) -> int | None:
    """The refusal a person meets; None where it goes on."""
    match access:
        case PublicAccess():
            return None
        case WorkersOnly() | BootstrapOnly():
            return 403
        case PeopleFromRole(needed, is_of_all):
            if not UserRole(role).covers(needed) or (is_of_all and project != "*"):
                return 403
            is_strange = ("{job}" in path or "{token}" in path) and project == "beta"
            return 404 if is_strange else None


@pytest.mark.parametrize(("role", "project"), VISITORS)
def test_each_role_may_do_what_the_table_says_in_its_own_project(
    house: House, role: str, project: str
) -> None:
    for (method, path), access in ROUTES:
        answer = house.ask(method, house.fill(path), house.token(role, project), headers=JSON)
        refused = answer.status_code if answer.status_code in (401, 403, 404, 429) else None
        assert refused == expected(access, role, project, path), (method, path, answer.text)
        if path.endswith("revoke"):  # or the viewer would be gone
            house.tokens.pop(("viewer", "alpha"), None)


def test_machines_may_use_what_is_theirs_and_nothing_else(house: House) -> None:
    token = KEYS.issue_worker_token(f"{house.job}-w1")
    for (method, path), access in ROUTES:
        answer = house.ask(method, house.fill(path), token, headers=JSON)
        if access == WorkersOnly():
            assert "does not open this path" not in answer.text, (method, path)
        elif access != PublicAccess():
            assert (answer.status_code, code_of(answer)) == (403, "forbidden"), (method, path)
    assert house.ask("GET", "/nowhere", token).status_code == 403


def test_what_another_project_has_is_not_there(house: House) -> None:
    other, all_of_them = house.submit("beta"), house.token("admin", "*")
    for path in ("", "/curve", "/events", "/actions/cancel"):
        method = "POST" if path.endswith("cancel") else "GET"
        strange = house.ask(method, f"/v1/jobs/{house.job}{path}", house.token("admin", "beta"))
        nowhere = house.ask(method, f"/v1/jobs/job_0{path}", house.token("admin", "beta"))
        facts = [a.json() | {"request_id": ""} for a in (strange, nowhere)]
        assert strange.status_code == 404
        assert facts[0] == facts[1], "nobody can tell whether it exists"

    def listed(token: str) -> set[str]:
        return {job["id"] for job in house.ask("GET", "/v1/jobs", token).json()["jobs"]}

    assert listed(house.token("viewer", "beta")) == {other}
    assert listed(house.token("viewer", "alpha")) == {house.job}
    assert listed(all_of_them) == {house.job, other}


def test_models_of_one_project_are_neither_listed_nor_used_in_another(house: House) -> None:
    model = models.STORED_MODEL.validate_python(OLD)
    with house.engine.begin() as connection:
        models.store(connection, "alpha", "digits", model, NOW)
    jobs_of = {"alpha": house.job, "beta": house.submit("beta")}

    def known(project: str) -> tuple[int, bool]:
        answer = house.ask("GET", "/v1/models", house.token("viewer", project))
        with house.engine.connect() as connection:
            job = jobs.find(connection, jobs_of[project])
            assert job is not None
            knowledge = load_knowledge(connection, "local", [job], {job.id: ()})[job.id]
        return len(answer.json()["models"]), knowledge.stored is not None

    assert known("alpha") == (1, True)
    assert known("beta") == (0, False)


# Tokens.


def make(house: House, maker: str, **wish: Any) -> Any:
    return house.ask("POST", "/v1/tokens", maker, json={"name": "ci", "role": "viewer", **wish})


def test_a_token_is_shown_once_and_only_its_hash_is_kept(house: House) -> None:
    admin = house.token("admin")
    made = make(house, admin, role="submitter")
    assert made.status_code == 201
    secret = made.json()["token"]
    assert made.json()["created_by"] == ApiToken.of(admin).id
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    listed = house.ask("GET", "/v1/tokens", admin)
    assert made.json()["id"] in listed.text
    assert secret.split("_", 2)[2] not in listed.text
    with house.engine.connect() as connection:
        kept = connection.execute(text("SELECT t::text FROM tokens t")).scalars().all()
    assert not any(secret.split("_", 2)[2] in row for row in kept)


def test_admins_make_tokens_of_their_project_only(house: House) -> None:
    for project, status in (("alpha", 201), ("beta", 403), ("*", 403)):
        assert make(house, house.token("admin"), project=project).status_code == status
    assert make(house, house.token("admin", "*"), project="beta").status_code == 201
    own = make(house, house.token("admin"))
    assert own.json()["project"] == "alpha"
    shown = house.ask("GET", "/v1/tokens", house.token("admin", "beta")).json()["tokens"]
    assert {token["project"] for token in shown} == {"beta"}


@pytest.mark.parametrize(
    "wish",
    [
        {"name": ""},
        {"name": "a\u0000b"},
        {"role": "root"},
        {"project": "Alpha"},
        {"project": "../beta"},
        {"lifetime": 0},
        {"lifetime": 1e12},
        {"digest": "0"},
    ],
)
def test_nonsense_makes_no_token(house: House, wish: dict[str, Any]) -> None:
    assert make(house, house.token("admin"), **wish).status_code == 422


def test_a_revoked_token_opens_nothing_from_that_moment(house: House) -> None:
    admin, secret = house.token("admin"), make(house, house.token("admin")).json()["token"]
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    path = f"/v1/tokens/{ApiToken.of(secret).id}/actions/revoke"
    first, second = house.ask("POST", path, admin), house.ask("POST", path, admin)
    assert first.json()["revoked_at"] == second.json()["revoked_at"] is not None
    refused = house.ask("GET", "/v1/jobs", secret)
    assert refused.status_code == 401
    assert "this token was revoked" in refused.json()["detail"]


def test_a_token_expires(house: House) -> None:
    secret = make(house, house.token("admin"), lifetime=3600).json()["token"]
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    headers = {"Authorization": f"Bearer {secret}"}
    refused = house.open(DAY).get("/v1/jobs", headers=headers)
    assert refused.status_code == 401
    assert "this token has expired" in refused.json()["detail"]


def test_the_use_of_a_token_is_noted_once_a_minute(house: House) -> None:
    def used() -> str | None:
        (mine,) = [
            token
            for token in house.ask("GET", "/v1/tokens", house.token("admin")).json()["tokens"]
            if token["id"] == ApiToken.of(house.token("viewer")).id
        ]
        return mine["last_used_at"] and str(mine["last_used_at"])

    house.token("viewer")
    assert used() is None
    house.ask("GET", "/v1/jobs", house.token("viewer"))
    first = used()
    house.ask("GET", "/v1/jobs", house.token("viewer"))
    assert used() == first is not None
    headers = {"Authorization": f"Bearer {house.token('viewer')}"}
    house.open(timedelta(minutes=2)).get("/v1/jobs", headers=headers)
    assert (used() or "") > first


def test_the_first_token_is_let_in_once_and_stays_revoked(house: House) -> None:
    me = house.ask("GET", "/v1/tokens", KEYS.token).json()["tokens"]
    home = next(token for token in me if token["name"] == "home")
    assert (home["project"], home["role"], home["created_by"]) == ("*", "admin", "serve")
    path = f"/v1/tokens/{home['id']}/actions/revoke"
    assert house.ask("POST", path, KEYS.token).status_code == 200
    headers = {"Authorization": f"Bearer {KEYS.token}"}
    assert house.open().get("/v1/jobs", headers=headers).status_code == 401


# What is written down.


def test_each_change_is_written_down_with_who_what_and_how_it_was_answered(house: House) -> None:
    submitter, viewer = house.token("submitter"), house.token("viewer")
    made = house.ask("POST", "/v1/jobs", submitter, json=document())
    house.ask("POST", "/v1/jobs", viewer, json=document())
    house.ask("POST", "/v1/jobs", submitter, json={})
    house.ask("POST", f"/v1/jobs/{house.job}/actions/cancel", submitter)
    house.ask("POST", f"/v1/jobs/{house.job}/actions/cancel", house.token("submitter", "beta"))
    house.ask("PATCH", "/v1/nowhere", viewer)
    house.ask("GET", "/v1/jobs", viewer)
    rows = house.written()[1:]  # the first is the house's own job
    facts = [(row["who"], row["route"], row["target"], row["status"]) for row in rows]
    me, other = ApiToken.of(submitter).id, ApiToken.of(house.token("submitter", "beta")).id
    cancel = "/v1/jobs/{job}/actions/cancel"
    assert facts == [
        (me, "/v1/jobs", made.json()["id"], 201),
        (ApiToken.of(viewer).id, "/v1/jobs", None, 403),
        (me, "/v1/jobs", None, 422),
        (me, cancel, house.job, 202),
        (other, cancel, house.job, 404),
        (ApiToken.of(viewer).id, "", None, 404),
    ]
    assert rows[0]["request_id"] == made.headers["x-request-id"]


def test_what_a_revoked_token_tries_is_written_down_and_what_strangers_try_is_not(
    house: House,
) -> None:
    gone = house.token("admin", "alpha", revoked_at=datetime.now(UTC))
    before = len(house.written())
    house.ask("POST", "/v1/jobs", gone, json=document())
    house.ask("POST", "/v1/jobs", make_token(), json=document())
    rows = house.written()[before:]
    assert [(row["who"], row["status"]) for row in rows] == [(ApiToken.of(gone).id, 401)]


@pytest.mark.parametrize(
    "change", ["UPDATE audit SET who = 'me'", "DELETE FROM audit", "TRUNCATE audit"]
)
def test_what_is_written_down_stays(house: House, change: str) -> None:
    with pytest.raises(DBAPIError, match="cannot be changed"), house.engine.begin() as connection:
        connection.execute(text(change))
    assert house.written()


def test_admins_read_what_the_tokens_of_their_project_asked_page_by_page(house: House) -> None:
    for _ in range(5):
        house.ask("POST", "/v1/jobs", house.token("viewer"))
    house.submit("beta")
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = house.ask("GET", "/v1/audit", house.token("admin"), params=query).json()
        seen += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [entry["status"] for entry in seen] == [403] * 5 + [201]
    numbers = [entry["number"] for entry in seen]
    assert numbers == sorted(numbers, reverse=True)
    everything = house.ask("GET", "/v1/audit", house.token("admin", "*")).json()["entries"]
    assert len(everything) == 7


# Rates, headers, names.


def test_who_asks_too_often_is_told_when_to_come_back(house: House) -> None:
    now = [0.0]
    client = house.open(limiter=RateLimiter(lambda: now[0]))
    mine = {"Authorization": f"Bearer {house.token('viewer')}"}
    other = {"Authorization": f"Bearer {house.token('viewer', 'beta')}"}

    def allowed(headers: Mapping[str, str]) -> int:
        """How many requests go on before the first that does not."""
        return next(n for n in count() if client.get("/v1/x", headers=headers).status_code == 429)

    assert allowed(mine) == 500
    assert client.get("/v1/x", headers=other).status_code == 404, "others are not concerned"
    refused = client.get("/v1/jobs", headers=mine)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert code_of(refused) == "too_many_requests"
    now[0] += 2
    assert allowed(mine) == 100


def test_strangers_are_counted_together_and_lock_nobody_else_out(house: House) -> None:
    now = [0.0]
    client = house.open(limiter=RateLimiter(lambda: now[0]))
    statuses = [
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {make_token()}"}).status_code
        for _ in range(110)
    ]
    assert statuses == [401] * 100 + [429] * 10
    mine = {"Authorization": f"Bearer {house.token('viewer')}"}
    assert client.get("/v1/jobs", headers=mine).status_code == 200
    assert client.get("/healthz").status_code == 200
    now[0] += 1
    assert [client.get("/v1/jobs").status_code for _ in range(6)] == [401] * 5 + [429]


def test_every_answer_carries_its_id_and_keeps_browsers_careful(house: House) -> None:
    asked = {
        200: house.client.get("/healthz"),
        401: house.client.get("/v1/jobs"),
        404: house.ask("GET", "/v1/nowhere", house.token()),
        422: house.ask("POST", "/v1/tokens", house.token(), json={}),
    }
    for status, answer in asked.items():
        assert answer.status_code == status
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert len(answer.headers["x-request-id"]) == 32
        if status != 200:
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [("a-request-of-mine", True), ("short", False), ("x" * 65, False), ("two\twords here", False)],
)
def test_a_request_keeps_the_id_its_sender_gave_it(house: House, name: str, is_kept: bool) -> None:
    answer = house.client.get("/healthz", headers={"X-Request-Id": name})
    assert (answer.headers["x-request-id"] == name) is is_kept


def test_a_mistake_of_the_controller_leaves_in_the_same_envelope(house: House) -> None:
    with house.engine.begin() as connection:
        connection.execute(text("ALTER TABLE sweeps RENAME TO brooms"))
    answer = house.ask("GET", "/v1/sweeps", house.token("admin", "*"))
    assert (answer.status_code, code_of(answer)) == (500, "internal")
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    answer = house.ask("POST", "/v1/sweeps", house.token("admin", "*"), json={"confirm": True})
    assert answer.status_code == house.written()[-1]["status"] == 500


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8321", 200),
        ("localhost", 200),
        ("[::1]:8321", 200),
        ("LOCALHOST:1", 200),
        ("ctl.example.org", 200),
        ("evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("localhost.", 421),
        ("", 421),
    ],
)
def test_only_known_names_are_answered(house: House, host: str, status: int) -> None:
    client = house.open(names={"127.0.0.1", "localhost", "[::1]", "ctl.example.org"})
    answer = client.get("/healthz", headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps", "/v1/tokens", "/v1/telemetry/backfill"])
@pytest.mark.parametrize("piece", ["[", '{"a":', '[{"\\"]":'])
def test_what_is_nested_very_deep_is_refused_before_anybody_reads_it(
    house: House, path: str, piece: str
) -> None:
    answer = house.ask("POST", path, KEYS.token, content=piece * 100_000, headers=JSON)
    assert (answer.status_code, code_of(answer)) == (422, "validation")
    assert "nested too deep" in answer.json()["detail"]


def test_a_body_that_trickles_in_is_not_waited_for_for_ever() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.002)
        return {"type": "http.request", "body": b" ", "more_body": True}

    request = Request({"type": "http", "headers": []})
    with pytest.raises(ApiProblem, match=r"within 0\.05 s") as refused:
        asyncio.run(middleware.read_body(request, receive, patience=0.05))
    assert refused.value.code == "too_slow"


def test_many_brackets_are_not_deep(house: House) -> None:
    wide = json.dumps({"name": "x", "role": "viewer", "more": [["]["]] * 1000})
    answer = house.ask("POST", "/v1/tokens", KEYS.token, content=wide, headers=JSON)
    assert "nested" not in answer.text
