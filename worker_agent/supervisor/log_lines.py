"""The lines that a machine's commands print, on their way to the controller.

Printing never waits for the network. The copier of the output puts lines into a bounded buffer and
goes on; a thread sends them in bounded batches. What does not fit is dropped, the oldest first, and
the numbers of the lines tell how many that were.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from scavenger.protocol import MAX_LINE_LENGTH, MAX_LINES_OF_BATCH, LogBatch, LogLine
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable

MAX_LINES_HELD = 5000
MAX_BYTES_HELD = 2**20
MAX_RAW_LINE = 2**14  # bytes of a line that are looked at; the rest of it is left out
MAX_BATCH_BYTES = 2**17
MAX_BATCHES_AT_ONCE = 4  # in each period: of more output the newest lines are sent
MIN_REDACTED_LENGTH = 6  # shorter secrets would redact parts of ordinary words
NO_SUCH_ROUTE = (404, 405)  # of a controller of before that keeps no lines

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One line as it was printed.

    Attributes:
        number: Counts the lines of this machine from 1.
        at: Seconds since 1970.
    """

    number: int
    at: float
    content: bytes


class LineBuffer:
    """The newest lines that were printed and have not been sent. Safe to share between threads.

    Args:
        clock: Returns seconds since 1970.
        max_lines: Lines that are held at most.
        max_bytes: Bytes that are held at most.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        max_lines: int = MAX_LINES_HELD,
        max_bytes: int = MAX_BYTES_HELD,
    ) -> None:
        self._clock, self._max_lines, self._max_bytes = clock, max_lines, max_bytes
        self._lock = threading.Lock()
        self._lines: deque[PrintedLine] = deque()
        self._held = 0
        self._printed = 0
        self._begun = b""

    def write(self, chunk: bytes) -> None:
        """Take output as it comes."""
        with self._lock:
            *ended, begun = chunk.split(b"\n")
            if ended:
                ended[0] = self._begun + ended[0]
                now = self._clock()
                for content in ended:
                    self._add(content, now)
                self._begun = b""
            self._begun = (self._begun + begun)[-2 * MAX_RAW_LINE :]

    def end_line(self) -> None:
        """Take what was printed last as a line, as no more of it comes."""
        with self._lock:
            if self._begun:
                self._add(self._begun, self._clock())
                self._begun = b""

    def _add(self, content: bytes, now: float) -> None:
        # A progress bar writes over itself: its last state is what a terminal would show.
        content = content.rstrip(b"\r").rpartition(b"\r")[2][:MAX_RAW_LINE]
        self._printed += 1
        self._lines.append(PrintedLine(self._printed, now, content))
        self._held += len(content)
        while len(self._lines) > self._max_lines or self._held > self._max_bytes:
            self._held -= len(self._lines.popleft().content)

    def oldest(self) -> tuple[tuple[PrintedLine, ...], int]:
        """Return the oldest lines that are held, as many as a batch takes, and how many there were.

        They stay until they are acknowledged.
        """
        with self._lock:
            found, size = list[PrintedLine](), 0
            for line in islice(self._lines, MAX_LINES_OF_BATCH):
                size += len(line.content)
                if found and size > MAX_BATCH_BYTES:
                    break
                found.append(line)
            return tuple(found), self._printed

    def forget_until(self, number: int) -> None:
        """Drop the lines up to a number: the controller has them, or does not want them."""
        with self._lock:
            while self._lines and self._lines[0].number <= number:
                self._held -= len(self._lines.popleft().content)


class LogSender(threading.Thread):
    """Sends the lines of a buffer to the controller, with the secrets of the job taken out.

    A controller that is away gets them later. One that keeps none is asked only once.

    Args:
        controller: Where to.
        worker: Whose lines they are.
        period: Seconds between two rounds.
    """

    def __init__(self, controller: ControllerClient, worker: str, period: float) -> None:
        super().__init__(name="log sender", daemon=True)
        self.lines = LineBuffer()
        self._controller, self._worker, self._period = controller, worker, period
        self._secrets: frozenset[str] = frozenset()
        self._closing = threading.Event()
        self._is_wanted = True

    def add_secrets(self, secrets: Collection[str]) -> None:
        """Take these out of what is sent from now on, also where they span several lines."""
        self._secrets |= {part for each in secrets for part in (each, *each.splitlines())}

    def run(self) -> None:
        """Send until closed, and then what is left."""
        while not self._closing.wait(self._period) and self._is_wanted:
            self.send_some()
        self.send_some(MAX_LINES_HELD)

    def close(self, timeout: float) -> None:
        """Send what is left, for so many seconds at most."""
        self.lines.end_line()
        self._closing.set()
        if self.is_alive():
            self.join(timeout)

    def send_some(self, most: int = MAX_BATCHES_AT_ONCE) -> None:
        """Send up to so many batches; those that do not arrive stay for the next time."""
        for _ in range(most):
            lines, printed = self.lines.oldest()
            if not lines or not self._is_wanted:
                return
            try:
                self._controller.send_log(self._batch(lines, printed))
            except ControllerUnreachable as error:
                log.info("output is sent later: %s", error)
                return
            except ControllerRefused as error:
                log.info("the controller does not take output: %s", error)
                self._is_wanted = error.status not in NO_SUCH_ROUTE
            self.lines.forget_until(lines[-1].number)

    def _batch(self, lines: Collection[PrintedLine], printed: int) -> LogBatch:
        shown = (
            LogLine(each.number, datetime.fromtimestamp(each.at, UTC), self._readable(each.content))
            for each in lines
        )
        return LogBatch(self._worker, printed, tuple(shown))

    def _readable(self, content: bytes) -> str:
        # Decoded as the tail of a command is: Postgres cannot store NUL in text.
        text = content.decode(errors="replace").replace("\0", "")
        return redact_secrets(text, self._secrets)[:MAX_LINE_LENGTH]


def redact_secrets(text: str, secrets: Collection[str]) -> str:
    """Replace secrets, because scripts print their environment and users see the last lines."""
    for secret in sorted(secrets, key=len, reverse=True):  # a secret may contain a shorter one
        if len(secret) >= MIN_REDACTED_LENGTH:
            text = text.replace(secret, "[redacted]")
    return text
