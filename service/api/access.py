"""Access: who may use which route, in one table, and nothing that is not in it.

The table is compared with the routes when the application is built: a route that is added without
saying who may use it keeps the controller from starting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.routing import Match
from starlette.types import Scope

from scavenger.view import PersonRole
from service.caller import EVERY_PROJECT, Caller, Machine, Newcomer, Person


@dataclass(frozen=True, slots=True)
class Open:
    """Everybody may use it, without a token."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines may use it, and no person."""


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Machines that just came up may use it, and nobody else."""


@dataclass(frozen=True, slots=True)
class People:
    """Persons may use it, from a role on.

    Attributes:
        is_of_all: Whether it is about the whole installation, not about one project.
    """

    role: PersonRole
    is_of_all: bool = False


Access = Open | Machines | Newcomers | People

VIEWER, SUBMITTER = People(PersonRole.VIEWER), People(PersonRole.SUBMITTER)
OPERATOR, ADMIN = People(PersonRole.OPERATOR), People(PersonRole.ADMIN)
TABLE: Mapping[tuple[str, str], Access] = {
    ("GET", "/healthz"): Open(),
    ("GET", "/readyz"): Open(),
    ("GET", "/metrics"): People(PersonRole.VIEWER, is_of_all=True),
    ("GET", "/metrics/jobs"): People(PersonRole.VIEWER, is_of_all=True),
    ("GET", "/openapi.json"): VIEWER,
    ("GET", "/problems/{problem}"): VIEWER,
    ("POST", "/v1/jobs"): SUBMITTER,
    ("GET", "/v1/jobs"): VIEWER,
    ("GET", "/v1/jobs/{job}"): VIEWER,
    ("POST", "/v1/jobs/{job}/actions/cancel"): SUBMITTER,
    ("GET", "/v1/jobs/{job}/curve"): VIEWER,
    ("GET", "/v1/jobs/{job}/events"): VIEWER,
    ("GET", "/v1/models"): VIEWER,
    ("POST", "/v1/deliveries"): OPERATOR,
    ("GET", "/v1/sweeps"): People(PersonRole.OPERATOR, is_of_all=True),
    ("POST", "/v1/sweeps"): People(PersonRole.OPERATOR, is_of_all=True),
    ("GET", "/v1/checkup"): People(PersonRole.OPERATOR, is_of_all=True),
    ("GET", "/v1/tokens"): ADMIN,
    ("POST", "/v1/tokens"): ADMIN,
    ("GET", "/v1/tokens/{token}"): ADMIN,
    ("POST", "/v1/tokens/{token}/actions/revoke"): ADMIN,
    ("GET", "/v1/audit"): ADMIN,
    ("POST", "/v1/agent/enrol"): Newcomers(),
    ("POST", "/v1/agent/hello"): Machines(),
    ("POST", "/v1/agent/report"): Machines(),
    ("POST", "/v1/agent/lease"): Machines(),
    ("POST", "/v1/agent/exit"): Machines(),
}


@dataclass(frozen=True, slots=True)
class Door:
    """A route, and who may use it.

    Attributes:
        path: Its path, with the names of the variable parts.
        parts: What these are in this request.
    """

    access: Access
    path: str
    parts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoDoor:
    """No route.

    Attributes:
        methods: What could be asked at this path; nothing where the path itself does not exist.
        is_open: Whether anybody may ask that.
    """

    methods: tuple[str, ...] = ()
    is_open: bool = False


class Doors:
    """The routes of an application, each with who may use it.

    Args:
        app: The application; it must have all its routes already.
        table: Who may use each.

    Raises:
        ValueError: A route has no row, or a row has no route.
    """

    def __init__(self, app: FastAPI, table: Mapping[tuple[str, str], Access] = TABLE) -> None:
        self._routes = list(iter_route_contexts(app.routes))
        self._table = table
        found = {key for route in self._routes for key in keys_of(route)}
        if strays := sorted(found - set(table)):
            raise ValueError(f"nobody said who may use {strays}: add rows to TABLE")
        if strays := sorted(set(table) - found):
            raise ValueError(f"TABLE has rows for {strays}, which are no routes")

    def find(self, scope: Scope) -> Door | NoDoor:
        """Return the door a request stands before, judged as the router judges it."""
        methods: dict[str, Access] = {}
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                path = str(route.path)
                return Door(self._table[scope["method"], path], path, child["path_params"])
            if match is Match.PARTIAL:
                methods |= {m: self._table[m, str(route.path)] for m in route.methods or ()}
        is_open = any(isinstance(access, Open) for access in methods.values())
        return NoDoor(tuple(sorted(methods)), is_open)


def keys_of(route: RouteContext) -> Sequence[tuple[str, str]]:
    """Return method and path of a route; what has no methods lets in whatever it likes."""
    if route.path is None or not route.methods:
        raise ValueError(f"nobody can say who may use {described(route.route)}: it has no methods")
    return [(method, route.path) for method in sorted(route.methods)]


def described(route: Any) -> str:
    """Name a route that is no ordinary one."""
    return f"{type(route).__name__} {getattr(route, 'path', '')}".strip()


def opens(caller: Caller, access: Access) -> bool:
    """Tell whether somebody may use a route at all, whatever it is about."""
    match access, caller:
        case Open(), _:
            return True
        case (Machines(), Machine()) | (Newcomers(), Newcomer()):
            return True
        case People(role, is_of_all), Person() as person:
            is_wide_enough = person.project == EVERY_PROJECT or not is_of_all
            return person.role.covers(role) and is_wide_enough
        case _:
            return False
