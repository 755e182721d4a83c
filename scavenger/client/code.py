"""Packs a directory of code into an archive; equal directories give equal bytes.

Names, contents, links and whether a file can be executed count; times, owners and the order of a
directory do not. What .gitignore files leave out is left out, and so is every ``.git``.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO

from scavenger.client.errors import CodeRefused
from scavenger.client.gitignore import IGNORE_FILE, IgnoreRules
from scavenger.code_archive import (
    MAX_ENTRIES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    MEBIBYTE,
    path_behind_link,
)
from scavenger.errors import DocumentProblem

COMPRESSION_LEVEL = 6
MAX_FOLDER_DEPTH = 100  # of folders in each other, each of which is open meanwhile
MAX_PROBLEMS_SHOWN = 20
MAX_IGNORE_FILE_BYTES = MEBIBYTE
LEAVE_OUT = f"or name it in {IGNORE_FILE}"
MAKE_SMALLER = (
    f"name data, weights and environments in {IGNORE_FILE}, and let the command fetch what it needs"
)
# Opens no link that took the place of a file since it was listed, and waits for no named pipe.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NO_DIRECTORY: dict[type[OSError], str] = {
    FileNotFoundError: "there is no such directory: name the one that holds your script",
    NotADirectoryError: "is a file: name the directory that holds your script",
}
KINDS_REFUSED = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

EntryPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackedCode:
    """A packed directory.

    Attributes:
        file: The archive, from its beginning.
        digest: SHA-256 of its bytes, in hexadecimal; its name at the controller.
        size: Bytes of the archive.
        entries: Files and links in it.
    """

    file: IO[bytes]
    digest: str
    size: int
    entries: int


@contextmanager
def pack_code(directory: Path) -> Iterator[PackedCode]:
    """Pack a directory; the archive is deleted at the end of the block.

    Raises:
        CodeRefused: Something in the directory cannot travel, or it is too large; the problems name
            each path.
    """
    with tempfile.TemporaryFile(prefix="scavenger-code-") as file:
        sink = ArchiveSink(file, MAX_PACKED_BYTES, "packed")
        packer = CodePacker()
        try:
            with gzip.GzipFile("", "wb", COMPRESSION_LEVEL, sink, mtime=0) as packed:
                packer.pack(directory, ArchiveSink(packed, MAX_UNPACKED_BYTES, "unpacked"))
        except TooMuchCode as error:
            packer.problems.append(DocumentProblem("", str(error)))
        packer.check(directory)
        file.seek(0)
        yield PackedCode(file, sink.digest.hexdigest(), sink.size, packer.entries)


class TooMuchCode(Exception):
    """The directory has more than an archive may hold; the message says what to do."""


class ArchiveSink:
    """Passes bytes on, hashes and counts them, and stops where there are too many.

    Args:
        file: Where the bytes go.
        most: How many there may be.
        how: What they are, ``packed`` or ``unpacked``.
    """

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most: int, how: str) -> None:
        self._file, self._most, self._how = file, most, how
        self.digest, self.size = sha256(), 0

    def write(self, chunk: bytes) -> int:
        self.size += len(chunk)
        if self.size > self._most:
            limit = f"{self._most // MEBIBYTE} MiB {self._how}"
            raise TooMuchCode(f"has more than {limit}: {MAKE_SMALLER}")
        self.digest.update(chunk)
        return self._file.write(chunk)

    def flush(self) -> None:
        self._file.flush()


@dataclass(slots=True)
class CodePacker:
    """Walks a directory and writes what is in it.

    It goes on after a problem, so that all are told at once.

    Attributes:
        above: Where the directory lies in its git repository, whose .gitignore files count too.
    """

    problems: list[DocumentProblem] = field(default_factory=list)
    links: dict[EntryPath, str] = field(default_factory=dict)
    entries: int = 0
    above: EntryPath = ()

    def pack(self, directory: Path, sink: ArchiveSink) -> None:
        """Write the archive."""
        try:
            self.above, rules = read_rules_above(directory.resolve())
            top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            return self._complain((), NO_DIRECTORY[type(error)])
        except OSError as error:
            return self._complain((), describe(error))
        try:
            with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
                self._pack_directory(archive, top, (), rules)
        finally:
            os.close(top)
        return None

    def check(self, directory: Path) -> None:
        """Refuse a directory with problems, links that lead out of it among them, or with nothing.

        Raises:
            CodeRefused: Lists the problems.
        """
        for path, target in self.links.items():
            if problem := find_link_problem(path, target, self.links):
                self._complain(path, problem)
        if not (self.entries or self.problems):
            self._complain((), f"holds no file that {IGNORE_FILE} does not leave out")
        if self.problems:
            shown = self.problems[:MAX_PROBLEMS_SHOWN]
            if more := len(self.problems) - len(shown):
                shown.append(DocumentProblem("", f"{more} more problems: solve these first"))
            raise CodeRefused(str(directory), shown)

    def _pack_directory(
        self, archive: tarfile.TarFile, opened: int, path: EntryPath, rules: IgnoreRules
    ) -> None:
        if len(path) > MAX_FOLDER_DEPTH:
            why = f"lies more than {MAX_FOLDER_DEPTH} folders deep: move it up, {LEAVE_OUT}"
            return self._complain(path, why)
        try:
            if (content := read_ignore_file(opened)) is not None:
                rules = rules.with_file(len(self.above) + len(path), content)
            names = sorted(os.listdir(opened), key=os.fsencode)
        except OSError as error:
            return self._complain(path, describe(error))
        for name in names:
            if name != ".git":
                try:
                    self._pack_entry(archive, opened, (*path, name), rules)
                except OSError as error:
                    self._complain((*path, name), describe(error))
        return None

    def _pack_entry(
        self, archive: tarfile.TarFile, parent: int, path: EntryPath, rules: IgnoreRules
    ) -> None:
        name = path[-1]
        kind = stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        is_directory = kind == stat.S_IFDIR
        if rules.leave_out((*self.above, *path), is_directory=is_directory):
            return
        if not is_utf8(name):
            self._complain(path, f"has a name that is not UTF-8: rename it, {LEAVE_OUT}")
        elif is_directory:
            opened = os.open(name, OPEN_FLAGS | os.O_DIRECTORY, dir_fd=parent)
            try:
                self._pack_directory(archive, opened, path, rules)
            finally:
                os.close(opened)
        elif kind == stat.S_IFLNK:
            self._pack_link(archive, path, os.readlink(name, dir_fd=parent))
        elif kind == stat.S_IFREG:
            with open(os.open(name, OPEN_FLAGS, dir_fd=parent), "rb") as file:
                self._pack_file(archive, path, file)
        else:
            what = KINDS_REFUSED.get(kind, "no file")
            self._complain(path, f"is {what}, which cannot be sent: remove it, {LEAVE_OUT}")

    def _pack_link(self, archive: tarfile.TarFile, path: EntryPath, target: str) -> None:
        if not is_utf8(target):
            why = f"is a link to a name that is not UTF-8: rename that, {LEAVE_OUT}"
            return self._complain(path, why)
        self.links[path] = target
        link = self._new_entry(path, tarfile.SYMTYPE, 0o777)
        link.linkname = target
        return archive.addfile(link)

    def _pack_file(self, archive: tarfile.TarFile, path: EntryPath, file: IO[bytes]) -> None:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return self._complain(path, "became another kind of file meanwhile: submit again")
        is_executable = status.st_mode & stat.S_IXUSR
        entry = self._new_entry(path, tarfile.REGTYPE, 0o755 if is_executable else 0o644)
        entry.size = status.st_size
        # A file that has become shorter since is an OSError; of a longer one this part is sent.
        return archive.addfile(entry, file)

    def _new_entry(self, path: EntryPath, kind: bytes, mode: int) -> tarfile.TarInfo:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise TooMuchCode(f"has more than {MAX_ENTRIES} files: {MAKE_SMALLER}")
        entry = tarfile.TarInfo("/".join(path))
        entry.type, entry.mode = kind, mode  # time and owners are 0 in a new one
        return entry

    def _complain(self, path: EntryPath, message: str) -> None:
        readable = os.fsencode("/".join(path)).decode("utf-8", "backslashreplace")
        self.problems.append(DocumentProblem(readable, message))


def read_rules_above(directory: Path) -> tuple[EntryPath, IgnoreRules]:
    """Return where a directory lies in its git repository, and what is left out from above it."""
    rules = IgnoreRules()
    for top in (directory, *directory.parents):
        if (top / ".git").exists():
            parts = directory.relative_to(top).parts
            for depth in range(len(parts)):
                opened = os.open(top.joinpath(*parts[:depth]), os.O_RDONLY | os.O_DIRECTORY)
                try:
                    content = read_ignore_file(opened)
                finally:
                    os.close(opened)
                if content is not None:
                    rules = rules.with_file(depth, content)
            return parts, rules
    return (), rules


def read_ignore_file(directory: int) -> bytes | None:
    """Return what the .gitignore file of an open directory says; None if there is none.

    Raises:
        OSError: It cannot be read, or is larger than any that a person wrote.
    """
    try:
        kind = os.stat(IGNORE_FILE, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(kind):  # git does not follow a link there either
        return None
    with open(os.open(IGNORE_FILE, OPEN_FLAGS, dir_fd=directory), "rb") as file:
        content = file.read(MAX_IGNORE_FILE_BYTES + 1)
    if len(content) > MAX_IGNORE_FILE_BYTES:
        raise OSError(f"{IGNORE_FILE} has more than {MAX_IGNORE_FILE_BYTES // MEBIBYTE} MiB")
    return content


def find_link_problem(path: EntryPath, target: str, links: dict[EntryPath, str]) -> str | None:
    """Return what is wrong with a link; None if it leads to a path inside the directory."""
    if target.startswith("/"):
        what = f"is a link to {target}, an absolute path that a machine does not have"
    else:
        try:
            if path_behind_link(path[:-1], target, links) is not None:
                return None
            what = f"is a link that leads out of the directory, to {target}"
        except ValueError:
            what = "is a link that leads to itself"
    return f"{what}: put what you need in its place, {LEAVE_OUT}"


def is_utf8(name: str) -> bool:
    """Tell whether a name that the system gave is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def describe(error: OSError) -> str:
    """Say that something cannot be read, and what to do."""
    reason = error.strerror or str(error)
    return f"cannot be read ({reason}): let your user read it, {LEAVE_OUT}"
