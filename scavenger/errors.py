"""What can go wrong in the library that a program must handle.

::

    ScavengerError
    ├── InvalidDocument      the document cannot be used: show its problems, store nothing
    ├── NotEnoughData        too few observations for this model: probe one more configuration
    └── NothingFeasible      no configuration meets the limits: show the nearest relaxation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ScavengerError(Exception):
    """Root of everything this library raises on purpose."""


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

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotEnoughData(ScavengerError):
    """Too few observations to fit this model; probe one more configuration and try again."""


class NothingFeasible(ScavengerError):
    """No configuration meets every limit; the message names the nearest relaxation."""
