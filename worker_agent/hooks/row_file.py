"""RowFile: lines for whoever reads along; of several processes only the first one writes."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path
from typing import TextIO

from worker_agent.hooks.rows import Measured, to_line

log = logging.getLogger(__name__)


class RowFile:
    """Appends rows to a file, as long as that works and no other process does.

    Args:
        path: The file; it is made with the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: TextIO | None = None
        self.is_mine = True

    def write(self, row: Measured) -> None:
        """Append one row."""
        if not self.is_mine:
            return
        try:
            if self.file is None:
                self.file = self.path.open("a", buffering=1)
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.file.write(to_line(row))
        except BlockingIOError:
            self.is_mine = False
        except OSError as error:
            self.is_mine = False
            log.warning("scavenger: rows cannot be written to %s: %s", self.path, error)
