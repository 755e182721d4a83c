"""Principals: who sends a request, a person, a worker, or a machine that has just booted."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.schemas import UserRole

EVERY_PROJECT = "*"
FIRST_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class UserPrincipal:
    """Somebody who holds a token.

    Attributes:
        token: Id of the token.
        project: The project it is for, or ``*`` for every one.
    """

    token: str
    project: str
    role: UserRole

    def sees(self, project: str) -> bool:
        """Tell whether what belongs to a project is there for this person."""
        return self.project in (EVERY_PROJECT, project)

    @property
    def own_project(self) -> str:
        """The project that what this person makes belongs to."""
        return FIRST_PROJECT if self.project == EVERY_PROJECT else self.project


@dataclass(frozen=True, slots=True)
class WorkerPrincipal:
    """A machine of a job, by its worker id.

    Attributes:
        generation: Generation the job was in when the machine came up.
        issued_at: When it got its token, in seconds since 1970.
    """

    worker: str
    job: str
    generation: int
    issued_at: float


@dataclass(frozen=True, slots=True)
class BootstrapPrincipal:
    """A machine that has only what it was launched with."""

    worker: str


Principal = UserPrincipal | WorkerPrincipal | BootstrapPrincipal
