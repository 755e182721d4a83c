"""``scavenger agent run``: starts any training command, and measures it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from worker_agent.run.alone import become
from worker_agent.run.launcher import Launcher, Level
from worker_agent.settings import inherited, read_settings

NOT_STARTED = 127  # what a shell answers for a command it cannot run

Command = Annotated[list[str], typer.Argument(help="The training command and its arguments.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Outside a job: append what is measured to this file, a line of JSON per iteration."
    ),
]
HowMuch = Annotated[
    Level,
    typer.Option(help="In a job: observe and advise only measure; control may restart to resize."),
]


def run(command: Command, level: HowMuch = "control", out: Out = None) -> None:
    """Run a training command: measured and resized in a job, untouched outside one."""
    environment, settings = inherited(), read_settings()
    try:
        if settings is None:
            become(command, environment, out)
        end_like(Launcher(settings, command, level, environment).run())
    except OSError as error:
        Console(stderr=True).print(
            f"cannot start {command[0]}: {error.strerror}. Is it installed, and on the PATH?",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(NOT_STARTED) from None


def end_like(code: int) -> NoReturn:
    """End with a command's exit code, or by the signal that ended it."""
    if code < 0:
        with suppress(OSError):  # what cannot be handled has its default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise typer.Exit(code)
