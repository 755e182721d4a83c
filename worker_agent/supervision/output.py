"""Output: what the command says goes to the machine's log, of which beginning and end are kept."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from contextlib import suppress
from typing import IO

TAIL_LINES = 50
TAIL_BYTES = 16 * 1024
BEGINNING = 16 * 2**20
END = 16 * 2**20
REMEMBERED = 2**20  # of the end, when a log is cut
AT_ONCE = 2**16
PATIENCE = 1.0


class Log:
    """A log file that does not outgrow a bound; anything but a file, such as a pipe, has none.

    What lies between the beginning and the newest output is cut out when the file is full, and a
    line there says how much that was.

    Args:
        descriptor: Where to write.
        beginning: Bytes that are always kept.
        end: Bytes after them that are collected before they are cut.
    """

    def __init__(self, descriptor: int, beginning: int = BEGINNING, end: int = END) -> None:
        self._descriptor = descriptor
        self._beginning, self._full = beginning, beginning + end
        self._recent = bytearray()
        self._cut = 0
        self._turn = threading.Lock()
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if self._is_file:
            # Without it, the first line after a cut would be written far beyond the end.
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

    def write(self, chunk: bytes) -> None:
        """Append; a full disk must not stop the command, which would wait with a full pipe."""
        with self._turn, suppress(OSError):
            self._remember(chunk)
            self._write(chunk)
            if self._is_file:
                self._bound()

    def _remember(self, chunk: bytes) -> None:
        self._recent += chunk
        if len(self._recent) > 2 * REMEMBERED:  # seldom, because it moves all that is left
            del self._recent[:-REMEMBERED]

    def _write(self, chunk: bytes) -> None:
        while chunk:
            chunk = chunk[os.write(self._descriptor, chunk) :]

    def _bound(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size <= self._full:
            return
        kept = bytes(self._recent[-min(REMEMBERED, (self._full - self._beginning) // 2) :])
        self._cut += size - self._beginning - len(kept)
        os.ftruncate(self._descriptor, self._beginning)
        self._write(f"\nsupervisor: {self._cut} bytes of output were cut out here\n".encode())
        self._write(kept)


class Output:
    """Copies what the command says to the log and keeps its last lines, however much it is."""

    def __init__(self, source: IO[bytes], log: Log) -> None:
        self._source, self._log = source, log
        self._end = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def wait(self, patience: float) -> None:
        """Wait until all that an ended command said is in the log."""
        # A background process of the command may keep the pipe open; do not wait for that.
        self._thread.join(timeout=patience)

    def tail(self) -> str:
        """Return the last lines; call it when the command has ended."""
        self.wait(PATIENCE)
        # Postgres stores no NUL in text.
        text = self._end.decode(errors="replace").replace("\0", "")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def _copy(self) -> None:
        while chunk := self._source.read(AT_ONCE):
            self._log.write(chunk)
            self._end = (self._end + chunk)[-TAIL_BYTES:]
