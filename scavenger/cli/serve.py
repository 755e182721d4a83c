"""``scavenger serve``: becomes the controller."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.option import HomeOption

Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")
]


class LogFormat(StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="How log lines are written; text if somebody watches."),
]


def serve(port: Port = None, home: HomeOption = None, log_format: LogFormatOption = None) -> None:
    """Run the controller here, until Ctrl-C. It keeps its data and its token in its home."""
    command = command_of_controller(port=port, home=home)
    if log_format is not None:
        command += ["--log-format", log_format]
    os.execv(command[0], command)  # noqa: S606


def command_of_controller(*, port: int | None, home: Path | None) -> list[str]:
    """Return the program and arguments that run a controller."""
    command = [sys.executable, "-m", "service"]
    if port is not None:
        command += ["--port", str(port)]
    if home is not None:
        command += ["--home", str(home.expanduser().absolute())]
    return command
