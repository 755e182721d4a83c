"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.terminal import Form
from scavenger.quantity import Bounds, read_range

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Id, beginning or end of an id, name (the newest of that name), or 'latest'.",
    ),
]
FormOption = Annotated[
    Form, typer.Option("-o", "--output", help="How to write what was asked for.")
]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Data directory of the controller.", file_okay=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for -o json.")]
TableFiles = Annotated[
    list[Path],
    typer.Argument(metavar="FILE.csv...", help="Measurements as CSV (docs/measurements.md)."),
]


def read_counts(text: str) -> Bounds | tuple[int, ...]:
    """Read a range such as ``2..16``, or whole numbers separated by commas.

    Raises:
        typer.BadParameter: It is neither; the message says what to write.
    """
    parts = text.split(",")
    try:
        if ".." in text:
            return read_range(text, example="2..16")
        counts = tuple(sorted({int(part) for part in parts}))
    except ValueError as error:
        message = str(error) if ".." in text else f"{text!r} is no list of whole numbers"
        raise typer.BadParameter(f"{message}: write e.g. 2..16 or 2,4,8") from None
    if counts[0] < 1:
        raise typer.BadParameter(f"{text!r} must be from 1 up: write e.g. 2..16 or 2,4,8")
    return counts
