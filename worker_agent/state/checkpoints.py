"""`Checkpointer`: keeps the newest checkpoints of a job, and writes them on its own thread.

A session asks whether a checkpoint is due, passes a snapshot, and goes on training. A failure is
logged once per cause, and the write is retried the next time. A checkpoint is written into a
sibling directory, which is renamed when all of it is on disk: it is complete or absent.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from scavenger.worker_env import WorkerEnv
from worker_agent.errors import StateRefused
from worker_agent.settings import InstrumentationSettings
from worker_agent.state.bucket import CheckpointBucket
from worker_agent.state.checkpoint_directory import (
    COMPLETE_NAME,
    checkpoint_path,
    delete_checkpoint,
    delete_left_behind,
    flush_directory,
    matching_directories,
    partial_path,
    publish_checkpoint,
)
from worker_agent.state.checkpoint_file import (
    CheckpointManifest,
    CheckpointOrigin,
    CheckpointUnreadable,
    read_checkpoint,
    read_manifest,
    write_files,
)
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot

log = logging.getLogger(__name__)

_REMEDY_OF_ERRNO = {
    errno.EEXIST: "another job has its checkpoints there: give each job a directory of its own",
    errno.ENOSPC: "the disk is full: free some of it",
    errno.EDQUOT: "the disk quota is used up: free some of it",
    errno.EACCES: "this process may not write there: change the directory's owner or mode",
    errno.EPERM: "this process may not write there: change the directory's owner or mode",
    errno.EROFS: "the file system is read-only: choose another",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
}


class Checkpointer:
    """Keeps the newest checkpoints of one job in a directory.

    Args:
        directory: Where they are; made when the first is written.
        job: Id of the job; checkpoints of others are left alone.
        every: Seconds from one to the next.
        keep: How many are kept.
        bucket: Where newer ones may be, of machines that are gone; None for nowhere.
    """

    def __init__(
        self,
        directory: Path,
        job: str,
        *,
        every: float,
        keep: int = 3,
        bucket: CheckpointBucket | None = None,
    ) -> None:
        self.directory, self.job, self.every, self.keep = directory, job, every, keep
        self.bucket = bucket
        self.taken_at = time.monotonic()
        self.waiting: tuple[TrainingSnapshot, CheckpointOrigin] | None = None
        self.is_writing = False
        self.written: int | None = None
        self.is_closed = False
        self.logged: set[object] = set()
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    @classmethod
    def from_settings(
        cls,
        directory: Path,
        settings: WorkerEnv | InstrumentationSettings,
        bucket: CheckpointBucket | None = None,
    ) -> Checkpointer:
        """Keep a job's checkpoints as the settings of a machine or of a script's process say."""
        every, keep = settings.checkpoint_every, settings.checkpoint_keep
        return cls(directory, settings.job, every=every, keep=keep, bucket=bucket)

    def is_due(self) -> bool:
        """Whether it is time for a snapshot, and the one before is on the disk."""
        is_time = time.monotonic() - self.taken_at >= self.every
        return is_time and not self.is_writing and self.waiting is None

    def submit(self, snapshot: TrainingSnapshot, generation: int) -> None:
        """Write a snapshot soon, instead of one that still waits."""
        self.taken_at = time.monotonic()
        origin = CheckpointOrigin(self.job, generation, time.time())
        with self.changed:
            replaced, self.waiting = self.waiting, (snapshot, origin)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
                self.thread.start()
            self.changed.notify_all()
        if replaced is not None:
            replaced[0].release()

    def save(self, snapshot: TrainingSnapshot, generation: int, timeout: float) -> bool:
        """Write a snapshot, and wait for it; whether it is on the disk."""
        self.submit(snapshot, generation)
        with self.changed:
            self.changed.wait_for(lambda: self.waiting is None and not self.is_writing, timeout)
            return self.written == snapshot.progress.iteration

    def newest(self) -> TrainingSnapshot | None:
        """Return the newest intact checkpoint; None when there is none to go on from."""
        found = self._newest_on_disk()
        if self.bucket is not None:
            age = None if found is None else (found[1].generation, found[0].progress.iteration)
            newer = self.bucket.find_newer(age)
            if newer is not None:
                found = None  # two states need not fit into memory
                self.bucket.fetch_newest(newer, self.directory, age)
                found = self._newest_on_disk()
        return None if found is None else found[0]

    def _newest_on_disk(self) -> tuple[TrainingSnapshot, CheckpointOrigin] | None:
        try:
            return newest_checkpoint(self.directory, self.job)
        except OSError as error:
            log.warning("checkpoints in %s cannot be read: %s", self.directory, error)
            return None

    def restore(
        self, take_over: Callable[[TrainingSnapshot], TrainingProgress]
    ) -> TrainingProgress | None:
        """Continue from the newest checkpoint; None when there is none that fits.

        Args:
            take_over: Restores a snapshot; raises StateRefused if it does not fit.
        """
        snapshot = self.newest()
        if snapshot is None:
            return None
        try:
            progress = take_over(snapshot)
        except StateRefused as error:
            log.warning(
                "scavenger: training starts from the beginning, the checkpoint does not fit: %s",
                error,
            )
            return None
        log.warning("scavenger: training continues from iteration %d", progress.iteration)
        return progress

    def close(self, timeout: float) -> bool:
        """Give what is being written this many seconds to end; whether it did."""
        deadline = time.monotonic() + timeout
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join(max(deadline - time.monotonic(), 0.0))
        return self.thread is None or not self.thread.is_alive()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting is not None or self.is_closed)
                if self.waiting is None:
                    return  # closed; a snapshot that still waited was written first
                (snapshot, origin), self.waiting = self.waiting, None
                self.is_writing = True
            try:
                snapshot.wait()
                write_checkpoint(self.directory, snapshot, origin, keep=self.keep)
                self.written = snapshot.progress.iteration
                self.logged.clear()
            except (OSError, ValueError, MemoryError, RuntimeError) as error:
                self._warn(error)
            finally:
                snapshot.release()
                with self.changed:
                    self.is_writing = False
                    self.changed.notify_all()

    def _warn(self, error: Exception) -> None:
        """Log a failure, once per cause until a checkpoint succeeds."""
        cause = error.errno if isinstance(error, OSError) else str(error)
        if cause in self.logged:
            return
        self.logged.add(cause)
        advice = _REMEDY_OF_ERRNO.get(cause, str(error)) if isinstance(cause, int) else str(error)
        log.warning(
            "no checkpoint was written to %s: %s, or set SCAVENGER_CHECKPOINTS to another place."
            " Training goes on; it is tried again in %.0f s.",
            self.directory,
            advice,
            self.every,
        )


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
    target = checkpoint_path(directory, snapshot.progress.iteration)
    directory.mkdir(parents=True, exist_ok=True)
    delete_left_behind(directory)
    if not is_intact(target, origin.job):
        fresh = partial_path(target)
        try:
            fresh.mkdir()
            write_files(fresh, snapshot, origin)
            publish_checkpoint(fresh, target)
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
    # Those without a readable manifest first: they are only logged, and the log should name them.
    ranked = ranked_checkpoints(directory)
    for checkpoint, _ in sorted(ranked, key=lambda pair: pair[1] is not None):
        try:
            return read_checkpoint(checkpoint, job)
        except (CheckpointUnreadable, OSError) as error:
            log.warning("checkpoint %s is passed over: %s", checkpoint, error)
    return None


def is_intact(directory: Path, job: str) -> bool:
    """Whether a checkpoint is there and hashes to what it says.

    Raises:
        FileExistsError: It is another job's.
    """
    manifest = try_read_manifest(directory)
    if manifest is None:
        return False
    if manifest.origin.job != job:
        raise FileExistsError(errno.EEXIST, f"job {manifest.origin.job} has its checkpoints there")
    try:
        read_checkpoint(directory, job)
    except (CheckpointUnreadable, OSError):
        return False
    return True


def ranked_checkpoints(directory: Path) -> list[tuple[Path, CheckpointManifest | None]]:
    """Return the checkpoints, newest first; those without a readable manifest come last."""
    found = [
        (checkpoint, try_read_manifest(checkpoint))
        for checkpoint in matching_directories(directory, COMPLETE_NAME)
    ]

    def age(pair: tuple[Path, CheckpointManifest | None]) -> tuple[int, str]:
        # By generation first: a group of workers that was given up may have trained further, on
        # weights that its successor never had.
        checkpoint, manifest = pair
        return (-1 if manifest is None else manifest.origin.generation, checkpoint.name)

    return sorted(found, key=age, reverse=True)


def try_read_manifest(directory: Path) -> CheckpointManifest | None:
    """Return the manifest of a checkpoint; None when it cannot be read."""
    try:
        return read_manifest(directory)
    except (CheckpointUnreadable, OSError):
        return None


def prune_checkpoints(directory: Path, written: Path, job: str, keep: int) -> None:
    """Delete all but a job's newest checkpoints; never the one that was just written."""
    others = [
        checkpoint
        for checkpoint, manifest in ranked_checkpoints(directory)
        if checkpoint != written and (manifest is None or manifest.origin.job == job)
    ]
    for checkpoint in others[max(keep - 1, 0) :]:
        delete_checkpoint(checkpoint)
