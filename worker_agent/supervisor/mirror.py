"""Copies the checkpoints of a machine's disk to its job's bucket, beside the training process."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from worker_agent.errors import BucketUnavailable, ControllerRefused, ControllerUnreachable
from worker_agent.state.bucket import CHECKPOINT_FILES, CheckpointBucket
from worker_agent.state.checkpoint_directory import COMPLETE_NAME, matching_directories

log = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
RESEND_INTERVAL = 30.0
NICENESS = 10  # training comes first
NO_BUCKET_STATUS = 404


class CheckpointMirror(threading.Thread):
    """Sends the newest checkpoint, one at a time; those that are older by then are left out.

    It runs in the supervisor: nothing that a bucket does reaches the training process, and a
    checkpoint that was written just before the process died is sent all the same.

    Args:
        bucket: Where to.
        directory: Where the training process writes checkpoints.
        look_interval: Seconds between two looks at the directory.
        retry_interval: Seconds after a failure until it is tried again.
    """

    def __init__(
        self,
        bucket: CheckpointBucket,
        directory: Path,
        *,
        look_interval: float = LOOK_INTERVAL,
        retry_interval: float = RESEND_INTERVAL,
    ) -> None:
        super().__init__(name="checkpoint mirror", daemon=True)
        self._bucket, self._directory = bucket, directory
        self._look_interval, self._retry_interval = look_interval, retry_interval
        self._closing = threading.Event()
        self._done_until = 0  # when the newest that needs no sending was written

    def run(self) -> None:
        """Send checkpoints until the mirror is closed and none is left."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            found = self._newest_unsent()
            if found is not None and self._is_settled(*found):
                self._done_until = found[1]
            elif self._closing.is_set():
                return
            else:
                self._closing.wait(self._look_interval if found is None else self._retry_interval)

    def close(self, timeout: float) -> None:
        """Send what is there already, for so many seconds at most, and nothing after it."""
        self._closing.set()
        if self.is_alive():
            self.join(timeout)

    def _newest_unsent(self) -> tuple[Path, int] | None:
        """Return the newest checkpoint that is not settled, and when it was written."""
        found: list[tuple[int, Path]] = []
        for checkpoint in matching_directories(self._directory, COMPLETE_NAME):
            with suppress(OSError):  # it was deleted meanwhile
                written = (checkpoint / CHECKPOINT_FILES[0]).stat().st_mtime_ns
                found.append((written, checkpoint))
        newest = max(found, default=None)
        if newest is None or newest[0] <= self._done_until:
            return None
        return newest[1], newest[0]

    def _is_settled(self, checkpoint: Path, written: int) -> bool:
        """Send a checkpoint; False if it is to be tried again."""
        try:
            self._bucket.send(checkpoint)
        except ControllerRefused as error:
            log.info("checkpoint %s is not put into the bucket: %s", checkpoint.name, error)
        except BucketUnavailable as error:
            self._bucket.tell(f"a checkpoint was not put into the bucket: {error}")
            return False
        except ControllerUnreachable as error:
            log.info("checkpoint %s is sent later: %s", checkpoint.name, error)
            return False
        except OSError as error:
            log.info("checkpoint %s cannot be sent any more: %s", checkpoint.name, error)
        return True
