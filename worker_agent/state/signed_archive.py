"""Signed archives of folders whose files are executed when they are loaded, such as compiled code.

An archive is a manifest in JSON, its signature, and the files one behind the other. The manifest
names the purpose, and size and hash of each file. It is checked before anything is written, and
nothing of an archive is ever executed by who checks it.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

MAX_FILES = 20_000
MAX_SIGNED_BYTES = 256 << 20
MAX_ARCHIVE_BYTES = 64 << 20
MAX_PATH_LENGTH = 400
SIGNATURE_BYTES = 32
UNPACKING = ".unpacking-"
_LENGTH_BYTES = 8
_PART_BYTES = 1 << 20


class ArchiveRefused(Exception):
    """An archive is not what this project has signed for this purpose; nothing was unpacked."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file of an archive.

    Attributes:
        name: Its path in the folder, with slashes.
        size: Bytes.
        sha256: Hash of its content.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive contains.

    Attributes:
        purpose: What it is for; an archive for another purpose is refused.
        files: Its files, in order.
    """

    purpose: str
    files: tuple[ArchivedFile, ...]


_MANIFEST = TypeAdapter(Manifest)


def pack_folder(folder: Path, purpose: str, secret: bytes) -> bytes:
    """Return the signed archive of all regular files in a folder.

    Raises:
        ArchiveRefused: It is larger than an archive may be.
        OSError: A file cannot be read.
    """
    names = sorted(regular_files(folder))
    contents = [(folder / name).read_bytes() for name in names]
    files = tuple(
        ArchivedFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in zip(names, contents, strict=True)
    )
    check_limits(files)
    manifest = _MANIFEST.dump_json(Manifest(purpose, files))
    packed = zlib.compress(b"".join(contents), level=6)
    archive = b"".join(
        [
            len(manifest).to_bytes(_LENGTH_BYTES, "big"),
            sign(manifest, secret),
            manifest,
            packed,
        ]
    )
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ArchiveRefused(f"it has {len(archive)} bytes, more than {MAX_ARCHIVE_BYTES}")
    return archive


def unpack_folder(archive: bytes, purpose: str, secret: bytes, folder: Path) -> None:
    """Make a folder of an archive's files; it appears with all of them, or not at all.

    Another folder of that name, which another process has made meanwhile, is left as it is. What a
    process that was killed has left is removed: one process of a machine unpacks.

    Raises:
        ArchiveRefused: It is not signed by this secret for this purpose, or breaks a limit.
        OSError: The folder cannot be written.
    """
    manifest, packed = read_manifest(archive, secret)
    if manifest.purpose != purpose:
        raise ArchiveRefused(f"it is for {manifest.purpose}, not for {purpose}")
    check_limits(manifest.files)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{UNPACKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=folder.parent))
    try:
        content = Inflated(packed, sum(file.size for file in manifest.files))
        for file in manifest.files:
            write_file(made / file.name, content.read(file.size), file)
        content.expect_end()
        flush(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def read_manifest(archive: bytes, secret: bytes) -> tuple[Manifest, bytes]:
    """Return the manifest of an archive whose signature is right, and its packed files.

    Raises:
        ArchiveRefused: It is too large or damaged, or signed by another secret.
    """
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ArchiveRefused(f"it has {len(archive)} bytes, more than {MAX_ARCHIVE_BYTES}")
    length = int.from_bytes(archive[:_LENGTH_BYTES], "big")
    begin = _LENGTH_BYTES + SIGNATURE_BYTES
    written = archive[begin : begin + length]
    if not hmac.compare_digest(archive[_LENGTH_BYTES:begin], sign(written, secret)):
        raise ArchiveRefused("its signature is not that of this project")
    try:
        return _MANIFEST.validate_json(written), archive[begin + length :]
    except ValidationError as error:
        raise ArchiveRefused("its manifest cannot be read") from error


def sign(manifest: bytes, secret: bytes) -> bytes:
    """Return the signature of a manifest."""
    return hmac.digest(secret, manifest, "sha256")


def regular_files(folder: Path) -> Iterator[str]:
    """Yield the paths of a folder's regular files, with slashes; links are left out."""
    for directory, _, names in os.walk(folder):
        for name in names:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def check_limits(files: tuple[ArchivedFile, ...]) -> None:
    """Check that files stay in their folder, and within number and size.

    Raises:
        ArchiveRefused: They do not.
    """
    if len(files) > MAX_FILES:
        raise ArchiveRefused(f"it has {len(files)} files, more than {MAX_FILES}")
    size = sum(file.size for file in files)
    if size > MAX_SIGNED_BYTES or any(file.size < 0 for file in files):
        raise ArchiveRefused(f"its files have {size} bytes, more than {MAX_SIGNED_BYTES}")
    if len({file.name for file in files}) < len(files):
        raise ArchiveRefused("two of its files have one name")
    for file in files:
        path = PurePosixPath(file.name)
        is_inside = not path.is_absolute() and ".." not in path.parts and "\0" not in file.name
        if not is_inside or not 0 < len(file.name) <= MAX_PATH_LENGTH or str(path) != file.name:
            raise ArchiveRefused(f"the name of a file leads elsewhere: {file.name[:80]!r}")


class Inflated:
    """Reads packed files, and never unpacks more than it was told they have.

    Args:
        packed: The packed bytes.
        size: Bytes of all files together.
    """

    def __init__(self, packed: bytes, size: int) -> None:
        self._source, self._inflate = io.BytesIO(packed), zlib.decompressobj()
        self._rest, self._left = b"", size

    def read(self, size: int) -> bytes:
        """Return the next bytes; raises ArchiveRefused if they are not there."""
        found: list[bytes] = []
        while size > 0:
            part = self._rest or self._source.read(_PART_BYTES)
            try:
                content = self._inflate.decompress(part, size)
            except zlib.error as error:
                raise ArchiveRefused("its files are damaged") from error
            self._rest = self._inflate.unconsumed_tail
            if not content and not self._rest and not part:
                raise ArchiveRefused("it ends too early")
            found.append(content)
            size -= len(content)
        return b"".join(found)

    def expect_end(self) -> None:
        """Raise ArchiveRefused if there is more than the files."""
        try:
            more = self._inflate.decompress(self._rest + self._source.read(_PART_BYTES), 1)
        except zlib.error as error:
            raise ArchiveRefused("its files are damaged") from error
        if more or not self._inflate.eof:
            raise ArchiveRefused("it does not end where its files do")


def write_file(path: Path, content: bytes, file: ArchivedFile) -> None:
    """Write one file if its content is what the manifest says."""
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ArchiveRefused(f"{file.name} is not what was signed")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "xb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    path.chmod(0o700 if path.suffix == ".so" else 0o600)


def flush(folder: Path) -> None:
    """Wait until the disk has what stands in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
