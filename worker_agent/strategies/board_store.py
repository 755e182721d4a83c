"""BoardStore: a worker's board as the store over which PyTorch's process groups meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from worker_agent.strategies.board import BoardClient

BYTES = "latin-1"  # a character for each byte


class BoardStore(Store):
    """What a process group needs of a store; it is used while the group connects only.

    Args:
        address: Address of the board.
        patience: Seconds to wait for a key another member has to write.
    """

    def __init__(self, address: str, patience: float) -> None:
        super().__init__()
        self.board = BoardClient(address)
        self.patience = patience

    def close(self) -> None:
        """Hang up."""
        self.board.close()

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self.board.set(key, value if isinstance(value, str) else bytes(value).decode(BYTES))

    def get(self, key: str) -> bytes:
        """Wait for a value and return it; raises RuntimeError when it does not come."""
        self.wait([key], timedelta(seconds=self.patience))
        return (self.board.read(key) or "").encode(BYTES)

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        return self.board.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self.board.wait(keys, 0.0)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; raises RuntimeError when they do not come."""
        patience = self.patience if timeout is None else timeout.total_seconds()
        if not self.board.wait(keys, patience):
            raise RuntimeError(f"another member did not come in {patience:.0f} s: {keys}")
