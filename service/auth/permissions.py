"""Permissions: which principals may use which route.

The table is compared with the application's routes at start-up, so a route without a permission
keeps the controller from starting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.routing import Match
from starlette.types import Scope

from scavenger.schemas import UserRole
from service.auth.principals import (
    EVERY_PROJECT,
    BootstrapPrincipal,
    Principal,
    UserPrincipal,
    WorkerPrincipal,
)


@dataclass(frozen=True, slots=True)
class PublicAccess:
    """Everybody may use it, without a token."""


@dataclass(frozen=True, slots=True)
class WorkersOnly:
    """Machines may use it, and no person."""


@dataclass(frozen=True, slots=True)
class BootstrapOnly:
    """Machines that just came up may use it, and nobody else."""


@dataclass(frozen=True, slots=True)
class PeopleFromRole:
    """Persons may use it, from a role on.

    Attributes:
        is_of_all: Whether it is about the whole installation, not about one project.
    """

    role: UserRole
    is_of_all: bool = False


Permission = PublicAccess | WorkersOnly | BootstrapOnly | PeopleFromRole

VIEWER_ACCESS, SUBMITTER_ACCESS = (
    PeopleFromRole(UserRole.VIEWER),
    PeopleFromRole(UserRole.SUBMITTER),
)
OPERATOR_ACCESS, ADMIN_ACCESS = PeopleFromRole(UserRole.OPERATOR), PeopleFromRole(UserRole.ADMIN)
ROUTE_PERMISSIONS: Mapping[tuple[str, str], Permission] = {
    ("GET", "/healthz"): PublicAccess(),
    ("GET", "/readyz"): PublicAccess(),
    ("GET", "/metrics"): PeopleFromRole(UserRole.VIEWER, is_of_all=True),
    ("GET", "/metrics/jobs"): PeopleFromRole(UserRole.VIEWER, is_of_all=True),
    ("GET", "/openapi.json"): VIEWER_ACCESS,
    ("GET", "/problems/{problem}"): VIEWER_ACCESS,
    ("POST", "/v1/jobs"): SUBMITTER_ACCESS,
    ("GET", "/v1/jobs"): VIEWER_ACCESS,
    ("GET", "/v1/jobs/{job}"): VIEWER_ACCESS,
    ("POST", "/v1/jobs/{job}/actions/cancel"): SUBMITTER_ACCESS,
    ("GET", "/v1/jobs/{job}/curve"): VIEWER_ACCESS,
    ("GET", "/v1/jobs/{job}/events"): VIEWER_ACCESS,
    ("GET", "/v1/models"): VIEWER_ACCESS,
    ("POST", "/v1/telemetry/backfill"): OPERATOR_ACCESS,
    ("POST", "/v1/deliveries"): OPERATOR_ACCESS,
    ("GET", "/v1/sweeps"): PeopleFromRole(UserRole.OPERATOR, is_of_all=True),
    ("POST", "/v1/sweeps"): PeopleFromRole(UserRole.OPERATOR, is_of_all=True),
    ("GET", "/v1/checkup"): PeopleFromRole(UserRole.OPERATOR, is_of_all=True),
    ("GET", "/v1/tokens"): ADMIN_ACCESS,
    ("POST", "/v1/tokens"): ADMIN_ACCESS,
    ("GET", "/v1/tokens/{token}"): ADMIN_ACCESS,
    ("POST", "/v1/tokens/{token}/actions/revoke"): ADMIN_ACCESS,
    ("GET", "/v1/audit"): ADMIN_ACCESS,
    ("POST", "/v1/agent/enrol"): BootstrapOnly(),
    ("POST", "/v1/agent/hello"): WorkersOnly(),
    ("POST", "/v1/agent/report"): WorkersOnly(),
    ("POST", "/v1/agent/lease"): WorkersOnly(),
    ("POST", "/v1/agent/exit"): WorkersOnly(),
}


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A route, and who may use it.

    Attributes:
        path: Its path, with the names of the variable parts.
        parts: What these are in this request.
    """

    access: Permission
    path: str
    parts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No route.

    Attributes:
        methods: What could be asked at this path; nothing where the path itself does not exist.
        is_open: Whether anybody may ask that.
    """

    methods: tuple[str, ...] = ()
    is_open: bool = False


class RouteTable:
    """The routes of an application, each with who may use it.

    Args:
        app: The application; it must have all its routes already.
        table: Who may use each.

    Raises:
        ValueError: A route has no row, or a row has no route.
    """

    def __init__(
        self, app: FastAPI, table: Mapping[tuple[str, str], Permission] = ROUTE_PERMISSIONS
    ) -> None:
        self._routes = list(iter_route_contexts(app.routes))
        self._table = table
        found = {key for route in self._routes for key in methods_and_path(route)}
        if strays := sorted(found - set(table)):
            raise ValueError(f"nobody said who may use {strays}: add rows to TABLE")
        if strays := sorted(set(table) - found):
            raise ValueError(f"TABLE has rows for {strays}, which are no routes")

    def find(self, scope: Scope) -> RouteMatch | NoRoute:
        """Return the door a request stands before, judged as the router judges it."""
        methods: dict[str, Permission] = {}
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                path = str(route.path)
                return RouteMatch(self._table[scope["method"], path], path, child["path_params"])
            if match is Match.PARTIAL:
                methods |= {m: self._table[m, str(route.path)] for m in route.methods or ()}
        is_open = any(isinstance(access, PublicAccess) for access in methods.values())
        return NoRoute(tuple(sorted(methods)), is_open)


def methods_and_path(route: RouteContext) -> Sequence[tuple[str, str]]:
    """Return method and path of a route; what has no methods lets in whatever it likes."""
    if route.path is None or not route.methods:
        raise ValueError(
            f"nobody can say who may use {describe_route(route.route)}: it has no methods"
        )
    return [(method, route.path) for method in sorted(route.methods)]


def describe_route(route: Any) -> str:
    """Name a route that is no ordinary one."""
    return f"{type(route).__name__} {getattr(route, 'path', '')}".strip()


def is_permitted(caller: Principal, access: Permission) -> bool:
    """Tell whether somebody may use a route at all, whatever it is about."""
    match access, caller:
        case PublicAccess(), _:
            return True
        case (WorkersOnly(), WorkerPrincipal()) | (BootstrapOnly(), BootstrapPrincipal()):
            return True
        case PeopleFromRole(role, is_of_all), UserPrincipal() as person:
            is_wide_enough = person.project == EVERY_PROJECT or not is_of_all
            return person.role.covers(role) and is_wide_enough
        case _:
            return False
