"""Programs that commands hand over to: the controller, its backup, and the worker agent.

Each of them reads the arguments after its name itself, so that its options are declared once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated, NoReturn

import typer

from scavenger.cli.errors import ExtraNotInstalled

ServeArguments = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]")]
AgentArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="run|audit|sync|selftest ...", help="Each has a --help of its own."),
]


def serve(arguments: ServeArguments = None) -> None:
    """Run the controller until Ctrl-C. scavenger serve --help lists its options."""
    require_extra("controller", "sqlalchemy", "uvicorn")
    replace_process("service", *(arguments or []))


def agent(arguments: AgentArguments = None) -> None:
    """Run a script under the agent, rehearse resizes, or upload spooled telemetry."""
    replace_process("worker_agent", *(arguments or ["--help"]))


def require_extra(extra: str, *modules: str) -> None:
    """Raise ExtraNotInstalled where a module that an extra brings is missing."""
    # Found but not imported: the import of SQLAlchemy alone takes longer than most commands.
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ExtraNotInstalled(f"Not installed: {', '.join(missing)}", extra)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a program of this installation."""
    return [sys.executable, "-m", module, *arguments]


def replace_process(module: str, *arguments: str) -> NoReturn:
    """Replace this process by a program, so that signals and exit code are the program's own."""
    command = module_command(module, *arguments)
    os.execv(command[0], command)  # noqa: S606
