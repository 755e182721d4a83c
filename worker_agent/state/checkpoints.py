"""`Checkpointer`: keeps the newest checkpoints of a job, and writes them on its own thread.

A session asks whether a checkpoint is due, passes a snapshot, and goes on training. A failure is
logged once per cause, and the write is retried the next time. A checkpoint is written into a
sibling directory, which is renamed when all of it is on disk: it is complete or absent.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker_agent.state.checkpoint_file import (
    CheckpointManifest,
    CheckpointOrigin,
    CheckpointUnreadable,
    flush_directory,
    read_checkpoint,
    read_manifest,
    write_files,
)
from worker_agent.state.progress import TrainingSnapshot

log = logging.getLogger(__name__)

REMEDY_OF_ERRNO = {
    errno.EEXIST: "another job has its checkpoints there: give each job a directory of its own",
    errno.ENOSPC: "the disk is full: free some of it",
    errno.EDQUOT: "the disk quota is used up: free some of it",
    errno.EACCES: "this process may not write there: change the directory's owner or mode",
    errno.EPERM: "this process may not write there: change the directory's owner or mode",
    errno.EROFS: "the file system is read-only: choose another",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
}


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """One snapshot that is to be written."""

    snapshot: TrainingSnapshot
    origin: CheckpointOrigin


class Checkpointer:
    """Keeps the newest checkpoints of one job in a directory.

    Args:
        directory: Where they are; made when the first is written.
        job: Id of the job; checkpoints of others are left alone.
        every: Seconds from one to the next.
        keep: How many are kept.
    """

    def __init__(self, directory: Path, job: str, *, every: float, keep: int = 3) -> None:
        self.directory, self.job, self.every, self.keep = directory, job, every, keep
        self.taken_at = time.monotonic()
        self.waiting: PendingWrite | None = None
        self.is_writing = False
        self.is_closed = False
        self.said: set[object] = set()
        self.news = threading.Condition()
        self.thread: threading.Thread | None = None

    def is_due(self) -> bool:
        """Whether it is time for a snapshot, and the one before is on the disk."""
        is_time = time.monotonic() - self.taken_at >= self.every
        return is_time and not self.is_writing and self.waiting is None

    def write(self, snapshot: TrainingSnapshot, generation: int) -> None:
        """Have a snapshot written soon; it takes the place of one that still waits."""
        self.taken_at = time.monotonic()
        order = PendingWrite(snapshot, CheckpointOrigin(self.job, generation, time.time()))
        with self.news:
            replaced, self.waiting = self.waiting, order
            self._start()
            self.news.notify_all()
        if replaced is not None:
            replaced.snapshot.release()

    def newest(self) -> TrainingSnapshot | None:
        """Return the newest intact checkpoint; None when there is none to go on from."""
        try:
            found = newest_checkpoint(self.directory, self.job)
        except OSError as error:
            log.warning("checkpoints in %s cannot be read: %s", self.directory, error)
            return None
        return None if found is None else found[0]

    def close(self, timeout: float) -> bool:
        """Give what is being written this many seconds to end; whether it did."""
        deadline = time.monotonic() + timeout
        with self.news:
            self.is_closed = True
            self.news.notify_all()
        if self.thread is not None:
            self.thread.join(max(deadline - time.monotonic(), 0.0))
        return self.thread is None or not self.thread.is_alive()

    def _start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self.thread.start()

    def _work(self) -> None:
        while (order := self._next()) is not None:
            try:
                self._write(order)
            finally:
                order.snapshot.release()
                self.is_writing = False

    def _next(self) -> PendingWrite | None:
        """Wait for the next order; None when there will be no more."""
        with self.news:
            self.news.wait_for(lambda: self.waiting is not None or self.is_closed)
            order, self.waiting = self.waiting, None
            self.is_writing = order is not None
            return order

    def _write(self, order: PendingWrite) -> None:
        try:
            order.snapshot.wait()
            write_checkpoint(self.directory, order.snapshot, order.origin, keep=self.keep)
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            self._say(error)
        else:
            self.said.clear()

    def _say(self, error: Exception) -> None:
        """Log a failure, once until a checkpoint succeeds."""
        cause = error.errno if isinstance(error, OSError) else str(error)
        if cause in self.said:
            return
        self.said.add(cause)
        advice = REMEDY_OF_ERRNO.get(cause, str(error)) if isinstance(cause, int) else str(error)
        log.warning(
            "no checkpoint was written to %s: %s, or set SCAVENGER_CHECKPOINTS to another place."
            " Training goes on; it is tried again in %.0f s.",
            self.directory,
            advice,
            self.every,
        )


COMPLETE_NAME = re.compile(r"\d{12}")
PARTIAL_NAME = re.compile(r"\.\d{12}\.[0-9a-f]{12}\.unfinished")


def write_checkpoint(
    directory: Path, snapshot: TrainingSnapshot, origin: CheckpointOrigin, *, keep: int
) -> Path:
    """Write a checkpoint, then delete all but the newest ``keep``.

    Returns:
        Where it is. An intact one of the same iteration is left as it is.

    Raises:
        OSError: The disk is full, it may not be written to, or another job's checkpoint is in the
            way; nothing half-written stays.
    """
    target = directory / f"{snapshot.clock.iteration:012}"
    directory.mkdir(parents=True, exist_ok=True)
    delete_partial(directory)
    if not is_intact(target, origin.job):
        fresh = partial_path(target)
        try:
            fresh.mkdir()
            write_files(fresh, snapshot, origin)
            delete_checkpoint(target)
            fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        flush_directory(directory)
    prune_checkpoints(directory, target, origin.job, keep)
    return target


def newest_checkpoint(
    directory: Path, job: str
) -> tuple[TrainingSnapshot, CheckpointOrigin] | None:
    """Return the newest intact checkpoint of a job; each one passed over is logged."""
    places = ranked_checkpoints(directory)
    silent = [place for place, manifest in places if manifest is None]
    for place in (*silent, *(place for place, manifest in places if manifest is not None)):
        try:
            return read_checkpoint(place, job)
        except (CheckpointUnreadable, OSError) as error:
            log.warning("checkpoint %s is passed over: %s", place, error)
    return None


def is_intact(place: Path, job: str) -> bool:
    """Whether a checkpoint is there and hashes to what it says.

    Raises:
        FileExistsError: It is another job's.
    """
    manifest = try_read_manifest(place)
    if manifest is None:
        return False
    if manifest.origin.job != job:
        raise FileExistsError(errno.EEXIST, f"job {manifest.origin.job} has its checkpoints there")
    try:
        read_checkpoint(place, job)
    except (CheckpointUnreadable, OSError):
        return False
    return True


def ranked_checkpoints(directory: Path) -> list[tuple[Path, CheckpointManifest | None]]:
    """Return the checkpoints, newest first; those that do not say what they are come last."""
    found = [
        (place, try_read_manifest(place))
        for place in matching_directories(directory, COMPLETE_NAME)
    ]
    return sorted(found, key=lambda pair: age_key(*pair), reverse=True)


def age_key(place: Path, manifest: CheckpointManifest | None) -> tuple[int, str]:
    """Order by generation, then by iteration: a group that was given up is older than its heir."""
    return (-1 if manifest is None else manifest.origin.generation, place.name)


def try_read_manifest(place: Path) -> CheckpointManifest | None:
    """Return what a checkpoint says of itself, if it says so in a sound way."""
    try:
        return read_manifest(place)
    except (CheckpointUnreadable, OSError):
        return None


def prune_checkpoints(directory: Path, written: Path, job: str, keep: int) -> None:
    """Delete all but a job's newest checkpoints; never the one that was just written."""
    others = [
        place
        for place, manifest in ranked_checkpoints(directory)
        if place != written and (manifest is None or manifest.origin.job == job)
    ]
    for place in others[max(keep - 1, 0) :]:
        delete_checkpoint(place)


def delete_checkpoint(place: Path) -> None:
    """Delete a checkpoint, which from the first moment on is none any more."""
    if not os.path.lexists(place):
        return
    doomed = partial_path(place)
    place.rename(doomed)
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def delete_partial(directory: Path) -> None:
    """Delete what killed writers left behind."""
    for place in matching_directories(directory, PARTIAL_NAME):
        shutil.rmtree(place, ignore_errors=True)


def matching_directories(directory: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the real directories whose names fit; links are nobody's checkpoints."""
    if not directory.is_dir():
        return
    for entry in list(os.scandir(directory)):
        if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def partial_path(target: Path) -> Path:
    """Return a sibling's name that nobody reads as a checkpoint."""
    return target.with_name(f".{target.name}.{os.urandom(6).hex()}.unfinished")
