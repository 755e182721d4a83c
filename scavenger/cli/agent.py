"""``scavenger agent``: hands over to the program beside the training process."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

# What follows the name of the agent's command is the agent's, options and help too.
AGENT_CONTEXT = {"allow_interspersed_args": False}

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="run|sync|selftest ...", help="Each has a --help of its own."),
]


def agent(words: Words = None) -> None:
    """Run a script under the agent, rehearse here, or deliver later what was measured."""
    command = [sys.executable, "-m", "worker_agent", *(words or ["--help"])]
    os.execv(command[0], command)  # noqa: S606
