"""Header of a spool: whose stream it holds, and where it belongs. It never holds a secret."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scavenger.protocol import Role
from worker_agent.errors import SpoolUnusable

HEADER_FILE = "header.json"


@dataclass(frozen=True, slots=True)
class Header:
    """Whose stream a spool holds, and where it belongs.

    Attributes:
        job: Id of the job.
        worker: Id of the worker.
        controller: URL of the controller.
        address: Where the other workers reached this one, as its Hello says.
        role: What the machine is there for, as its Hello says.
    """

    job: str
    worker: str
    controller: str
    address: str
    role: Role = "worker"


HEADER = TypeAdapter(Header)


def find_spools(place: Path) -> list[Path]:
    """Return every spool in a directory, itself and its subdirectories included."""
    return sorted(header.parent for header in place.rglob(HEADER_FILE))


def lock(directory: Path) -> int:
    """Hold the directory as long as this process lives; the processes it forks do not."""
    if not directory.is_dir():
        raise SpoolUnusable(f"{directory} is no directory")
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise SpoolUnusable(f"another process uses {directory}") from None
    return handle


def agree(directory: Path, header: Header | None) -> Header:
    """Return whose spool it is; a new one is given its header."""
    if header is None:
        return read_header(directory)
    path = directory / HEADER_FILE
    if path.exists():
        found = read_header(directory)
        if (found.job, found.worker) != (header.job, header.worker):
            raise SpoolUnusable(f"{directory} belongs to {found.worker} of {found.job}")
    fresh = path.with_suffix(".draft")
    fresh.write_bytes(HEADER.dump_json(header))
    fresh.rename(path)
    return header


def read_header(directory: Path) -> Header:
    """Return whose spool it is.

    Raises:
        SpoolUnusable: There is no header, or none that can be read.
        OSError: The disk refuses.
    """
    path = directory / HEADER_FILE
    try:
        return HEADER.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SpoolUnusable(f"{directory} holds no {HEADER_FILE}") from None
    except ValidationError:
        raise SpoolUnusable(f"{path} cannot be read: it is no header of a spool") from None
