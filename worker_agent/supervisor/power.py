"""Ending a machine: its process group, its computer, and the timer that does so in any case.

A rented computer is billed until it is off. Its boot script starts a timer first of all, which
powers the computer off when the deadline in a file has passed or the file is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scavenger.worker_env import POWER_OFF_DELAY

TICKS = 100  # of the file and of /proc/uptime, in a second
POWER_OFF_TIMEOUT = 10.0
POWER_OFF_COMMANDS = (("systemctl", "poweroff"), ("poweroff", "-f"), ("shutdown", "-h", "now"))


@dataclass(frozen=True, slots=True)
class PowerOffTimer:
    """The file that the timer of the boot script reads every second.

    It holds hundredths of seconds since the computer booted: no change of the calendar moves it.
    """

    path: Path

    def lease_left(self) -> float:
        """Return the seconds until the lease ends for which the file was written last.

        Raises:
            OSError: The file is gone, so the computer goes off within a second.
        """
        return int(self.path.read_text()) / TICKS - POWER_OFF_DELAY - uptime()

    def write(self, lease_left: float) -> None:
        """Let the timer power the computer off soon after a lease that ends in so many seconds."""
        deadline = int((uptime() + lease_left + POWER_OFF_DELAY) * TICKS)
        # Half a number would be a deadline of long ago.
        fresh = self.path.with_suffix(".new")
        fresh.write_text(f"{deadline}\n")
        fresh.replace(self.path)


def uptime() -> float:
    """Return the seconds since the computer booted, on the clock that the timer reads."""
    return float(Path("/proc/uptime").read_text().split()[0])


def power_off() -> None:
    """End every process of the machine, this one included."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def power_off_computer() -> None:
    """Power off the computer in the first way that works; the boot script goes on trying."""
    for command in POWER_OFF_COMMANDS:
        with suppress(OSError, subprocess.SubprocessError):
            if subprocess.run(command, timeout=POWER_OFF_TIMEOUT).returncode == 0:
                return
