"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.terminal import Form

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
