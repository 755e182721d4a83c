"""Principals and permissions: who sends a request, and which principals may use a route.

A route states its permission in its signature (``service.api.security``).
"""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.schemas.access import UserRole

EVERY_PROJECT = "*"
FIRST_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class UserPrincipal:
    """The holder of an API token.

    Attributes:
        token: Id of the token.
        project: The project it is for, or ``*`` for every one.
        session: Digest of the session that sends its cookie instead; None where the token itself
            is sent.
    """

    token: str
    project: str
    role: UserRole
    session: str | None = None

    def sees(self, project: str) -> bool:
        """Tell whether this token may know of what belongs to a project."""
        return self.project in (EVERY_PROJECT, project)

    @property
    def own_project(self) -> str:
        """The project that new jobs of this token belong to."""
        return FIRST_PROJECT if self.project == EVERY_PROJECT else self.project


@dataclass(frozen=True, slots=True)
class WorkerPrincipal:
    """A machine of a job, by its worker id.

    Attributes:
        generation: Generation of the job when the machine came up.
        issued_at: When the token was issued, in seconds since 1970.
    """

    worker: str
    job: str
    generation: int
    issued_at: float


@dataclass(frozen=True, slots=True)
class BootstrapPrincipal:
    """A machine that has booted and holds only its bootstrap token."""

    worker: str


Principal = UserPrincipal | WorkerPrincipal | BootstrapPrincipal


@dataclass(frozen=True, slots=True)
class PublicAccess:
    """Open to every request, without a token."""


@dataclass(frozen=True, slots=True)
class WorkersOnly:
    """Open to machines with a worker token, and to no user."""


@dataclass(frozen=True, slots=True)
class BootstrapOnly:
    """Open to machines with a bootstrap token only."""


@dataclass(frozen=True, slots=True)
class UsersFromRole:
    """Open to users from a role on.

    Attributes:
        is_of_all: Whether the route is about the whole installation: the token must be for every
            project.
    """

    role: UserRole
    is_of_all: bool = False


Permission = PublicAccess | WorkersOnly | BootstrapOnly | UsersFromRole


def is_permitted(principal: Principal, permission: Permission) -> bool:
    """Tell whether a principal may use a route at all, whichever job the request is about."""
    match permission, principal:
        case PublicAccess(), _:
            return True
        case (WorkersOnly(), WorkerPrincipal()) | (BootstrapOnly(), BootstrapPrincipal()):
            return True
        case UsersFromRole(role, is_of_all), UserPrincipal() as user:
            is_wide_enough = user.project == EVERY_PROJECT or not is_of_all
            return user.role.covers(role) and is_wide_enough
        case _:
            return False
