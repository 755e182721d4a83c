"""Address and token of the controller.

The only module of the client and the command line that reads the environment. Explicit arguments
come first, then ``SCAVENGER_URL`` and ``SCAVENGER_TOKEN``, then the file ``connection.json`` that a
running controller keeps in its data directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scavenger.client.errors import NoToken, Unreachable

CONNECTION_FILE = "connection.json"


@dataclass(frozen=True, slots=True)
class ConnectionProfile:
    """Where the controller is and how to prove who asks.

    Attributes:
        url: Base address, such as ``http://127.0.0.1:8321``.
        token: Bearer token; not part of the representation.
    """

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise NoToken("the token holds characters no token has")


class _Connection(BaseModel):
    """What the file says."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    url: str
    token: str


def find_profile(
    url: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None
) -> ConnectionProfile:
    """Return the profile to use.

    The token of the file is used for the address of the file only: it is not sent anywhere else.

    Args:
        url: Address named explicitly.
        token: Token named explicitly.
        environment: Environment variables; those of this process if None.

    Raises:
        Unreachable: No controller is known: start one.
        NoToken: A controller is known, but no token for it.
    """
    variables = os.environ if environment is None else environment
    path = connection_file(variables)
    named = url or variables.get("SCAVENGER_URL")
    secret = token or variables.get("SCAVENGER_TOKEN")
    if named and secret:
        return ConnectionProfile(named.rstrip("/"), secret.strip())
    connection = read_connection(path)
    if named and (connection is None or connection.url != named.rstrip("/")):
        raise NoToken(f"no token is known for {named}, and {path} holds none for it")
    if connection is None:
        raise Unreachable("", f"no controller has left its address in {path}")
    return ConnectionProfile(connection.url, secret.strip()) if secret else connection


def connection_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return the file in which a controller of this user leaves its address and a token."""
    return data_directory(environment) / CONNECTION_FILE


def data_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return the directory a controller of this user keeps its data in.

    Root's home is closed to the user the database of root runs as, so root has another place.
    """
    variables = os.environ if environment is None else environment
    home = variables.get("SCAVENGER_HOME")
    if home:
        return Path(home).expanduser()
    return Path("/var/lib/scavenger") if os.geteuid() == 0 else Path.home() / ".scavenger"


def read_connection(path: Path) -> ConnectionProfile | None:
    """Read what a controller left about itself; None while there is nothing usable."""
    try:
        connection = _Connection.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return ConnectionProfile(connection.url.rstrip("/"), connection.token.strip())
