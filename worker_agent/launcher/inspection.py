"""Runs a training command for a few steps, for what it writes about itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker_agent.launcher.environment import instrumented_environment
from worker_agent.settings import inherited_environment

EXIT_NOTHING_WRITTEN, EXIT_NO_COMMAND = 2, 127


def inspect(
    command: Sequence[str],
    added: Mapping[str, str],
    report: Path,
    lacking: str,
    patience: float | None = None,
) -> None:
    """Run a command until it has written a report; exit with its code, or 2, if it has not.

    Args:
        command: The training command.
        added: What to add to its environment.
        report: The file that it writes.
        lacking: What to say if it does not, after how it ended.
        patience: Seconds after which the command is killed; None to wait for its end.
    """
    try:
        ended = subprocess.run(
            command,
            env=instrumented_environment(inherited_environment(), added),
            check=False,
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        print(f"the command was killed after {patience:g} s, {lacking}", file=sys.stderr)
        sys.exit(EXIT_NOTHING_WRITTEN)
    except OSError as error:
        why = f"cannot start {command[0]}: {error.strerror}. Is it installed, and on the PATH?"
        print(why, file=sys.stderr)
        sys.exit(EXIT_NO_COMMAND)
    if not report.exists():
        print(f"the command ended with exit code {ended.returncode} {lacking}", file=sys.stderr)
        sys.exit(ended.returncode or EXIT_NOTHING_WRITTEN)


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return a training command without the ``--`` before it."""
    return list(arguments[1:] if arguments[:1] == ["--"] else arguments)
