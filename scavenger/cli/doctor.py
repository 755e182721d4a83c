"""``scavenger doctor``: checks a controller and its computer, and names remedies."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import RenderableType
from rich.table import Table

from scavenger.cli.options import HomeOption, OutputOption
from scavenger.cli.output import (
    OutputFormat,
    Terminal,
    get_terminal,
    plain_text,
    pluralize,
    render_facts,
)
from scavenger.cli.programs import module_command, require_extra
from scavenger.client.diagnostics import (
    check_clocks,
    check_disk,
    check_encryption,
    check_permissions,
    check_versions,
    failed_check,
    passed_check,
    warning_check,
)
from scavenger.client.errors import (
    ClientError,
    Forbidden,
    NotFound,
    NoToken,
    Unauthenticated,
    Unreachable,
)
from scavenger.client.profile import CONNECTION_FILE, data_directory, is_loopback
from scavenger.errors import ExitCode
from scavenger.schemas.diagnostics import CheckView, DiagnosticsView

PermissionsOption = Annotated[
    bool,
    typer.Option(
        "--permissions",
        help="Ask each cloud of the clouds file which rights it grants; changes nothing.",
    ),
]
CloudsOption = Annotated[
    Path | None,
    typer.Option(
        "--clouds",
        help="Clouds file for --permissions. Default: SCAVENGER_CLOUDS.",
        exists=True,
        dir_okay=False,
    ),
]

SECRET_FILES = ("token", "secret", CONNECTION_FILE, "postgres/password")


def doctor(
    context: typer.Context,
    home: HomeOption = None,
    permissions: PermissionsOption = False,
    clouds: CloudsOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check the controller, its database, clocks, disk and secrets, and suggest remedies."""
    terminal, directory = get_terminal(context), data_directory() if home is None else home
    if clouds is not None and not permissions:
        raise typer.BadParameter("--clouds names the file for --permissions: pass both")
    if permissions:
        found = check_permissions_in_clouds(terminal, clouds)
    else:
        checks = [*check_controller(terminal), *check_home_directory(directory.expanduser())]
        # A controller that answers has checked the disk of its data directory itself.
        if not any(check.name == "disk" for check in checks) and directory.exists():
            checks.append(check_disk(shutil.disk_usage(directory).free))
        found = DiagnosticsView(version=version("scavenger"), at=datetime.now(UTC), checks=checks)
    terminal.print_result(found, output, render_checks(found))
    failed = sum(check.state == "failed" for check in found.checks)
    if failed:
        terminal.print_message(f"{pluralize(failed, 'check')} failed.")
        raise typer.Exit(ExitCode.OTHER)


def check_permissions_in_clouds(terminal: Terminal, clouds: Path | None) -> DiagnosticsView:
    """Return the checks of a program that asks each cloud which rights it grants.

    It runs here, with the credentials of this computer, and needs no controller. One that answers
    knows the id that stands on its machines, by which a cloud may judge.
    """
    require_extra("controller", "pydantic_settings", "sqlalchemy")
    options = [] if clouds is None else [f"--clouds={clouds.expanduser().absolute()}"]
    with suppress(ClientError), terminal.connect() as client:
        checks = client.get_diagnostics().checks
        options += [f"--owner={check.found}" for check in checks if check.name == "installation"]
    command = module_command("service.clouds.doctor", *options)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise typer.Exit(ended.returncode)
    return DiagnosticsView.model_validate_json(ended.stdout)


def check_controller(terminal: Terminal) -> Iterator[CheckView]:
    """Yield checks of the connection and of the controller, as it reports them."""
    try:
        with terminal.connect() as client:
            url = httpx.URL(client.url)
            yield check_encryption(url.scheme, is_loopback=is_loopback(url.host))
            # Health needs no token: after it, a failure is the token's and not the network's.
            client.get_health()
            yield passed_check("controller", f"answers at {client.url}")
            asked = datetime.now(UTC)
            checkup = client.get_diagnostics()
            answered = datetime.now(UTC)
    except ClientError as error:
        yield check_of_error(error)
        return
    yield passed_check("token", "is accepted")
    yield check_versions(version("scavenger"), checkup.version)
    # The controller read its clock about halfway between request and answer.
    yield check_clocks("clock", checkup.at - (asked + (answered - asked) / 2))
    yield from checkup.checks


def check_of_error(error: ClientError) -> CheckView:
    """Return the failed check of a controller that gave no usable answer."""
    match error:
        case NoToken() | Unauthenticated() | Forbidden():
            return failed_check("token", str(error), error.remedy)
        case Unreachable():
            remedy = f"{error.remedy}; or name its address in SCAVENGER_URL"
            return failed_check("controller", f"{error.headline}: {error}", remedy)
        case NotFound():
            # Controllers before the version with this route answer 404.
            remedy = "install the same version in both places"
            return warning_check("versions", "the controller cannot examine itself", remedy)
        case _:
            return failed_check("controller", str(error), "read the controller's log")


def check_home_directory(home: Path) -> Iterator[CheckView]:
    """Yield checks of a controller's data directory on this computer."""
    if not home.is_dir():
        yield warning_check(
            "home", f"{home} is not there", "pass --home, or start a controller here"
        )
        return
    files = [home, *(home / name for name in SECRET_FILES)]
    yield check_permissions({str(file): os.stat(file).st_mode for file in files if file.exists()})


CHECK_SYMBOLS = {"ok": ("✔", "green"), "warning": ("▲", "yellow"), "failed": ("✗", "red")}


def render_checks(checkup: DiagnosticsView) -> RenderableType:
    """Render a line for each check, with the remedy below it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checkup.checks:
        mark, style = CHECK_SYMBOLS.get(check.state, (check.state, ""))
        grid.add_row(plain_text(mark, style), plain_text(check.name), plain_text(check.found))
        if check.remedy:
            grid.add_row("", "", plain_text(f"→ {check.remedy}", "bold"))
    return grid


def show_version(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the versions of this program and of the controller; --version asks no controller."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = client.get_version()
    facts = [
        ("program", version("scavenger")),
        ("controller", f"{found.version}, API {found.api}, schema {found.schema_revision}"),
    ]
    terminal.print_result(found, output, render_facts(facts))
