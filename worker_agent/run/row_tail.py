"""RowTail: reads the lines another process appends to a file, as they come."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO

from worker_agent.hooks.rows import Measured, from_line

log = logging.getLogger(__name__)


class RowTail:
    """Reads rows that are complete; one that is no row is skipped and logged.

    Args:
        path: The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.rest = b""

    def read(self) -> list[Measured]:
        """Return the rows since the last call."""
        if self.file is None:
            if not self.path.exists():
                return []
            self.file = self.path.open("rb")
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [row for line in lines if (row := understood(line)) is not None]

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def understood(line: bytes) -> Measured | None:
    """Return the row of a line, None if it is none."""
    try:
        return from_line(line.decode())
    except (ValueError, TypeError) as error:
        log.warning("a line that is no measured iteration: %s", error)
        return None
