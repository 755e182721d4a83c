"""A checkpoint is the whole truth or none, whenever its writer dies or its disk fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.controller_double import LONG, until
from worker_agent.state import checkpoint_file, checkpoints
from worker_agent.state.checkpoint_file import CheckpointOrigin
from worker_agent.state.checkpoints import Checkpointer
from worker_agent.state.progress import HostArray, TrainingProgress, TrainingSnapshot

JOB = "job"


def make(iteration: int, size: int = 50) -> TrainingSnapshot:
    """Return a snapshot that can be recognised by its iteration."""
    weights = np.full(size, iteration, dtype=np.float32)
    arrays = {
        "parameters/weight": HostArray("float32", (size,), weights.tobytes()),
        "empty": HostArray("bfloat16", (0, 3), b""),
        "scalar": HostArray("int64", (), np.int64(iteration).tobytes()),
    }
    return TrainingSnapshot(
        TrainingProgress(iteration=iteration), {"dict": [["it", iteration]]}, arrays
    )


def save(directory: Path, iteration: int, *, generation: int = 1, keep: int = 3) -> Path:
    origin = CheckpointOrigin(JOB, generation, 12.5)
    return checkpoints.write_checkpoint(directory, make(iteration), origin, keep=keep)


def newest(directory: Path) -> int | None:
    """Return the iteration of the newest checkpoint, whose content must be its own."""
    found = checkpoints.newest_checkpoint(directory, JOB)
    if found is None:
        return None
    snapshot, _ = found
    weights = np.frombuffer(snapshot.arrays["parameters/weight"].content, np.float32)
    assert set(weights.tolist()) == {float(snapshot.progress.iteration)}
    assert snapshot.tree == {"dict": [["it", snapshot.progress.iteration]]}
    return snapshot.progress.iteration


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pristine")
    save(directory, 1)
    save(directory, 2)
    return directory


@contextlib.contextmanager
def copied(directory: Path) -> Iterator[Path]:
    copy = directory.with_name(f"{directory.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    yield copy
    shutil.rmtree(copy)


files = st.sampled_from([checkpoint_file.TENSORS_FILE, checkpoint_file.MANIFEST_FILE])
FAST = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_what_is_written_is_read(pristine: Path) -> None:
    found = checkpoints.newest_checkpoint(pristine, JOB)
    assert found is not None
    snapshot, origin = found
    wanted = make(2)
    assert origin == CheckpointOrigin(JOB, 1, 12.5)
    assert (snapshot.progress, snapshot.tree) == (wanted.progress, wanted.tree)
    assert {
        name: (array.dtype, array.shape, bytes(array.content))
        for name, array in snapshot.arrays.items()
    } == {name: (array.dtype, array.shape, array.content) for name, array in wanted.arrays.items()}


@given(files, st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@FAST
def test_a_checkpoint_with_any_byte_changed_is_passed_over(
    pristine: Path, name: str, place: float, change: int
) -> None:
    with copied(pristine) as directory:
        path = directory / f"{2:012}" / name
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= change
        path.write_bytes(content)
        assert newest(directory) == 1


@given(files, st.floats(0, 1, exclude_max=True), st.sampled_from([b"", b"\0", b" ", b"}"]))
@FAST
def test_a_checkpoint_that_is_cut_or_longer_is_passed_over(
    pristine: Path, name: str, place: float, more: bytes
) -> None:
    with copied(pristine) as directory:
        path = directory / f"{2:012}" / name
        content = path.read_bytes()
        path.write_bytes(content + more if more else content[: int(place * len(content))])
        assert newest(directory) == 1


def disguise(place: Path, kind: str) -> None:
    """Replace a part of a checkpoint by something that is there to harm its reader."""
    tensors = place / checkpoint_file.TENSORS_FILE
    match kind:
        case "missing":
            tensors.unlink()
        case "link":
            tensors.rename(place / "elsewhere")
            tensors.symlink_to(place / "elsewhere")
        case "pipe":
            tensors.unlink()
            os.mkfifo(tensors)
        case "terabytes":
            os.truncate(tensors, 1 << 42)
        case "terabytes, as announced":
            os.truncate(tensors, 1 << 42)
            forge(place, {"size": 1 << 42})
        case "linked directory":
            place.rename(place.with_name("elsewhere"))
            place.symlink_to(place.with_name("elsewhere"))
        case "another format":
            forge(place, {"format": 2})
        case "another job":
            forge(place, {"origin": {"job": "theirs", "generation": 9, "written_at": 0.0}})
        case "deep":
            body = b'{"tree":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            (place / checkpoint_file.MANIFEST_FILE).write_bytes(checkpoint_file.add_own_hash(body))


def forge(place: Path, changes: dict[str, object]) -> None:
    """Alter what a checkpoint says and seal it again."""
    rest = place / checkpoint_file.MANIFEST_FILE
    body = {**json.loads(rest.read_bytes())["body"], **changes}
    rest.write_bytes(checkpoint_file.add_own_hash(json.dumps(body).encode()))


@pytest.mark.parametrize(
    "kind",
    [
        *("missing", "link", "pipe", "terabytes", "terabytes, as announced", "linked directory"),
        *("another format", "another job", "deep"),
    ],
)
def test_a_hostile_checkpoint_is_passed_over(
    pristine: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with copied(pristine) as directory:
        disguise(directory / f"{2:012}", kind)
        assert newest(directory) == 1
        assert len(caplog.records) == (0 if kind == "linked directory" else 1)


def forged_tensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda shape, start, end: forged_tensors(
            json.dumps(
                {"../../x": {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}}
            ).encode()
        ),
        st.lists(st.integers(0, 1 << 62), max_size=3),
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
    )
    | st.integers(0, (1 << 64) - 1).map(lambda size: size.to_bytes(8, "little") + b"{}")
)
@settings(max_examples=150)
def test_a_forged_tensor_file_allocates_and_escapes_nothing(content: bytes) -> None:
    with contextlib.suppress(checkpoint_file.CheckpointUnreadable):
        arrays = checkpoint_file.parse_arrays(content)
        assert sum(len(array.content) for array in arrays.values()) <= len(content)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=9),
    st.integers(1, 4),
)
@settings(max_examples=40)
def test_few_are_kept_and_the_one_just_written_is_among_them(
    tmp_path_factory: pytest.TempPathFactory, saves: list[tuple[int, int]], keep: int
) -> None:
    directory = tmp_path_factory.mktemp("few")
    for iteration, generation in saves:
        written = save(directory, iteration, generation=generation, keep=keep)
        assert written.is_dir()
        assert len(list(directory.iterdir())) <= keep
        assert newest(directory) is not None


def test_a_group_that_was_given_up_does_not_displace_its_heir(tmp_path: Path) -> None:
    for iteration in (100, 110, 120):
        save(tmp_path, iteration, generation=2)
    save(tmp_path, 500, generation=1)
    assert newest(tmp_path) == 120
    save(tmp_path, 130, generation=2)
    assert {int(place.name) for place in tmp_path.iterdir()} == {110, 120, 130}


def test_a_damaged_one_of_the_same_iteration_is_replaced_and_an_intact_one_kept(
    tmp_path: Path,
) -> None:
    place = save(tmp_path, 5)
    before = (place / checkpoint_file.MANIFEST_FILE).stat().st_ino
    save(tmp_path, 5)
    assert (place / checkpoint_file.MANIFEST_FILE).stat().st_ino == before
    (place / checkpoint_file.TENSORS_FILE).write_bytes(b"torn")
    save(tmp_path, 5)
    assert newest(tmp_path) == 5


def test_another_jobs_checkpoints_are_neither_read_nor_replaced_nor_deleted(tmp_path: Path) -> None:
    theirs = CheckpointOrigin("theirs", 7, 0.0)
    checkpoints.write_checkpoint(tmp_path, make(1), theirs, keep=3)
    checkpoints.write_checkpoint(tmp_path, make(50), theirs, keep=3)
    assert newest(tmp_path) is None
    with pytest.raises(FileExistsError, match="job theirs"):
        save(tmp_path, 1)
    for iteration in (2, 3, 4):
        save(tmp_path, iteration, keep=1)
    assert newest(tmp_path) == 4
    assert {int(place.name) for place in tmp_path.iterdir()} == {1, 4, 50}


def test_strangers_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000000000001.bak").mkdir()
    (tmp_path / f".{3:012}.{'a' * 12}.unfinished").mkdir()
    for iteration in range(4):
        save(tmp_path, iteration, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("000000000001.bak", "000000000003", "notes.txt")
    ]


def start_writer(directory: Path, start: int) -> tuple[int, int]:
    """Fork a process that writes one checkpoint after another; returns its id and what it says."""
    heard, says = os.pipe()
    process = os.fork()
    if process:
        os.close(says)
        return process, heard
    try:
        for iteration in range(start, start + 100_000):
            origin = CheckpointOrigin(JOB, 1, 0.0)
            checkpoints.write_checkpoint(directory, make(iteration, 100_000), origin, keep=3)
            os.write(says, b"%d\n" % iteration)
    finally:
        os._exit(1)


def test_killed_at_any_moment_the_last_one_that_was_finished_can_be_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    finished = -1
    for _ in range(20):
        process, heard = start_writer(tmp_path, finished + 1)
        with os.fdopen(heard, "rb") as lines:
            finished = int(lines.readline())
            time.sleep(rng.uniform(0, 0.03))
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            finished = max([finished, *map(int, lines.read().split())])
        found = newest(tmp_path)
        assert found in (finished, finished + 1)  # renamed, but killed before it said so
        finished = found
    complete = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(complete) <= 4
    save(tmp_path, finished + 1)
    assert len(list(tmp_path.iterdir())) == 3


# The thread that writes.


def checkpointer(directory: Path, every: float = 0.0) -> Checkpointer:
    return Checkpointer(directory, JOB, every=every)


class Held:
    """A snapshot whose copies arrive when the test lets them, and that counts its releases."""

    def __init__(self, iteration: int) -> None:
        self.arrived, self.waited = threading.Event(), threading.Event()
        self.releases = 0
        plain = make(iteration)
        self.snapshot = TrainingSnapshot(
            plain.progress, plain.tree, plain.arrays, self.wait, self.release
        )

    def wait(self) -> None:
        self.waited.set()
        assert self.arrived.wait(LONG)

    def release(self) -> None:
        self.releases += 1


def test_of_the_snapshots_that_wait_only_the_last_is_written(tmp_path: Path) -> None:
    writer = checkpointer(tmp_path)
    held = [Held(iteration) for iteration in range(1, 6)]
    assert writer.is_due()
    writer.submit(held[0].snapshot, 1)
    assert held[0].waited.wait(LONG)
    for one in held[1:]:
        assert not writer.is_due()
        writer.submit(one.snapshot, 1)
    for one in held:
        one.arrived.set()
    assert writer.close(LONG)
    assert sorted(int(place.name) for place in tmp_path.iterdir()) == [1, 5]
    assert [one.releases for one in held] == [1] * 5
    found = checkpointer(tmp_path).newest()
    assert found is not None
    assert found.progress.iteration == 5


def test_closing_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    writer = checkpointer(tmp_path)
    held = Held(1)
    writer.submit(held.snapshot, 1)
    # It would be true, or never come, if it waited for what is held.
    assert not writer.close(0.05)
    held.arrived.set()
    assert writer.close(LONG)


def test_the_next_is_due_a_period_after_the_last_was_taken(tmp_path: Path) -> None:
    writer = checkpointer(tmp_path, every=60)
    assert not writer.is_due()
    writer.taken_at -= 61
    assert writer.is_due()
    writer.submit(make(1), 1)
    assert not writer.is_due()
    assert writer.close(LONG)


def test_what_fails_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory should be")
    writer = checkpointer(blocked)
    for iteration in range(3):
        writer.submit(make(iteration), 1)
        until(lambda: not writer.is_writing and writer.waiting is None)
    assert len(caplog.records) == 1
    assert "Training goes on" in caplog.text
    blocked.unlink()
    writer.submit(make(9), 1)
    assert writer.close(LONG)
    assert newest(blocked) == 9


FULL = """
import logging, os, resource, signal, sys
from pathlib import Path
from tests.laws.test_checkpoint_laws import checkpointer, make

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
writer = checkpointer(Path(sys.argv[1]))
writer.submit(make(1, 100_000), 1)
assert writer.close(30)
print("alive")
"""


def test_a_disk_that_takes_no_more_leaves_nothing_half_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "alive\n"
    assert "no checkpoint was written" in done.stderr
    assert list(tmp_path.iterdir()) == []
