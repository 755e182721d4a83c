"""What cannot travel is refused before a byte is sent; what no client packs, no machine unpacks."""

from __future__ import annotations

import gzip
import io
import os
import re
import socket
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scavenger.client import code
from scavenger.client.code import pack_code
from scavenger.client.errors import CodeRefused
from worker_agent.errors import CodeUnusable
from worker_agent.supervisor import code as machine
from worker_agent.supervisor.code import unpack_code


def add_named_pipe(top: Path) -> None:
    os.mkfifo(top / "sub/odd")


def add_socket(top: Path) -> None:
    here = os.getcwd()
    os.chdir(top / "sub")  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("odd")
    finally:
        os.chdir(here)


def add_link(target: str) -> Callable[[Path], None]:
    return lambda top: (top / "sub/odd").symlink_to(target)


def add_link_by_another(top: Path) -> None:
    (top / "sub/up").symlink_to("..")
    (top / "sub/odd").symlink_to("up/../other")


def add_link_through_own_name(top: Path) -> None:
    (top / "sub/odd").symlink_to(f"../../{top.name}/train.py")


def add_link_loop(top: Path) -> None:
    (top / "sub/odd").symlink_to("even")
    (top / "sub/even").symlink_to("odd")


def add_odd_name(top: Path) -> None:
    os.makedirs(os.fsencode(top) + b"/sub/odd\xff")
    Path(os.fsdecode(os.fsencode(top) + b"/sub/odd\xff/a")).touch()


def add_deep_folders(top: Path) -> None:
    (top / "sub" / "/".join(["d"] * 101)).mkdir(parents=True)


REFUSED = [
    (add_named_pipe, "sub/odd: is a named pipe, which cannot be sent: remove it, or name it in"),
    (add_socket, "sub/odd: is a socket"),
    (add_link("/etc/passwd"), "sub/odd: is a link to /etc/passwd, an absolute path"),
    (add_link("../../other"), "sub/odd: is a link that leads out of the directory"),
    (add_link_by_another, "sub/odd: is a link that leads out of the directory"),
    (add_link_through_own_name, "sub/odd: is a link that leads out of the directory"),
    (add_link("odd"), "sub/odd: is a link that leads to itself"),
    (add_link_loop, "sub/odd: is a link that leads to itself"),
    (add_link("a\udcff"), "sub/odd: is a link to a name that is not UTF-8"),
    (add_odd_name, r"sub/odd\xff: has a name that is not UTF-8: rename it"),
    (add_deep_folders, "d: lies more than 100 folders deep"),
]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "train.py").write_text("print('hello')")
    return top


def refusal(top: Path) -> str:
    with pytest.raises(CodeRefused) as refused, pack_code(top):
        pass
    return "\n".join(refused.value.locations)


@pytest.mark.parametrize(("add", "words"), REFUSED)
def test_what_cannot_travel_is_named(top: Path, add: Callable[[Path], None], words: str) -> None:
    add(top)
    assert words in refusal(top)
    (top / ".gitignore").write_text("odd*\neven\nd\n")
    with pack_code(top) as packed:
        assert packed.entries >= 2


def test_a_device_is_named() -> None:
    assert re.search("null: is a device, which cannot be sent", refusal_of_devices())


def refusal_of_devices() -> str:
    packer = code.CodePacker()
    opened = os.open("/dev", os.O_RDONLY)
    try:
        with tarfile.open(fileobj=io.BytesIO(), mode="w") as archive:
            packer._pack_entry(archive, opened, ("null",), code.IgnoreRules())
    finally:
        os.close(opened)
    return "\n".join(map(str, packer.problems))


def test_all_problems_are_told_at_once(top: Path) -> None:
    add_named_pipe(top)
    for number in range(30):
        (top / f"link{number:02}").symlink_to("/srv")
    told = refusal(top).splitlines()
    assert len(told) == 21
    assert "sub/odd: is a named pipe" in told[0]
    assert "11 more problems" in told[-1]


def test_a_file_that_cannot_be_opened_is_named(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed since it was listed: nothing else keeps root from opening a file."""
    listed = os.listdir
    monkeypatch.setattr(code.os, "listdir", lambda opened: [*listed(opened), "odd"])
    assert "odd: cannot be read (No such file or directory)" in refusal(top)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MAX_PACKED_BYTES", "has more than 1 MiB packed: name data"),
        ("MAX_UNPACKED_BYTES", "has more than 1 MiB unpacked: name data"),
    ],
)
def test_too_much_is_refused(
    top: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    monkeypatch.setattr(code, limit, code.MEBIBYTE)
    (top / "data").write_bytes(os.urandom(2 * code.MEBIBYTE))
    assert words in refusal(top)


def test_too_many_files_are_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MAX_ENTRIES", 3)
    for number in range(4):
        (top / str(number)).touch()
    assert "has more than 3 files" in refusal(top)


def test_a_file_that_shrinks_meanwhile_is_named(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.fstat

    class Longer:
        def __init__(self, status: os.stat_result) -> None:
            self.st_mode, self.st_size = status.st_mode, status.st_size + 1

    monkeypatch.setattr(code.os, "fstat", lambda number: Longer(whole(number)))
    assert "train.py: cannot be read (unexpected end of data)" in refusal(top)


def test_a_directory_without_files_or_that_is_none_is_refused(top: Path) -> None:
    (top / ".gitignore").write_text("*")
    assert "holds no file that .gitignore does not leave out" in refusal(top)
    assert "is a file: name the directory" in refusal(top / "train.py")
    assert "there is no such directory" in refusal(top / "missing")


def test_git_itself_is_left_out(top: Path) -> None:
    (top / "sub/.git").mkdir()
    (top / "sub/.git/config").touch()
    with pack_code(top) as packed:
        assert packed.entries == 1


def test_nothing_follows_a_link_that_took_a_files_place(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is a link by the time it is opened, though it was none when it was looked at."""
    looked = os.stat

    def look(name: str, **options: object) -> os.stat_result:
        status = looked(name, **options)  # type: ignore[call-overload]
        if name == "train.py":
            (top / name).unlink()
            (top / name).symlink_to("/etc/passwd")
        return status  # type: ignore[no-any-return]

    monkeypatch.setattr(code.os, "stat", look)
    assert "train.py: cannot be read (Too many levels of symbolic links)" in refusal(top)


@contextmanager
def archived() -> Iterator[tuple[tarfile.TarFile, io.BytesIO]]:
    """Let a test write an archive that no client of ours would."""
    file = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=file, mode="wb") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        yield archive, file
    file.seek(0)


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


HOSTILE = [
    [entry("../out")],
    [entry("/out")],
    [entry("a/../../out")],
    [entry("a//out")],
    [entry("./out")],
    [entry("out", tarfile.SYMTYPE, "..")],
    [entry("out", tarfile.SYMTYPE, "/etc")],
    [entry("out", tarfile.SYMTYPE, "out")],
    [entry("dir", tarfile.SYMTYPE, "."), entry("dir/out")],
    [entry("dir", tarfile.SYMTYPE, "."), entry("dir/c/out", tarfile.SYMTYPE, "../../x")],
    [entry("a"), entry("out", tarfile.LNKTYPE, "a")],
    [entry("out", tarfile.FIFOTYPE)],
    [entry("out", tarfile.CHRTYPE)],
    [entry("out", tarfile.DIRTYPE)],
    [entry("out", tarfile.GNUTYPE_SPARSE)],
    [entry("a"), entry("a")],
    [entry("a"), entry("a/b")],
]


@pytest.mark.parametrize("entries", HOSTILE, ids=lambda each: each[-1].name)
def test_no_machine_unpacks_what_leads_out(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    with archived() as (archive, file):
        for each in entries:
            archive.addfile(each, io.BytesIO())
    goal = tmp_path / "inner/goal"
    goal.parent.mkdir()
    with pytest.raises(CodeUnusable):
        unpack_code(file, goal)
    assert [path.name for path in tmp_path.rglob("*")] == ["inner"]


@pytest.mark.parametrize("packed", [b"", b"no archive", gzip.compress(b"no tar" * 200, mtime=0)])
def test_no_machine_unpacks_what_is_no_archive(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(CodeUnusable, match="is no archive that can be unpacked"):
        unpack_code(io.BytesIO(packed), tmp_path / "goal")


def test_an_archive_that_was_cut_off_is_refused(top: Path, tmp_path: Path) -> None:
    (top / "data").write_bytes(os.urandom(50_000))
    with pack_code(top) as packed:
        half = packed.file.read()[: packed.size // 2]
    with pytest.raises(CodeUnusable, match="ends too early"):
        unpack_code(io.BytesIO(half), tmp_path / "goal")


def test_a_small_archive_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    bomb = entry("bomb")
    bomb.size = machine.MAX_UNPACKED_BYTES
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as packed:
        packed.write(bomb.tobuf())
        for _ in range(256):
            packed.write(bytes(machine.MEBIBYTE))
    assert file.tell() < 2 * machine.MEBIBYTE
    file.seek(0)
    with pytest.raises(CodeUnusable, match="unpacks to more than 256 MiB"):
        unpack_code(file, tmp_path / "goal")
    assert not (tmp_path / "goal").exists()


def test_a_disk_that_takes_no_more_is_told(top: Path, tmp_path: Path) -> None:
    (tmp_path / "goal").touch()
    with pack_code(top) as packed, pytest.raises(CodeUnusable, match="cannot be unpacked into"):
        unpack_code(packed.file, tmp_path / "goal" / "inner")
