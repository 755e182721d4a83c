"""Who may use which route: every route, spelling, role and project, on a real database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.websockets import WebSocketDisconnect

from scavenger.schemas.access import UserRole
from service.api.dashboard import DASHBOARD_PAGES
from service.api.security import PUBLIC, VIEWER, GuardedRoute, permissions_of
from service.auth.permissions import (
    BootstrapOnly,
    Permission,
    PublicAccess,
    UsersFromRole,
    WorkersOnly,
)
from service.db import jobs, stored_models
from service.state.loader import load_knowledge
from tests.builders import NOW
from tests.contract.host import ROUTES
from tests.integration.house import JSON, KEYS, House, code_of
from tests.integration.test_lesson import OLD

# What strangers reach: no data, but what a load balancer, a machine that boots, and a browser that
# will sign in need.
OPEN = {"/", "/v1/agent/ca", "/v1/session", "/healthz", "/readyz"}
PAGE_OF_A_PROBLEM = "/problems/{problem}"  # a problem may be that there is no token
OF_THE_DASHBOARD = re.compile(rf"/(?:(?:{'|'.join(DASHBOARD_PAGES)})(?:/.*)?|assets/.*)")


def is_open(method: str, path: str) -> bool:
    """Tell whether strangers reach a path, as this module promises."""
    takes = "POST" if path == "/v1/session" else "GET"
    is_page = (
        re.fullmatch("/problems/[^/]+", path) is not None
        or OF_THE_DASHBOARD.fullmatch(path) is not None
    )
    return method == takes and (path in OPEN or is_page)


# Without a token, nothing else is reached.

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


def test_every_route_of_the_application_states_a_permission(house: House) -> None:
    app: Any = house.client.app
    found = [(m, r.path) for r in iter_route_contexts(app.routes) for m in r.methods or ()]
    assert sorted(found) == sorted(ROUTES)
    public = {path for (_, path), access in ROUTES.items() if access == PublicAccess()}
    pages = {"/{page:dashboard_path}", "/assets/{asset:path}", PAGE_OF_A_PROBLEM}
    assert public == {*OPEN, *pages}


async def status_of(app: Any, method: str, path: str) -> int:
    """Ask without a token, and return the status."""
    return (await answer_to_stranger(app, method, path))[0]


async def answer_to_stranger(app: Any, method: str, path: str) -> tuple[int, bytes]:
    """Ask without a token, in exactly these words; a client would tidy them up."""
    said: list[Any] = []
    scope = {"type": "http", "method": method, "path": unquote(path), "query_string": b""}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "root_path": ""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    return int(said[0]["status"]), b"".join(message.get("body", b"") for message in said)


def test_nothing_but_what_is_open_is_reached_without_a_token(house: House) -> None:
    paths = {house.fill(path) for _, path in ROUTES} | {
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
    reached = {
        (m, unquote(path)) for (m, path), status in found.items() if status not in (401, 405)
    }
    known = {unquote(path) for _, path in asked}
    assert reached == {(m, path) for m in METHODS for path in known if is_open(m, path)}
    assert {unquote(path) for (_, path), status in found.items() if status == 405} == {
        path for _, path in reached
    }


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
    for path in ("/docs", "/redoc", "/v1/jobs/", "/v1//jobs", "/V1/jobs", "/job"):
        answer = house.ask("GET", path, token)
        assert (answer.status_code, code_of(answer)) == (404, "not_found"), path
    answer = house.ask("DELETE", "/v1/jobs", token)
    assert (answer.status_code, code_of(answer)) == (405, "method_not_allowed")
    assert "GET, POST" in answer.json()["detail"]
    assert answer.headers["Allow"] == "GET, POST"
    assert house.ask("TRACE", "/healthz", "").headers["Allow"] == "GET"
    assert house.ask("HEAD", "/v1/jobs", token).status_code == 405


def test_a_route_without_a_permission_keeps_a_controller_from_starting() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/new")
    def new() -> None: ...

    with pytest.raises(ValueError, match="APIRoute /new states no permission"):
        permissions_of(app)
    app = FastAPI(openapi_url=None)
    app.router.route_class = GuardedRoute
    with pytest.raises(ValueError, match="/new states 0 permissions: give it one"):
        app.get("/new")(new)
    with pytest.raises(ValueError, match="/new states 2 permissions: give it one"):
        app.get("/new", dependencies=[VIEWER, PUBLIC])(new)
    app.get("/new", dependencies=[PUBLIC])(new)
    assert permissions_of(app) == {("GET", "/new"): PublicAccess()}
    app.router.routes.append(Mount("/files", PlainTextResponse("all of them")))
    with pytest.raises(ValueError, match="Mount /files states no permission"):
        permissions_of(app)


# Roles, machines and projects.

VISITORS = [(role.value, project) for role in UserRole for project in ("alpha", "beta", "*")]


def expected(access: Permission, role: str, project: str, path: str) -> int | None:
    """The refusal a person meets; None where it goes on."""
    match access:
        case PublicAccess():
            return None
        case WorkersOnly() | BootstrapOnly():
            return 403
        case UsersFromRole(needed, is_of_all):
            if not UserRole(role).covers(needed) or (is_of_all and project != "*"):
                return 403
            owned = ("{job}", "{token}", "{webhook}", "{plan}", "{signature:signature}")
            is_strange = any(part in path for part in owned) and project == "beta"
            return 404 if is_strange else None


@pytest.mark.parametrize(("role", "project"), VISITORS)
def test_each_role_may_do_what_the_table_says_in_its_own_project(
    house: House, role: str, project: str
) -> None:
    for (method, path), access in ROUTES.items():
        options = {"headers": JSON, "content": b"{}"}  # an empty body is refused before its route
        answer = house.ask(method, house.fill(path), house.token(role, project), **options)
        refused = answer.status_code if answer.status_code in (401, 403, 404, 429) else None
        assert refused == expected(access, role, project, path), (method, path, answer.text)
        if path.endswith("revoke"):  # or the viewer would be gone
            house.tokens.pop(("viewer", "alpha"), None)


def test_machines_may_use_what_is_theirs_and_nothing_else(house: House) -> None:
    token = KEYS.issue_worker_token(f"{house.job}-w1")
    for (method, path), access in ROUTES.items():
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
        assert facts[0] == facts[1], "a stranger cannot tell whether it exists"

    def listed(token: str) -> set[str]:
        return {job["id"] for job in house.ask("GET", "/v1/jobs", token).json()["jobs"]}

    assert listed(house.token("viewer", "beta")) == {other}
    assert listed(house.token("viewer", "alpha")) == {house.job}
    assert listed(all_of_them) == {house.job, other}


def test_models_of_one_project_are_neither_listed_nor_used_in_another(house: House) -> None:
    model = stored_models.STORED_MODEL.validate_python(OLD)
    with house.engine.begin() as connection:
        stored_models.store(connection, "alpha", "digits", model, NOW)
    jobs_of = {"alpha": house.job, "beta": house.submit("beta")}

    def known(project: str) -> tuple[int, bool]:
        answer = house.ask("GET", "/v1/models", house.token("viewer", project))
        with house.engine.connect() as connection:
            job = jobs.find(connection, jobs_of[project])
            assert job is not None
            knowledge = load_knowledge(connection, "local", [job], {job.id: ()}, {}, {})[job.id]
        return len(answer.json()["models"]), knowledge.stored is not None

    assert known("alpha") == (1, True)
    assert known("beta") == (0, False)
