"""Brings the user's code to a machine: fetches it, and unpacks it into a fresh directory."""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import IO

from scavenger.code_archive import (
    MAX_ENTRIES,
    MAX_UNPACKED_BYTES,
    MEBIBYTE,
    path_behind_link,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import CodeUnusable, ControllerRefused, ControllerUnreachable

FETCH_RETRY = 0.5  # between two attempts to fetch the code
GZIP_WINDOW = 16 + zlib.MAX_WBITS
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


log = logging.getLogger(__name__)


class CodeDelivery(threading.Thread):
    """Fetches and unpacks code, beside the thread that watches the lease of the machine.

    Args:
        controller: Where the code is.
        digest: SHA-256 of the code.
        directory: Where it is unpacked.

    Attributes:
        failure: Why it cannot be delivered, in one sentence; None once it is there.
    """

    def __init__(self, controller: ControllerClient, digest: str, directory: Path) -> None:
        super().__init__(daemon=True)  # it waits for the controller as long as the machine lives
        self._controller, self._digest, self._directory = controller, digest, directory
        self.failure: str | None = "the delivery of the code was cut off"

    def run(self) -> None:
        """Deliver the code; begin anew whenever the controller goes away."""
        while True:
            try:
                deliver_code(self._controller, self._digest, self._directory)
                self.failure = None
            except ControllerUnreachable as error:
                log.warning("the code did not arrive and is fetched again: %s", error)
                time.sleep(FETCH_RETRY)
                continue
            except ControllerRefused as error:
                self.failure = f"the controller refused the code of this job: {error}"
            except CodeUnusable as error:
                self.failure = str(error)
            return


def code_directory(settings: WorkerEnv) -> Path:
    """Return where this machine unpacks the code of its job."""
    if settings.code is not None:
        return Path(settings.code)
    return Path(tempfile.mkdtemp(prefix="scavenger-")) / "code"


def deliver_code(controller: ControllerClient, digest: str, directory: Path) -> None:
    """Fetch code and unpack it.

    Raises:
        ControllerUnreachable: It did not arrive; try again.
        ControllerRefused: The controller has none for this machine.
        CodeUnusable: What arrived is other code, or cannot be unpacked.
    """
    try:
        with tempfile.TemporaryFile(dir=directory.parent) as file:
            arrived = controller.fetch_code(file)
            if arrived != digest:
                why = f"arrived with the SHA-256 {arrived} instead of {digest}"
                raise discard(directory, f"{why}: submit the job again with --code")
            file.seek(0)
            unpack_code(file, directory)
    except OSError as error:
        reason = error.strerror or str(error)
        raise discard(directory, f"cannot be stored in {directory.parent}: {reason}") from error


def unpack_code(file: IO[bytes], directory: Path) -> None:
    """Unpack an archive into a directory that is made anew and that no other user may enter.

    Raises:
        CodeUnusable: It is no archive of code, holds more than one may, or has an entry that leads
            out of the directory; or the disk does not take it. Nothing of it is left.
    """
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        with tarfile.open(fileobj=InflatedFile(file), mode="r|") as archive:  # type: ignore[call-overload]
            extract_entries(archive, directory)
    except OSError as error:
        reason = error.strerror or str(error)
        raise discard(directory, f"cannot be unpacked into {directory}: {reason}") from error
    except (tarfile.TarError, zlib.error, UnicodeError, ValueError) as error:
        raise discard(directory, f"is no archive that can be unpacked: {error}") from error


def discard(directory: Path, why: str) -> CodeUnusable:
    """Remove what was unpacked, and return the error that says why."""
    shutil.rmtree(directory, ignore_errors=True)
    return CodeUnusable(f"the code of this job {why}")


class InflatedFile:
    """Reads a gzipped file, and no more of it than an archive of code may unpack to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._inflater = file, zlib.decompressobj(GZIP_WINDOW)
        self._size = 0

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; none at the end.

        Raises:
            ValueError: The archive is larger than allowed, or ends too early.
        """
        while not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._file.read(MEBIBYTE)
            content = self._inflater.decompress(packed, size)
            self._size += len(content)
            if self._size > MAX_UNPACKED_BYTES:
                limit = f"{MAX_UNPACKED_BYTES // MEBIBYTE} MiB"
                raise ValueError(f"it unpacks to more than {limit}")
            if content:
                return content
            if not packed:
                raise ValueError("it ends too early")
        return b""


def extract_entries(archive: tarfile.TarFile, directory: Path) -> None:
    """Write the files of an archive, and then its links, so that no file is written through one.

    Raises:
        ValueError: An entry is neither file nor link, or leads out of the directory.
    """
    links: dict[tuple[str, ...], str] = {}
    for number, entry in enumerate(archive, 1):
        if number > MAX_ENTRIES:
            raise ValueError(f"it holds more than {MAX_ENTRIES} files")
        # Refuses absolute paths, those with .. in them, devices, and links that lead out.
        tarfile.data_filter(entry, str(directory))
        path = tuple(entry.name.split("/"))
        if not set(path).isdisjoint(("", ".", "..")):
            raise ValueError(f"{entry.name!r} is no plain path")
        if entry.issym():
            links[path] = entry.linkname
        elif entry.isreg() and not entry.issparse():  # a few bytes tell of a file of terabytes
            write_file(archive, entry, directory)
        else:
            raise ValueError(f"{entry.name!r} is neither a file nor a symbolic link")
    for path, target in links.items():
        if any(path[:depth] in links for depth in range(1, len(path))):
            raise ValueError(f"{'/'.join(path)!r} lies behind a link")
        if path_behind_link(path[:-1], target, links) is None:
            raise ValueError(f"the link {'/'.join(path)!r} leads out of the directory")
        link = directory.joinpath(*path)
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(target)


def write_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: Path) -> None:
    """Write one file; only whether it can be executed is taken over from its mode."""
    place = directory / entry.name
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = archive.extractfile(entry)
    if source is None:
        raise AssertionError(f"{entry.name} is a file")
    mode = 0o700 if entry.mode & 0o100 else 0o600
    with open(os.open(place, NEW_FILE, mode), "wb") as file:
        shutil.copyfileobj(source, file, MEBIBYTE)
