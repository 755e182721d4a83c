"""``scavenger doctor``: looks at everything a controller depends on, and says what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import httpx
import typer

from scavenger.checkup import (
    bad,
    check_clocks,
    check_disk,
    check_modes,
    check_versions,
    check_way,
    doubtful,
    good,
)
from scavenger.cli.checklist import show_checks
from scavenger.cli.exit_code import ExitCode
from scavenger.cli.figures import counted, words
from scavenger.cli.option import FormOption, HomeOption
from scavenger.cli.terminal import Form, Terminal, terminal_of
from scavenger.client.client import Client, is_loopback
from scavenger.client.errors import ClientError, NoToken, Refused, Unauthenticated, Unreachable
from scavenger.client.profile import CONNECTION_FILE, data_directory
from scavenger.view import CheckupView, CheckView

SECRET_FILES = ("token", "secret", CONNECTION_FILE, "postgres/password")


def doctor(
    context: typer.Context, home: HomeOption = None, output: FormOption = Form.TABLE
) -> None:
    """Check the controller, its database, clocks, disk and secrets; say what to put right."""
    terminal, directory = terminal_of(context), data_directory() if home is None else home
    checks = [*checks_of_controller(terminal), *checks_of_home(directory.expanduser())]
    if not any(check.name == "disk" for check in checks) and directory.exists():
        checks.append(check_disk(shutil.disk_usage(directory).free))
    found = CheckupView(version=version("scavenger"), at=datetime.now(UTC), checks=checks)
    terminal.show(found, output, show_checks(found))
    failed = sum(check.state == "failed" for check in checks)
    if failed:
        terminal.say(words(f"{counted(failed, 'check')} failed."))
        raise typer.Exit(ExitCode.OTHER)


def checks_of_controller(terminal: Terminal) -> Iterator[CheckView]:
    """Yield what the controller says about itself, and how one gets there."""
    try:
        with terminal.connect() as client:
            yield way_to(client)
            client.health()
            yield good("controller", f"answers at {client.url}")
            asked = datetime.now(UTC)
            checkup = client.checkup()
            answered = datetime.now(UTC)
    except ClientError as error:
        yield failure(error)
        return
    yield good("token", "is accepted")
    yield check_versions(version("scavenger"), checkup.version)
    yield check_clocks("clock", checkup.at - (asked + (answered - asked) / 2))
    yield from checkup.checks


def way_to(client: Client) -> CheckView:
    """Judge the way to the controller."""
    url = httpx.URL(client.url)
    return check_way(url.scheme, is_loopback=is_loopback(url.host))


def failure(error: ClientError) -> CheckView:
    """Say what a controller that gave no answer of use lacks."""
    match error:
        case NoToken() | Unauthenticated():
            remedy = "name a token that the controller knows in SCAVENGER_TOKEN"
            return bad("token", str(error), remedy)
        case Unreachable(url=url):
            where = f" at {url}" if url else ""
            remedy = "start it with scavenger serve, or name its address in SCAVENGER_URL"
            return bad("controller", f"nothing answers{where}: {error}", remedy)
        case Refused(problem=problem) if problem.status == 404:
            remedy = "install the same version in both places"
            return doubtful("versions", "the controller cannot examine itself", remedy)
        case _:
            return bad("controller", str(error), "read the controller's log")


def checks_of_home(home: Path) -> Iterator[CheckView]:
    """Yield what is found in the data directory of a controller on this computer."""
    if not home.is_dir():
        yield doubtful("home", f"{home} is not there", "pass --home, or start a controller here")
        return
    files = [home, *(home / name for name in SECRET_FILES)]
    yield check_modes({str(file): os.stat(file).st_mode for file in files if file.exists()})
