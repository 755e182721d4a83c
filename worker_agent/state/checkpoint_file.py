"""Format of a checkpoint: two files with hashes, which are never executed when read.

::

    <directory>/000000001200/state.safetensors    the tensors, by name
    <directory>/000000001200/state.json           the rest, with the hashes of both

Files are read as untrusted input: a file whose hash does not match is not used. The library that
writes tensors comes with a framework, so it is loaded when a checkpoint is written or read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from worker_agent.state.checkpoint_directory import flush_directory
from worker_agent.state.progress import HostArray, TrainingProgress, TrainingSnapshot

if TYPE_CHECKING:
    import safetensors

TENSORS_FILE, MANIFEST_FILE = "state.safetensors", "state.json"
MAX_MANIFEST_BYTES = 1 << 28
_OS_ERROR_NUMBER = re.compile(r"os error (\d+)")
# Without O_NONBLOCK, opening a named pipe in directory of a file would wait for ever.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"),
)


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """Who wrote a checkpoint, and when.

    Attributes:
        job: Id of the job.
        generation: Generation of the leader; of two checkpoints the later generation's is newer.
        written_at: Seconds since 1970.
    """

    job: str
    generation: int
    written_at: float


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """What ``state.json`` holds.

    Attributes:
        format: Version of this layout.
        origin: Who wrote it.
        clock: Where training stood.
        tree: The plain part of the state.
        size: Bytes of the tensor file.
        sha256: Hash of the tensor file.
    """

    format: Literal[1]
    origin: CheckpointOrigin
    clock: TrainingProgress
    tree: JsonValue
    size: int
    sha256: str


class CheckpointUnreadable(Exception):
    """A checkpoint is torn, truncated, altered, or another job's; use the one before."""


_MANIFEST: TypeAdapter[CheckpointManifest] = TypeAdapter(CheckpointManifest)


def read_checkpoint(directory: Path, job: str) -> tuple[TrainingSnapshot, CheckpointOrigin]:
    """Read one checkpoint.

    Raises:
        CheckpointUnreadable: It is not what its writer wrote, or of another job.
        OSError: It cannot be opened.
    """
    manifest = read_manifest(directory)
    if manifest.origin.job != job:
        raise CheckpointUnreadable(f"it is of job {manifest.origin.job}, not of {job}")
    content = read_plain_file(directory / TENSORS_FILE, manifest.size)
    if sha256(content).hexdigest() != manifest.sha256:
        raise CheckpointUnreadable(
            f"{TENSORS_FILE} does not have the hash that {MANIFEST_FILE} says"
        )
    return TrainingSnapshot(manifest.clock, manifest.tree, parse_arrays(content)), manifest.origin


def write_files(directory: Path, snapshot: TrainingSnapshot, origin: CheckpointOrigin) -> None:
    """Write both files of a checkpoint and force them onto the disk."""
    import safetensors

    tensors = directory / TENSORS_FILE
    specs = {name: tensor_spec(array) for name, array in snapshot.arrays.items()}
    try:
        safetensors.serialize_file(specs, tensors)
    except safetensors.SafetensorError as error:
        # The library says a full disk in a text only; the caller has a remedy by its number.
        number = _OS_ERROR_NUMBER.search(str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    with tensors.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    manifest = CheckpointManifest(1, origin, snapshot.progress, snapshot.tree, size, digest)
    with (directory / MANIFEST_FILE).open("wb") as file:
        file.write(add_own_hash(to_json(manifest, inf_nan_mode="strings")))
        file.flush()
        os.fsync(file.fileno())
    flush_directory(directory)


def tensor_spec(array: HostArray) -> safetensors.TensorSpec:
    """Return where an array lies, so that it is written without being copied.

    Raises:
        ValueError: The format has no such type.
    """
    import safetensors

    if array.dtype not in _DTYPES:
        raise ValueError(f"a checkpoint cannot hold tensors of type {array.dtype}")
    address = np.frombuffer(array.content, np.uint8).ctypes.data if array.content else 0
    return safetensors.TensorSpec(
        dtype=array.dtype, shape=array.shape, data_ptr=address, data_len=len(array.content)
    )


def add_own_hash(body: bytes) -> bytes:
    """Wrap a JSON document with its own hash, so that no byte of the file can change unnoticed."""
    return b'{"sha256": "%s", "body": %s}\n' % (sha256(body).hexdigest().encode(), body)


def read_manifest(directory: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint; raises CheckpointUnreadable or OSError."""
    content = read_plain_file(directory / MANIFEST_FILE, size=None)
    body = content[len(add_own_hash(b"")) - len(b"}\n") : -len(b"}\n")]
    if content != add_own_hash(body):
        raise CheckpointUnreadable(f"{MANIFEST_FILE} does not have the hash that it says")
    try:
        return _MANIFEST.validate_json(body)
    except ValueError as error:
        raise CheckpointUnreadable(
            f"{MANIFEST_FILE} is of a form this version does not know: {error}"
        ) from error


def read_plain_file(path: Path, size: int | None) -> bytes:
    """Read a plain file that is as large as it should be; nothing is allocated for another.

    Raises:
        CheckpointUnreadable: It is a link, a device, of another size, or larger than this machine's
            memory.
        OSError: It cannot be opened.
    """
    handle = os.open(path, _OPEN_FLAGS)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        # No state was ever larger than memory; a sparse file claims terabytes for nothing.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        largest = MAX_MANIFEST_BYTES if size is None else memory
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > largest:
            raise CheckpointUnreadable(
                f"{path.name} is not a plain file of at most {largest} bytes"
            )
        if size is not None and facts.st_size != size:
            raise CheckpointUnreadable(f"{path.name} has {facts.st_size} bytes instead of {size}")
        return file.read(facts.st_size)


def parse_arrays(content: bytes) -> Mapping[str, HostArray]:
    """Return the arrays of a tensor file; the library checks all sizes against the content."""
    import safetensors

    deserialize: Any = safetensors.deserialize  # not annotated
    try:
        found = deserialize(content)
    except safetensors.SafetensorError as error:
        raise CheckpointUnreadable(f"{TENSORS_FILE} is not in its format: {error}") from error
    # Only the library knows what it calls each type, such as BF16 for bfloat16.
    names = {tensor_spec(HostArray(dtype, (0,), b"")).dtype: dtype for dtype in _DTYPES}
    for _, facts in found:
        if facts["dtype"] not in names:
            raise CheckpointUnreadable(f"{TENSORS_FILE} holds tensors of type {facts['dtype']}")
    return {
        name: HostArray(names[facts["dtype"]], tuple(facts["shape"]), facts["data"])
        for name, facts in found
    }
