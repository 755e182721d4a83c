"""Meeting: where the processes of a generation find their first rank.

Every generation has a port of its own: on the one before, the first rank may still listen for those
of the generation before. The first rank's machine chooses it when it starts the script, and writes
it on its board; the others wait for that.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress

from worker_agent.strategies.board import Board, BoardClient

LOOK_EVERY = 0.2
LONGEST_SILENCE = 30.0  # seconds without an answer after which the first rank counts as lost


class Meeting:
    """The board of this machine, and the port it keeps for its first rank.

    Attributes:
        host: Address at which the other machines reach this one.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._board = Board(host)
        self._kept: socket.socket | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the board."""
        return self._board.address

    def choose(self, generation: int) -> int:
        """As first rank, choose the generation's port and write it on the board.

        It is kept without listening on it; PyTorch, which reuses addresses, may listen beside us.
        The port of the generation before is let go afterwards, or the kernel might give it again.
        """
        kept = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", 0))
        self._let_go()
        self._kept = kept
        port = int(kept.getsockname()[1])
        self._board.set(key_of(generation), str(port))
        return port

    def close(self) -> None:
        """Let the port go, and answer nobody any more."""
        self._let_go()
        self._board.close()

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.close()


def find(first: str, generation: int, is_over: Callable[[], bool]) -> int | None:
    """Wait for the port that a generation's first machine chooses; None if waiting is pointless.

    Args:
        first: Address of its board.
        generation: The one that is being formed.
        is_over: Asked while waiting.

    Raises:
        ConnectionError: The machine has not answered for long.
    """
    heard_at = time.monotonic()
    while not is_over():
        with suppress(OSError):
            with closing(BoardClient(first)) as board:
                is_there = board.wait([key_of(generation)], LOOK_EVERY)
                if is_there and (port := board.read(key_of(generation))) is not None:
                    return int(port)
            heard_at = time.monotonic()
            continue
        if time.monotonic() - heard_at > LONGEST_SILENCE:
            raise ConnectionError(f"the first rank's machine, {first}, does not answer")
        time.sleep(LOOK_EVERY)
    return None


def key_of(generation: int) -> str:
    """Name what is written on the board."""
    return f"port/{generation}"
