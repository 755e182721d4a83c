"""Heartbeat: a page of shared memory in which the training process publishes its progress.

A beat is one store into memory: no system call, no disk that could be full, nothing that could
fail while training runs. The supervisor creates the page and names it in the environment.
"""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import sys
from dataclasses import dataclass
from enum import IntEnum

PAGE_MAGIC = 0x5363_6176_4265_6174  # what a page of ours begins with
PAGE_SIZE = mmap.PAGESIZE
DUMP_SIGNAL = 37  # a real-time signal of Linux that nobody uses; elsewhere it does not exist
_STDERR = 2

log = logging.getLogger(__name__)


class TrainingPhase(IntEnum):
    """What a training process is doing, as far as it matters to who watches it."""

    BOOTING = 0
    TRAINING = 1
    WAITING = 2
    OVER = 3


@dataclass(frozen=True, slots=True)
class HeartbeatReading:
    """What the page says at one moment.

    Attributes:
        process: Id of the training process; 0 before it has opened its session.
        phase: What it is doing.
        iteration: The iteration it is at.
        waits: How often it has found that it still waits for other workers.
    """

    process: int = 0
    phase: TrainingPhase = TrainingPhase.BOOTING
    iteration: int = 0
    waits: int = 0

    @property
    def is_session(self) -> bool:
        """Whether a session is open that hears a request to end."""
        return self.process > 0 and self.phase is not TrainingPhase.OVER


class Heartbeat:
    """The training process's side; without a page it does nothing, and it never raises.

    Args:
        path: The page, as the supervisor named it; None outside a machine.
    """

    def __init__(self, path: str | None) -> None:
        self._cells = None if path is None else _open_page(path)
        if self._cells is None:
            return
        self._cells[1] = os.getpid()
        self._cells[2] = TrainingPhase.BOOTING
        _dump_stacks_when_asked()

    def beat(self, iteration: int) -> None:
        """Say that an iteration is done."""
        if self._cells is not None:
            self._cells[3] = iteration

    def wait(self) -> None:
        """Say that this process still waits for other workers."""
        if self._cells is not None:
            self._cells[4] += 1

    def enter(self, phase: TrainingPhase) -> None:
        """Say what this process does from now on."""
        if self._cells is not None:
            self._cells[2] = phase


class HeartbeatPage:
    """The supervisor's side: the page itself, in memory, gone with the supervisor.

    Attributes:
        path: Name under which the training process opens it.
    """

    def __init__(self) -> None:
        descriptor = os.memfd_create("scavenger-heartbeat")
        os.ftruncate(descriptor, PAGE_SIZE)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._cells = _map_cells(descriptor)
        self._cells[0] = PAGE_MAGIC

    def clear(self) -> None:
        """Forget the process before; the next one has not spoken yet."""
        for cell in (1, 2, 3, 4):
            self._cells[cell] = 0

    def pulse(self) -> HeartbeatReading:
        """Return what the training process says now."""
        process, phase, iteration, waits = self._cells[1:5].tolist()
        try:
            return HeartbeatReading(process, TrainingPhase(phase), iteration, waits)
        except ValueError:  # the page is the training process's to write, whatever it writes
            return HeartbeatReading()


def _open_page(path: str) -> memoryview[int] | None:
    """Return the cells of a page, or None if there is none: then nobody watches."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Elsewhere, such as in a container, the name may stand for somebody else's file.
            is_ours = int.from_bytes(os.pread(descriptor, 8, 0), sys.byteorder) == PAGE_MAGIC
            return _map_cells(descriptor) if is_ours else None
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        log.debug("nobody watches the progress of this process: %s", error)
        return None


def _map_cells(descriptor: int) -> memoryview[int]:
    return memoryview(mmap.mmap(descriptor, PAGE_SIZE)).cast("q")


def _dump_stacks_when_asked() -> None:
    try:
        faulthandler.register(DUMP_SIGNAL, file=_STDERR, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError) as error:
        log.debug("no stacks will be shown should this process hang: %s", error)
