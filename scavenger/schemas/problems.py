"""Schemas of problems (RFC 9457): why a request was refused, and what to do."""

from __future__ import annotations

from typing import Literal

from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.jobs import ConfigView, JobPhase


class ErrorDetail(View):
    """One problem of a request: JSON pointer to the field, and what to do about it."""

    pointer: str
    message: str
    line: int | None = None
    column: int | None = None


class JobVersionView(View):
    """What is decided about a job by now, for a client that acted on an older answer.

    Attributes:
        etag: Its version; send it as If-Match to act on these figures.
        target: Configuration wanted now.
        applied: Configuration all workers confirmed.
        forecast: Predicted cost of the whole job; None while unknown.
    """

    etag: str
    phase: JobPhase
    target: ConfigView | None
    applied: ConfigView | None
    forecast: MoneyView | None
    preference: Literal["auto", "knee", "cheapest", "fastest", "pinned"]
    is_paused: bool


class ProblemView(View):
    """An error answer (RFC 9457, ``application/problem+json``).

    Attributes:
        current: The job as it is now, where something was decided since the version in If-Match.
        code: Short name of the problem type, such as ``not_found``; docs/problems.md lists them.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[ErrorDetail] = []
    request_id: str | None = None
    current: JobVersionView | None = None
