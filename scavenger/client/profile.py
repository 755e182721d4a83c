"""Address and token of the controller.

The only module of the client and the command line that reads the environment. Explicit arguments
come first, then ``SCAVENGER_URL`` and ``SCAVENGER_TOKEN``, then the file ``connection.json`` that a
running controller keeps in its data directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from scavenger.client.errors import NoToken, Unreachable

CONNECTION_FILE = "connection.json"
EXAMPLE_ADDRESS = "http://127.0.0.1:8321"


@dataclass(frozen=True, slots=True)
class ConnectionProfile:
    """Address of a controller and token for it.

    Attributes:
        url: Base address, such as ``http://127.0.0.1:8321``.
        token: Bearer token; not part of the representation.
    """

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "token", self.token.strip())
        # A line break in a header would be an error of httpx, without a hint where it comes from.
        if not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise NoToken("the token has characters that no token has")


_PROFILE: TypeAdapter[ConnectionProfile] = TypeAdapter(ConnectionProfile)


def find_profile(
    url: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None
) -> ConnectionProfile:
    """Return the profile to use.

    The token of the file is used for the address in the file only and never sent elsewhere.

    Args:
        url: Address given explicitly.
        token: Token given explicitly.
        environment: Environment variables; those of this process if None.

    Raises:
        Unreachable: No controller is known, or what is named is no address.
        NoToken: A controller is known, but no token for it.
    """
    variables = os.environ if environment is None else environment
    path = data_directory(variables) / CONNECTION_FILE
    named = url or variables.get("SCAVENGER_URL")
    secret = token or variables.get("SCAVENGER_TOKEN")
    if named and not is_address(named):
        raise Unreachable(named, f"this is no address: write e.g. {EXAMPLE_ADDRESS}")
    if named and secret:
        return ConnectionProfile(named, secret)
    connection = read_connection(path)
    if named and (connection is None or connection.url != named.rstrip("/")):
        raise NoToken(f"no token is known for {named}, and {path} holds none for it")
    if connection is None:
        raise Unreachable("", f"no controller has written its address to {path}")
    return ConnectionProfile(connection.url, secret) if secret else connection


def data_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return the data directory of a controller of this user.

    Postgres refuses to run as root, and the user it runs as cannot enter root's home directory:
    root has a data directory elsewhere.
    """
    variables = os.environ if environment is None else environment
    home = variables.get("SCAVENGER_HOME")
    if home:
        return Path(home).expanduser()
    return Path("/var/lib/scavenger") if os.geteuid() == 0 else Path.home() / ".scavenger"


def read_connection(path: Path) -> ConnectionProfile | None:
    """Read the file of a controller; None while it is missing or unusable."""
    try:
        return _PROFILE.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def is_address(text: str) -> bool:
    """Tell whether a text is the address of a controller, as far as that shows.

    >>> [is_address(text) for text in ("http://10.0.0.1:8321", "10.0.0.1:8321", "ftp://x", "")]
    [True, False, False, False]
    """
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Tell whether a host is this computer itself.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
