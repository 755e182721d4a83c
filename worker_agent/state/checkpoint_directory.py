"""Checkpoints as directories of a disk: which are complete, and how they come and go.

A checkpoint is written into a sibling directory, which is renamed when all of it is on disk.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

COMPLETE_NAME = re.compile(r"\d{12}")
PARTIAL_NAME = re.compile(r"\.\d{12}\.[0-9a-f]{12}\.unfinished")


def checkpoint_path(directory: Path, iteration: int) -> Path:
    """Return where the checkpoint of an iteration is."""
    return directory / f"{iteration:012}"


def publish_checkpoint(fresh: Path, target: Path) -> None:
    """Let a directory that was written be the checkpoint, in place of another of its iteration."""
    delete_checkpoint(target)
    fresh.rename(target)


def delete_checkpoint(directory: Path) -> None:
    """Delete a checkpoint, so that no part of it is read if this process dies meanwhile."""
    if not os.path.lexists(directory):
        return
    doomed = partial_path(directory)
    directory.rename(doomed)  # from here on it is no checkpoint, however much of it is left
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def delete_left_behind(directory: Path) -> None:
    """Delete what writers that died have begun."""
    for left_behind in matching_directories(directory, PARTIAL_NAME):
        shutil.rmtree(left_behind, ignore_errors=True)


def matching_directories(directory: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the directories whose names fit, but no links to directories."""
    if not directory.is_dir():
        return
    for entry in list(os.scandir(directory)):
        if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def partial_path(target: Path) -> Path:
    """Return the name of a sibling that is no checkpoint."""
    return target.with_name(f".{target.name}.{os.urandom(6).hex()}.unfinished")


def flush_directory(directory: Path) -> None:
    """Force a directory's entries onto the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
