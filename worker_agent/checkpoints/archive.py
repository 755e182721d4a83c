"""Archive: the few newest checkpoints of a job, each complete or not there at all.

A checkpoint is written into a sibling directory, which is renamed when all of it is on the disk.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from worker_agent.checkpoints.checkpoint import (
    Manifest,
    Origin,
    Unreadable,
    fill,
    flush_directory,
    manifest_of,
    read,
)
from worker_agent.strategies.snapshot import Snapshot

log = logging.getLogger(__name__)

FINISHED = re.compile(r"\d{12}")
UNFINISHED = re.compile(r"\.\d{12}\.[0-9a-f]{12}\.unfinished")


def write(directory: Path, snapshot: Snapshot, origin: Origin, *, keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest ``keep``.

    Returns:
        Where it is. An intact one of the same iteration is left as it is.

    Raises:
        OSError: The disk is full, it may not be written to, or another job's checkpoint is in the
            way; nothing half-written stays.
    """
    target = directory / f"{snapshot.clock.iteration:012}"
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory)
    if not is_intact(target, origin.job):
        fresh = unfinished(target)
        try:
            fresh.mkdir()
            fill(fresh, snapshot, origin)
            discard(target)
            fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        flush_directory(directory)
    prune(directory, target, origin.job, keep)
    return target


def newest(directory: Path, job: str) -> tuple[Snapshot, Origin] | None:
    """Return the newest intact checkpoint of a job; each one passed over is logged."""
    places = ranked(directory)
    silent = [place for place, manifest in places if manifest is None]
    for place in (*silent, *(place for place, manifest in places if manifest is not None)):
        try:
            return read(place, job)
        except (Unreadable, OSError) as error:
            log.warning("checkpoint %s is passed over: %s", place, error)
    return None


def is_intact(place: Path, job: str) -> bool:
    """Whether a checkpoint is there and hashes to what it says.

    Raises:
        FileExistsError: It is another job's.
    """
    manifest = manifest_or_none(place)
    if manifest is None:
        return False
    if manifest.origin.job != job:
        raise FileExistsError(errno.EEXIST, f"job {manifest.origin.job} has its checkpoints there")
    try:
        read(place, job)
    except (Unreadable, OSError):
        return False
    return True


def ranked(directory: Path) -> list[tuple[Path, Manifest | None]]:
    """Return the checkpoints, newest first; those that do not say what they are come last."""
    found = [(place, manifest_or_none(place)) for place in entries(directory, FINISHED)]
    return sorted(found, key=lambda pair: age_key(*pair), reverse=True)


def age_key(place: Path, manifest: Manifest | None) -> tuple[int, str]:
    """Order by generation, then by iteration: a group that was given up is older than its heir."""
    return (-1 if manifest is None else manifest.origin.generation, place.name)


def manifest_or_none(place: Path) -> Manifest | None:
    """Return what a checkpoint says of itself, if it says so in a sound way."""
    try:
        return manifest_of(place)
    except (Unreadable, OSError):
        return None


def prune(directory: Path, written: Path, job: str, keep: int) -> None:
    """Delete all but a job's newest checkpoints; never the one that was just written."""
    others = [
        place
        for place, manifest in ranked(directory)
        if place != written and (manifest is None or manifest.origin.job == job)
    ]
    for place in others[max(keep - 1, 0) :]:
        discard(place)


def discard(place: Path) -> None:
    """Delete a checkpoint, which from the first moment on is none any more."""
    if not os.path.lexists(place):
        return
    doomed = unfinished(place)
    place.rename(doomed)
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def sweep(directory: Path) -> None:
    """Delete what killed writers left behind."""
    for place in entries(directory, UNFINISHED):
        shutil.rmtree(place, ignore_errors=True)


def entries(directory: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the real directories whose names fit; links are nobody's checkpoints."""
    if not directory.is_dir():
        return
    for entry in list(os.scandir(directory)):
        if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def unfinished(target: Path) -> Path:
    """Return a sibling's name that nobody reads as a checkpoint."""
    return target.with_name(f".{target.name}.{os.urandom(6).hex()}.unfinished")
