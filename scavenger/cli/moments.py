"""Moments as people write them: so long ago, or a date."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from scavenger.job.fields import read_duration

DAYS_AGO = re.compile(r" *([0-9]{1,5}) *d *")


def parse_moment(text: str) -> datetime:
    """Read a moment: ``8h`` or ``2d`` ago, a date, or RFC 3339; without a zone it is UTC.

    Raises:
        typer.BadParameter: It is none of them; the message says what to write.
    """
    days = DAYS_AGO.fullmatch(text)
    try:
        if days is not None:
            return datetime.now(UTC) - timedelta(days=int(days[1]))
        if text[:4].isdigit() and "-" in text:
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return datetime.now(UTC) - timedelta(seconds=read_duration(text))
    except (ValueError, OverflowError):
        example = "write e.g. 8h, 2d, 2026-11-23 or 2026-11-23T19:00:00Z"
        raise typer.BadParameter(f"{text!r} is no moment: {example}") from None


SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=parse_moment,
        metavar="WHEN",
        help="Only from then on: 8h or 2d ago, a date, or RFC 3339.",
    ),
]
