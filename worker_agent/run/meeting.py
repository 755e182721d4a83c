"""Meeting: the port at which the processes of a job find their first rank."""

from __future__ import annotations

import socket


class Meeting:
    """Keeps a port for the first rank of this machine, without listening on it.

    Attributes:
        host: Address at which the other machines reach this one.
        port: The port; PyTorch, which reuses addresses, may listen on it beside us.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.port = int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Let the port go."""
        self._socket.close()
