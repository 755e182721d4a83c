"""An archive gives back the same files, and nothing of one that was not signed for it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.state import signed_archive
from worker_agent.state.signed_archive import (
    _MANIFEST,
    ArchivedFile,
    ArchiveRefused,
    Manifest,
    pack_folder,
    sign,
    unpack_folder,
)

SECRET, PURPOSE = b"of the project", "code of a model on a machine"
words = st.text("abc.-_", min_size=1, max_size=6).filter(lambda name: set(name) != {"."})
trees = st.dictionaries(
    st.lists(words, min_size=1, max_size=3).map("/".join), st.binary(max_size=300), max_size=8
)


def is_a_tree(files: dict[str, bytes]) -> bool:
    """Whether no file is a folder of another."""
    return not any(other.startswith(f"{name}/") for name in files for other in files)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@given(trees.filter(is_a_tree))
def test_what_was_packed_is_unpacked(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        packed = pack_folder(write(Path(place, "from"), files), PURPOSE, SECRET)
        into = Path(place, "at", "last")
        unpack_folder(packed, PURPOSE, SECRET, into)
        assert read(into) == files
        assert into.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in into.parent.iterdir()] == ["last"]


FILES = {"a/first.so": b"code" * 50, "second.py": b"more" * 50}


def forged(files: tuple[ArchivedFile, ...], contents: bytes, secret: bytes = SECRET) -> bytes:
    """Return an archive with any manifest, rightly signed."""
    manifest = _MANIFEST.dump_json(Manifest(PURPOSE, files))
    head = len(manifest).to_bytes(8, "big") + sign(manifest, secret)
    return head + manifest + zlib.compress(contents)


def file(name: str, content: bytes = b"x", size: int | None = None) -> ArchivedFile:
    length = len(content) if size is None else size
    return ArchivedFile(name, length, hashlib.sha256(content).hexdigest())


def flip(archive: bytes, place: int) -> bytes:
    return archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit of the signature": (lambda archive: flip(archive, 12), "its signature"),
    "a bit of the manifest": (lambda archive: flip(archive, 60), "its signature"),
    "a bit of a file": (
        lambda archive: flip(archive, len(archive) - 8),
        "damaged|not what was signed",
    ),
    "cut in a file": (lambda archive: archive[:-6], "too early|damaged"),
    "cut in the manifest": (lambda archive: archive[:60], "its signature"),
    "empty": (lambda _: b"", "its signature"),
    "something behind": (
        lambda _: forged((file("a"),), b"xy"),
        "does not end where",
    ),
    "another secret": (lambda _: forged((file("a"),), b"x", b"of another"), "its signature"),
    "a parent": (lambda _: forged((file("../a"),), b"x"), "leads elsewhere"),
    "a parent inside": (lambda _: forged((file("b/../../a"),), b"x"), "leads elsewhere"),
    "a root": (lambda _: forged((file("/tmp/a"),), b"x"), "leads elsewhere"),
    "no name": (lambda _: forged((file(""),), b"x"), "leads elsewhere"),
    "a long name": (lambda _: forged((file("a" * 500),), b"x"), "leads elsewhere"),
    "one name twice": (lambda _: forged((file("a"), file("a")), b"xx"), "one name"),
    "a negative size": (lambda _: forged((file("a", size=-1),), b"x"), "bytes"),
    "a bomb that says so": (lambda _: forged((file("a", size=1 << 40),), b"x"), "bytes, more"),
    "a bomb that does not": (lambda _: forged((file("a"),), bytes(1 << 24)), "signed|end"),
    "too many files": (
        lambda _: forged(tuple(file(str(n)) for n in range(20_001)), b"x"),
        "20001 files",
    ),
    "other content": (lambda _: forged((file("a", b"x"),), b"y"), "not what was signed"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_that_is_not_what_was_signed_leaves_nothing(attack: str, tmp_path: Path) -> None:
    packed = pack_folder(write(tmp_path / "from", FILES), PURPOSE, SECRET)
    change, why = ATTACKS[attack]
    place = tmp_path / "place"
    with pytest.raises(ArchiveRefused, match=why):
        unpack_folder(change(packed), PURPOSE, SECRET, place / "into")
    assert not place.exists() or not list(place.iterdir())


def test_an_archive_for_another_purpose_is_refused(tmp_path: Path) -> None:
    packed = pack_folder(write(tmp_path / "from", FILES), "another machine", SECRET)
    with pytest.raises(ArchiveRefused, match="it is for another machine"):
        unpack_folder(packed, PURPOSE, SECRET, tmp_path / "into")


def test_links_are_left_out_and_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "from", FILES)
    os.symlink("/etc/passwd", folder / "link")
    packed = pack_folder(folder, PURPOSE, SECRET)
    used = write(tmp_path / "used", {"mine": b"1"})
    unpack_folder(packed, PURPOSE, SECRET, used)
    assert read(used) == {"mine": b"1"}
    unpack_folder(packed, PURPOSE, SECRET, tmp_path / "new")
    assert read(tmp_path / "new") == FILES


def test_more_than_an_archive_may_hold_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_archive, "MAX_SIGNED_BYTES", 100)
    with pytest.raises(ArchiveRefused, match="400 bytes, more than 100"):
        pack_folder(write(tmp_path / "from", FILES), PURPOSE, SECRET)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    packed = pack_folder(write(tmp_path / "from", FILES), PURPOSE, SECRET)
    place = tmp_path / "place"
    write(place / ".unpacking-abc", {"half": b"a file"})
    unpack_folder(packed, PURPOSE, SECRET, place / "into")
    assert [path.name for path in place.iterdir()] == ["into"]
