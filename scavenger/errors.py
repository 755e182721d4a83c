"""Errors of the library that a program must handle, and the exit codes of its commands.

::

    ScavengerError
    ├── InvalidDocument      the document cannot be used: show its problems, store nothing
    ├── PriceMissing         a job document names no price: say what to add
    ├── NotEnoughData        too few observations for this model: probe one more configuration
    └── NothingFeasible      no configuration meets the limits: show the nearest relaxation

Each class carries what a program needs to report it: exit code, headline, details and remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ends; docs/exit-codes.md says when. Scripts rely on the numbers."""

    SUCCESS = 0
    OTHER = 1
    USAGE = 2
    WOULD_SPEND = 3
    AUTHENTICATION = 4
    NOT_FOUND = 5
    CONFLICT = 6
    INFEASIBLE = 7
    CAPPED = 8
    FAILED = 10
    CANCELLED = 11
    NO_CAPACITY = 12
    DIVERGED = 13
    UNREACHABLE = 20
    SERVER = 21
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class ScavengerError(Exception):
    """Root of the errors that this library, its client and its commands raise on purpose.

    A subclass overrides what differs; there is no second table that maps errors to words.

    Attributes:
        exit_code: Exit code of a command that this error ends.
    """

    exit_code = ExitCode.OTHER

    @property
    def headline(self) -> str:
        """What went wrong, in one sentence."""
        return str(self)

    @property
    def details(self) -> Sequence[tuple[str, str]]:
        """What else is known, each with its label."""
        return ()

    @property
    def locations(self) -> Sequence[str]:
        """What is wrong at which place of a file, as compilers write it."""
        return ()

    @property
    def remedy(self) -> str:
        """What the user can do next; empty where the message says it."""
        return ""


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """One thing that is wrong in a document, and where.

    Attributes:
        path: Dotted path of the field, such as ``limits.workers``; empty for the whole document.
        message: What is wrong with which value, and what to write instead.
        line: Line in the text, from 1; None when the text is not known.
        column: Column in the text, from 1; None when the text is not known.
    """

    path: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        field = f"{self.path}: " if self.path else ""
        return f"{place}{field}{self.message}"


class InvalidDocument(ScavengerError):
    """The document cannot be used; every problem found is listed, in order of appearance."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PriceMissing(ScavengerError):
    """The document names no price, which planning needs; the message says what to add."""

    exit_code = ExitCode.USAGE


class NotEnoughData(ScavengerError):
    """Too few observations to fit this model; probe one more configuration and try again."""

    exit_code = ExitCode.USAGE


class NothingFeasible(ScavengerError):
    """No configuration meets every limit; the message names the nearest relaxation."""

    exit_code = ExitCode.INFEASIBLE
    remedy = "relax the limit of cost or time that the message names"
