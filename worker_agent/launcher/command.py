"""``scavenger agent run``: starts a training command, under a launcher in a job."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, get_args

from worker_agent.launcher.launcher import Launcher, RunLevel, exec_command
from worker_agent.launcher.server_launcher import ServerLauncher
from worker_agent.settings import inherited_environment, read_settings

_EXIT_NOT_STARTED = 127  # what a shell answers for a command it cannot run


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a training command: measured and resized in a job, untouched outside one."""
    given = _parse(arguments)
    command: list[str] = given.command
    environment, settings = inherited_environment(), read_settings()
    try:
        if settings is None:
            exec_command(command, environment, given.out)
        if settings.role == "server":
            exit_like(ServerLauncher(settings, command, environment).run())
        exit_like(Launcher(settings, command, given.level, environment).run())
    except OSError as error:
        why = f"cannot start {command[0]}: {error.strerror}. Is it installed, and on the PATH?"
        print(why, file=sys.stderr)
        sys.exit(_EXIT_NOT_STARTED)


def exit_like(code: int) -> NoReturn:
    """End with a command's exit code, or by the signal that ended it."""
    if code < 0:
        with suppress(OSError):  # SIGKILL and SIGSTOP cannot be handled, so they have their default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read options up to the command; all that follows it belongs to the command."""
    parser = argparse.ArgumentParser(
        prog="scavenger agent run",
        usage="%(prog)s [--level LEVEL] [--out FILE] -- COMMAND...",
        allow_abbrev=False,
        description="Run a training command: measured and resized in a job, untouched outside one.",
        epilog="Example: scavenger agent run --out rows.jsonl -- "
        "torchrun --nproc-per-node=2 train.py",
    )
    parser.add_argument(
        "--level",
        choices=get_args(RunLevel),
        default="control",
        help="In a job: observe and advise only measure; control may restart to resize. "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="Outside a job: append what is measured to this file, a line of JSON per iteration.",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="The training command and its arguments."
    )
    given = parser.parse_args(arguments)
    # REMAINDER keeps the separator that users write before a command with options.
    given.command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not given.command:
        parser.error("the training command is missing")
    return given
