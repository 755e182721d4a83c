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

PAGE_MAGIC = 0x5363_6176_4265_6174  # first cell of a page
PAGE_SIZE = mmap.PAGESIZE
DUMP_SIGNAL = 37  # a real-time signal of Linux without another use; elsewhere it does not exist
_STDERR = 2

log = logging.getLogger(__name__)


class TrainingPhase(IntEnum):
    """What a training process is doing, as far as the watchdog needs to know."""

    BOOTING = 0
    TRAINING = 1
    WAITING = 2
    OVER = 3


@dataclass(frozen=True, slots=True)
class HeartbeatReading:
    """Content of the page at one moment.

    Attributes:
        process: Id of the training process; 0 before it has opened its session.
        phase: What it is doing.
        iteration: Iterations so far.
        waits: Number of times it has found that it still waits for other workers.
    """

    process: int = 0
    phase: TrainingPhase = TrainingPhase.BOOTING
    iteration: int = 0
    waits: int = 0

    @property
    def has_open_session(self) -> bool:
        """Whether a session is open, which handles SIGTERM."""
        return self.process > 0 and self.phase is not TrainingPhase.OVER


class Heartbeat:
    """The training process's side; without a page it does nothing, and it never raises.

    Args:
        path: Path of the page, from the supervisor; None outside a machine.
    """

    def __init__(self, path: str | None) -> None:
        self._cells = None if path is None else _open_page(path)
        if self._cells is None:
            return
        self._cells[1] = os.getpid()
        self._cells[2] = TrainingPhase.BOOTING
        _handle_dump_signal()

    def beat(self, iteration: int) -> None:
        """Publish that an iteration is done."""
        if self._cells is not None:
            self._cells[3] = iteration

    def count_wait(self) -> None:
        """Publish that this process still waits for other workers."""
        if self._cells is not None:
            self._cells[4] += 1

    def publish_phase(self, phase: TrainingPhase) -> None:
        """Publish what this process does from now on."""
        if self._cells is not None:
            self._cells[2] = phase


class HeartbeatPage:
    """The supervisor's side: the page itself, which disappears with the supervisor.

    Attributes:
        path: Path at which the training process opens it.
    """

    def __init__(self) -> None:
        # A memfd has no file that could be left behind, and no disk that could be full.
        descriptor = os.memfd_create("scavenger-heartbeat")
        os.ftruncate(descriptor, PAGE_SIZE)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._cells = _map_cells(descriptor)
        self._cells[0] = PAGE_MAGIC

    def clear(self) -> None:
        """Reset the page for the next process."""
        # Cell 0 is the magic number, which marks the page as valid for the next process too.
        for cell in (1, 2, 3, 4):
            self._cells[cell] = 0

    def read(self) -> HeartbeatReading:
        """Return what the training process has published."""
        process, phase, iteration, waits = self._cells[1:5].tolist()
        try:
            return HeartbeatReading(process, TrainingPhase(phase), iteration, waits)
        except ValueError:  # the training process can write any number into the page
            return HeartbeatReading()


def _open_page(path: str) -> memoryview[int] | None:
    """Return the cells of a page; None if there is no page, so no supervisor watches."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # In a container, for example, the path may lead to an unrelated file.
            is_ours = int.from_bytes(os.pread(descriptor, 8, 0), sys.byteorder) == PAGE_MAGIC
            return _map_cells(descriptor) if is_ours else None
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        log.debug("no supervisor watches this process: %s", error)
        return None


def _map_cells(descriptor: int) -> memoryview[int]:
    return memoryview(mmap.mmap(descriptor, PAGE_SIZE)).cast("q")


def _handle_dump_signal() -> None:
    try:
        # Dumping stacks needs no Python code, so it also works while the GIL is held for ever.
        faulthandler.register(DUMP_SIGNAL, file=_STDERR, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError) as error:
        log.debug("this process could not dump its stacks if it hung: %s", error)
