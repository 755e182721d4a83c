"""What is packed is what git would track, and what is unpacked is what was packed."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.client.code import pack_code
from worker_agent.supervisor.code import unpack_code

NAMES = ["a", "b", "foo", "bar", "x.py", "y.pyc", "build", "a b", "#h", "!n", "[z]", "end ", "ü\n"]
PATTERNS = [
    *("a", "foo", "*", "**", "*.py", "*/", "**/", "!*/", "!*.py", "build/", "foo/*", "!foo/bar"),
    *("/a", "/foo/", "foo/**", "foo/**/", "**/bar", "a/**/b", "!a", "!b/", "?", "[ab]", "[!a]"),
    *("\\#h", "\\!n", "# c", "a b", "\\[z\\]", "!**/x.py", "f*o", "!foo", "/*", "b/*/a", "a\\"),
    *("[z", "", "/", "!", "end\\ ", "a  ", "foo**", "*/a", "[z-a]", "a//b", "**/*", "a\r"),
]
GIT = ("git", "-c", "core.excludesFile=/dev/null")
TRACKED = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")

contents = st.binary(max_size=40)
trees = st.recursive(
    st.tuples(contents, st.booleans()),
    lambda below: st.dictionaries(st.sampled_from(NAMES), below, min_size=1, max_size=5),
    max_leaves=20,
).filter(lambda tree: isinstance(tree, dict))
ignores = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.sampled_from(PATTERNS), max_size=5)), max_size=4
)


def grow(tree: object, place: Path, order: random.Random) -> None:
    """Write a tree, its entries in any order and with any times."""
    if isinstance(tree, dict):
        place.mkdir()
        for name in order.sample(sorted(tree), len(tree)):
            grow(tree[name], place / name, order)
        return
    assert isinstance(tree, tuple)
    content, is_executable = tree
    place.write_bytes(content)
    place.chmod(0o744 if is_executable else 0o600 + order.randrange(0o100))
    os.utime(place, (order.randrange(10**9), order.randrange(10**9)))


def files_below(top: Path) -> dict[str, tuple[bytes, bool]]:
    """Return the content of each file, and whether it can be executed."""
    found = [file for file in top.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {
        str(file.relative_to(top)): (file.read_bytes(), bool(file.stat().st_mode & stat.S_IXUSR))
        for file in found
    }


def packed_and_unpacked(source: Path, goal: Path) -> tuple[str, dict[str, tuple[bytes, bool]]]:
    with pack_code(source) as code:
        unpack_code(code.file, goal)
        return code.digest, files_below(goal)


@settings(max_examples=40)
@given(trees, ignores, st.integers(0, 8))
def test_what_arrives_is_what_git_would_track(tree, said, depth) -> None:  # type: ignore[no-untyped-def]
    """Also of a directory inside the repository, for which the files above it count, too."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name, "top")
        grow({**tree, "kept": (b"", False)}, top, random.Random(1))
        folders = [top, *sorted(path for path in top.rglob("*") if path.is_dir())]
        for number, patterns in said:
            file = folders[number % len(folders)] / ".gitignore"
            file.write_bytes("\n".join([*patterns, "!kept", "!.gitignore"]).encode())
        chosen = folders[depth % len(folders)]
        (chosen / "kept").write_bytes(b"")
        subprocess.run([*GIT, "init", "--quiet", top], check=True)
        listed = subprocess.run([*GIT, *TRACKED], cwd=chosen, capture_output=True, check=True)
        tracked = {os.fsdecode(path) for path in listed.stdout.split(b"\0") if path}
        if not tracked:
            return  # the whole of it is left out from above, but it was named
        everything = files_below(chosen)
        _, arrived = packed_and_unpacked(chosen, Path(name, "goal"))
        assert arrived == {path: everything[path] for path in tracked}


@settings(max_examples=20)
@given(trees, st.integers(), st.integers())
def test_equal_directories_give_equal_bytes(tree, one, other) -> None:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as name:
        digests = set()
        for number, seed in enumerate((one, other)):
            source = Path(name, f"source{number}")
            grow(tree, source, random.Random(seed))
            with pack_code(source) as code:
                digests.add((code.digest, code.file.read()))
        assert len(digests) == 1


@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_link_inside_arrives_as_it_is(tmp_path: Path, up: int) -> None:
    source, goal = tmp_path / "source", tmp_path / "goal"
    grow({"kept": (b"seen", False), "deep": {"er": {}}}, source, random.Random(1))
    target = "../" * up + "kept"
    (source / "deep/er/link").symlink_to(target)
    with pack_code(source) as code:
        unpack_code(code.file, goal)
    assert os.readlink(goal / "deep/er/link") == target
    assert (goal / "deep/er/link").exists() == (up == 2)
    assert goal.stat().st_mode & 0o777 == 0o700
