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

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="Certificate chain: speak HTTPS.", dir_okay=False)
]
Key = Annotated[Path | None, typer.Option("--tls-key", help="The key to it.", dir_okay=False)]
Proxy = Annotated[
    bool, typer.Option("--behind-proxy", help="Something in front of it speaks HTTPS.")
]


Address = Annotated[
    str | None,
    typer.Option("--address", help="URL by which machines reach it, or its likes.", metavar="URL"),
]
Names = Annotated[
    str | None, typer.Option("--names", help="More host names it goes by, with commas between.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", help="The secret of all its database's controllers."),
]
Machines = Annotated[
    Path | None,
    typer.Option("--machines", help="Directory of this computer's machines; else in its home."),
]
Days = Annotated[
    int | None,
    typer.Option("--keep-telemetry", min=1, help="Days for which iterations are kept."),
]


class LogFormat(StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="How log lines are written; text if somebody watches."),
]


def serve(
    port: Port = None,
    home: HomeOption = None,
    host: Host = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    behind_proxy: Proxy = False,
    log_format: LogFormatOption = None,
    address: Address = None,
    names: Names = None,
    secret_file: SecretFile = None,
    machines: Machines = None,
    keep_telemetry: Days = None,
) -> None:
    """Run the controller here, until Ctrl-C. It keeps its data and its token in its home."""
    given = {
        "--host": host,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--log-format": log_format,
        "--address": address,
        "--names": names,
        "--secret-file": secret_file,
        "--machines": machines,
        "--keep-telemetry": keep_telemetry,
    }
    command = command_of_controller(port=port, home=home)
    command += [word for name, value in given.items() if value for word in (name, str(value))]
    command += ["--behind-proxy"] if behind_proxy else []
    os.execv(command[0], command)  # noqa: S606


def command_of_controller(*, port: int | None, home: Path | None) -> list[str]:
    """Return the program and arguments that run a controller."""
    command = [sys.executable, "-m", "service"]
    if port is not None:
        command += ["--port", str(port)]
    if home is not None:
        command += ["--home", str(home.expanduser().absolute())]
    return command
