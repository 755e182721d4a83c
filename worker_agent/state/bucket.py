"""Checkpoints in a bucket: sends those on a machine's disk, and fetches those of other machines.

The controller signs each request, so a machine has no rights of its own. Contents are streamed
between disk and network, a part at a time. No message shows a URL, which is a secret.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import httpx
from pydantic import TypeAdapter
from pydantic_core import from_json

from scavenger.checkpoints import (
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_TROUBLE_LENGTH,
    CheckpointFile,
    CheckpointPart,
    CheckpointTrouble,
    CheckpointUpload,
    SignedRequest,
    StoredCheckpoint,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import (
    AgentError,
    BucketUnavailable,
    ControllerRefused,
    ControllerUnreachable,
)
from worker_agent.state.checkpoint_directory import (
    COMPLETE_NAME,
    checkpoint_path,
    flush_directory,
    matching_directories,
    partial_path,
    publish_checkpoint,
)
from worker_agent.state.progress import TrainingProgress

log = logging.getLogger(__name__)

CHECKPOINT_FILES: tuple[CheckpointFile, ...] = ("state.json", "state.safetensors")
CHUNK_BYTES = 1 << 20
MAX_READ_MANIFEST = 1 << 28
ABSENT, THERE_ALREADY = 404, 412
# The controller keeps what it offers, and what it was announced, for longer than this.
TRANSFER_TIMEOUT = 3600.0
# A signature holds for 15 minutes: requests that are older are signed anew before they are sent.
SIGNATURE_AGE = 600.0
FETCH_PATIENCE = 600.0  # seconds for which a bucket that does not answer is asked again
FETCH_INTERVAL = 5.0
SILENCE = 3600.0  # until the same trouble is told again
MAX_ALTERED = 3  # attempts at a checkpoint whose content is not what was told
REQUEST_TIMEOUTS = {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": 10.0}

_PROGRESS = TypeAdapter(TrainingProgress)
Age = tuple[int, int]  # generation and iteration


class CheckpointAltered(BucketUnavailable):
    """What arrived is not what was told, or there is nothing: use the checkpoint before."""


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint on the disk, with its files open: they can be deleted meanwhile.

    Attributes:
        upload: What the controller is told of it.
        ranges: File and first byte of each part.
    """

    upload: CheckpointUpload
    ranges: tuple[tuple[IO[bytes], int], ...]


class CheckpointBucket:
    """The bucket of one job.

    Args:
        controller: Signs requests.
        part_bytes: Largest part.
        sleep: Waits for so many seconds.
        stopwatch: Returns seconds.
    """

    def __init__(
        self,
        controller: ControllerClient,
        *,
        part_bytes: int = MAX_PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller, self._part_bytes = controller, part_bytes
        self._sleep, self._stopwatch = sleep, stopwatch
        self._told: dict[str, float] = {}

    def send(self, directory: Path) -> None:
        """Put a checkpoint of the disk into the bucket, unless it is there.

        Raises:
            BucketUnavailable: It was not taken; the message says why.
            ControllerUnreachable: The controller does not answer.
            ControllerRefused: It was given up, or this job has no bucket.
            OSError: It cannot be read any more.
        """
        with ExitStack() as stack:
            opened = open_checkpoint(directory, self._part_bytes, stack)
            target = self._controller.put_checkpoint(opened.upload)
            began = signed_at = self._stopwatch()
            for number, part in enumerate(opened.upload.parts):
                if self._stopwatch() - signed_at > SIGNATURE_AGE:
                    signed_at = self._stopwatch()
                    target = self._controller.put_checkpoint(opened.upload)
                if target.is_complete:
                    return
                self._check_time(began)
                self._send_part(target.requests[number], part, opened.ranges[number], began)
            self._controller.put_checkpoint(replace(opened.upload, is_sent=True))

    def find_newer(self, age: Age | None) -> StoredCheckpoint | None:
        """Return the newest checkpoint in the bucket, if it is newer than one of this age."""
        stored = self._ask(None, self._stopwatch() + FETCH_PATIENCE)
        return stored if stored is not None and is_newer(stored, age) else None

    def fetch_newest(self, stored: StoredCheckpoint, directory: Path, age: Age | None) -> bool:
        """Fetch a checkpoint that was found, or else the newest before it that can be fetched.

        Each that cannot be used is logged and reported. False if none is newer than this age.
        """
        deadline = self._stopwatch() + FETCH_PATIENCE
        found: StoredCheckpoint | None = stored
        altered, passed_over = 0, None
        while found is not None and is_newer(found, age):
            try:
                self._fetch(found, directory)
            except CheckpointAltered as error:
                altered += 1
                if altered >= MAX_ALTERED:
                    why = f"the checkpoint of iteration {found.iteration} is passed over: {error}"
                    self.tell(why)
                    altered, passed_over = 0, found.checkpoint
            except (BucketUnavailable, OSError) as error:
                self.tell(f"a checkpoint was not fetched, and is tried again: {error}")
                if self._stopwatch() > deadline:
                    return False
                self._sleep(FETCH_INTERVAL)
            else:
                log.warning("scavenger: fetched the checkpoint of iteration %d", found.iteration)
                return True
            found = self._ask(passed_over, deadline)
        return False

    def fetch_if_newer(self, directory: Path) -> Path | None:
        """Fetch the newest checkpoint unless the disk has it; returns where it is, if any was."""
        ages = {age: path for path in checkpoints_of(directory) if (age := age_of(path))}
        newest = max(ages, default=None)
        stored = self.find_newer(newest)
        if stored is None or not self.fetch_newest(stored, directory, newest):
            return None
        # The one that was fetched is newer than all that were there.
        return max(checkpoints_of(directory), key=lambda path: age_of(path) or (-1, -1))

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    def tell(self, why: str) -> None:
        """Log a failure and report it to the controller, each cause at most once an hour."""
        now = self._stopwatch()
        if now < self._told.get(why, now) + SILENCE and why in self._told:
            return
        self._told[why] = now
        log.warning("scavenger: %s", why)
        sentence = "".join(letter if letter.isprintable() else " " for letter in why)
        try:
            self._controller.report_checkpoint_trouble(
                CheckpointTrouble(sentence[:MAX_TROUBLE_LENGTH])
            )
        except AgentError as error:
            log.info("the controller was not told so: %s", error)

    @cached_property
    def _transport(self) -> httpx.HTTPTransport:
        # A client of httpx would log each URL where the script logs at level INFO.
        return httpx.HTTPTransport()

    def _ask(self, older_than: str | None, deadline: float) -> StoredCheckpoint | None:
        """Ask the controller for the newest; None if there is none, or no answer in time."""
        while True:
            try:
                return self._controller.newest_checkpoint(older_than)
            except ControllerRefused as error:
                log.info("no checkpoint is in a bucket: %s", error)
                return None
            except (BucketUnavailable, ControllerUnreachable) as error:
                self.tell(f"the newest checkpoint in the bucket is not known: {error}")
            if self._stopwatch() > deadline:
                return None
            self._sleep(FETCH_INTERVAL)

    def _check_time(self, began: float) -> None:
        if self._stopwatch() - began > TRANSFER_TIMEOUT:
            raise BucketUnavailable(f"a checkpoint took longer than {TRANSFER_TIMEOUT:.0f} s")

    def _send_part(
        self,
        request: SignedRequest,
        part: CheckpointPart,
        place: tuple[IO[bytes], int],
        began: float,
    ) -> None:
        digest = sha256()

        def content() -> Iterator[bytes]:
            for chunk in read_range(*place, part.size):
                self._check_time(began)
                digest.update(chunk)
                yield chunk

        with self._request("PUT", request, content()) as response:
            for _ in response.iter_raw():
                pass
        if response.status_code == THERE_ALREADY:
            return
        if not response.is_success:
            raise BucketUnavailable(f"the bucket answered {response.status_code} to an upload")
        if digest.hexdigest() != part.sha256:
            raise OSError(f"{part.file} has changed while it was sent")

    def _fetch(self, stored: StoredCheckpoint, directory: Path) -> None:
        """Write a checkpoint to the disk, complete or not at all."""
        target, began = checkpoint_path(directory, stored.iteration), self._stopwatch()
        fresh = partial_path(target)
        fresh.mkdir(parents=True)
        try:
            for request, part in zip(stored.requests, stored.parts, strict=True):
                with (fresh / part.file).open("ab") as file:
                    self._fetch_part(request, part, file, began)
                    file.flush()
                    os.fsync(file.fileno())
            flush_directory(fresh)
            publish_checkpoint(fresh, target)
            flush_directory(directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def _fetch_part(
        self, request: SignedRequest, part: CheckpointPart, file: IO[bytes], began: float
    ) -> None:
        digest, size = sha256(), 0
        with self._request("GET", request) as response:
            if response.status_code == ABSENT:
                raise CheckpointAltered(f"{part.file} is not in the bucket")
            if not response.is_success:
                raise BucketUnavailable(f"the bucket answered {response.status_code}")
            try:
                for chunk in response.iter_raw():
                    self._check_time(began)
                    size += len(chunk)
                    if size > part.size:
                        break
                    digest.update(chunk)
                    file.write(chunk)
            except httpx.TransportError as error:
                raise CheckpointAltered(f"{part.file} was cut off: {name_of(error)}") from None
        if (size, digest.hexdigest()) != (part.size, part.sha256):
            raise CheckpointAltered(f"{part.file} does not have the size and hash it was told")

    @contextmanager
    def _request(
        self, method: str, request: SignedRequest, content: Iterator[bytes] | None = None
    ) -> Iterator[httpx.Response]:
        """Send a signed request; its errors must not show it."""
        sent = httpx.Request(
            method,
            request.url,
            headers=request.headers,
            content=content,
            extensions={"timeout": REQUEST_TIMEOUTS},
        )
        try:
            response = self._transport.handle_request(sent)
        except httpx.TransportError as error:
            raise BucketUnavailable(f"the bucket does not answer: {name_of(error)}") from None
        with closing(response):
            yield response


def open_bucket(settings: WorkerEnv, controller: object) -> CheckpointBucket | None:
    """Return the bucket of a machine's job; None if it has none."""
    if not settings.checkpoint_store or not isinstance(controller, ControllerClient):
        return None
    return CheckpointBucket(controller)


def open_checkpoint(directory: Path, part_bytes: int, stack: ExitStack) -> OpenedCheckpoint:
    """Open a checkpoint of the disk, and hash its parts.

    Raises:
        OSError: It is not there any more, or is no checkpoint.
        BucketUnavailable: It has more parts than a checkpoint may have.
    """
    parts: list[CheckpointPart] = []
    ranges: list[tuple[IO[bytes], int]] = []
    for name in CHECKPOINT_FILES:
        file = stack.enter_context((directory / name).open("rb"))
        size = os.fstat(file.fileno()).st_size
        for start in range(0, max(size, 1), part_bytes):
            length = min(part_bytes, size - start)
            digest = sha256()
            for chunk in read_range(file, start, length):
                digest.update(chunk)
            parts.append(CheckpointPart(name, length, digest.hexdigest()))
            ranges.append((file, start))
    if len(parts) > MAX_PARTS:
        raise BucketUnavailable(f"a checkpoint may have {MAX_PARTS} parts, this has {len(parts)}")
    generation, iteration = read_age(ranges[0][0])
    return OpenedCheckpoint(CheckpointUpload(generation, iteration, tuple(parts)), tuple(ranges))


def checkpoints_of(directory: Path) -> list[Path]:
    """Return the complete checkpoints of a disk."""
    return list(matching_directories(directory, COMPLETE_NAME))


def age_of(checkpoint: Path) -> Age | None:
    """Return the age of a checkpoint of the disk; None if it does not say it."""
    try:
        with (checkpoint / CHECKPOINT_FILES[0]).open("rb") as manifest:
            return read_age(manifest)
    except OSError:
        return None


def read_age(manifest: IO[bytes]) -> Age:
    """Return the generation and iteration of a checkpoint.

    Raises:
        OSError: It does not say them.
    """
    body = read_body(manifest)
    try:
        return int(body["origin"]["generation"]), int(body["clock"]["iteration"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{manifest.name} is no manifest of a checkpoint") from error


def read_body(manifest: IO[bytes]) -> Any:
    """Return what a manifest says, without checking its hash; raises OSError if it says nothing."""
    try:
        size = os.fstat(manifest.fileno()).st_size
        return from_json(os.pread(manifest.fileno(), min(size, MAX_READ_MANIFEST), 0))["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{manifest.name} is no manifest of a checkpoint") from error


def progress_of(checkpoint: Path) -> TrainingProgress:
    """Return where training stood at a checkpoint of the disk; at the start if it says nothing."""
    try:
        with (checkpoint / CHECKPOINT_FILES[0]).open("rb") as manifest:
            return _PROGRESS.validate_python(read_body(manifest)["clock"])
    except (OSError, ValueError, KeyError, TypeError):
        return TrainingProgress()


def read_range(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    """Yield a range of a file, a chunk at a time.

    Raises:
        OSError: The file is shorter.
    """
    end = start + size
    while start < end:
        chunk = os.pread(file.fileno(), min(CHUNK_BYTES, end - start), start)
        if not chunk:
            raise OSError(f"{file.name} has become shorter")
        start += len(chunk)
        yield chunk


def is_newer(stored: StoredCheckpoint, age: Age | None) -> bool:
    """Tell whether a checkpoint in the bucket is newer than one of some age; any is than none."""
    return age is None or (stored.generation, stored.iteration) > age


def name_of(error: Exception) -> str:
    """Return what kind of error it was; its text may show a URL."""
    return type(error).__name__
