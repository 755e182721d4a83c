"""Schemas of the controller itself: its health, its checks and its version."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from scavenger.schemas.base import View
from scavenger.schemas.telemetry import NAMED_BY_ALIAS


class HealthView(View):
    """Answer of a controller that works: ``status`` is ``ok``."""

    status: str


class CheckView(View):
    """One check.

    Attributes:
        state: ``ok``, ``warning`` or ``failed``.
        found: The finding, in one sentence.
        remedy: What to do next; empty where nothing is wrong.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


class DiagnosticsView(View):
    """Checks of a controller by itself.

    Attributes:
        version: Its version.
        at: Its time.
    """

    version: str
    at: datetime
    checks: list[CheckView]


class VersionView(View):
    """What answers.

    Attributes:
        version: Of the controller.
        api: Of the API, the first part of every path.
        schema_revision: Of the database, ``schema`` on the wire.
    """

    model_config = NAMED_BY_ALIAS

    version: str
    api: str
    schema_revision: str = Field(alias="schema")
