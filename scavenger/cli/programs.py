"""``scavenger serve`` and ``agent``: replace this process by the controller or the worker agent."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.options import HomeOption

PortOption = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")
]

HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-cert", help="Certificate chain: speak HTTPS.", dir_okay=False)
]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="The key to it.", dir_okay=False)]
ProxyOption = Annotated[
    bool, typer.Option("--behind-proxy", help="Something in front of it speaks HTTPS.")
]


AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="URL by which machines reach it, or its likes.", metavar="URL"),
]
HostNamesOption = Annotated[
    str | None, typer.Option("--names", help="More host names it goes by, with commas between.")
]
SecretFileOption = Annotated[
    Path | None,
    typer.Option("--secret-file", help="The secret of all its database's controllers."),
]
MachinesOption = Annotated[
    Path | None,
    typer.Option("--machines", help="Directory of this computer's machines; else in its home."),
]
TelemetryDaysOption = Annotated[
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
    port: PortOption = None,
    home: HomeOption = None,
    host: HostOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    behind_proxy: ProxyOption = False,
    log_format: LogFormatOption = None,
    address: AddressOption = None,
    names: HostNamesOption = None,
    secret_file: SecretFileOption = None,
    machines: MachinesOption = None,
    keep_telemetry: TelemetryDaysOption = None,
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
    command = controller_command(port=port, home=home)
    command += [word for name, value in given.items() if value for word in (name, str(value))]
    command += ["--behind-proxy"] if behind_proxy else []
    os.execv(command[0], command)  # noqa: S606


def controller_command(*, port: int | None, home: Path | None) -> list[str]:
    """Return the program and arguments that run a controller."""
    command = [sys.executable, "-m", "service"]
    if port is not None:
        command += ["--port", str(port)]
    if home is not None:
        command += ["--home", str(home.expanduser().absolute())]
    return command


# What follows the name of the agent's command is the agent's, options and help too.
AGENT_CONTEXT = {"allow_interspersed_args": False}

AgentArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="run|sync|selftest ...", help="Each has a --help of its own."),
]


def agent(words: AgentArguments = None) -> None:
    """Run a script under the agent, rehearse here, or deliver later what was measured."""
    command = [sys.executable, "-m", "worker_agent", *(words or ["--help"])]
    os.execv(command[0], command)  # noqa: S606
