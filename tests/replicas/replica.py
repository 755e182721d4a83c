"""Replica: one controller of several, killed, frozen and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Replica:
    """One controller, which is started again after it was killed.

    Attributes:
        back_at: When it is to be started; None while it runs.
        thaws_at: When it is to go on; None while it does.
    """

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    back_at: float | None = 0.0
    thaws_at: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it ended without being killed."""
        process = self.process
        return process is not None and self.back_at is None and process.poll() is not None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        self.back_at = None

    def freeze(self, seconds: float) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.thaws_at = time.monotonic() + seconds

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.thaws_at = None

    def kill(self) -> None:
        self.thaws_at = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def complaints(self) -> Iterator[str]:
        """Yield the last line of each traceback it wrote."""
        is_within = False
        for line in self.log.read_text().splitlines():
            if line.startswith("Traceback"):
                is_within = True
            elif is_within and line and not line.startswith((" ", "\t")):
                is_within = False
                yield line[:160]
