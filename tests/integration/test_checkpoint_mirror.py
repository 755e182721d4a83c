"""An agent, a controller and a bucket: checkpoints go from one machine's disk to another's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from tests.controller_double import until
from tests.fakecloud.object_doors import OpenBucket, open_bucket
from tests.integration.keeper import Keeper, open_keeper
from worker_agent.controller import ControllerClient
from worker_agent.errors import BucketUnavailable, ControllerRefused
from worker_agent.state import bucket as agent_bucket
from worker_agent.state.bucket import CheckpointBucket
from worker_agent.state.checkpoint_directory import checkpoint_path
from worker_agent.state.checkpoint_file import CheckpointOrigin
from worker_agent.state.checkpoints import Checkpointer, write_checkpoint
from worker_agent.state.progress import HostArray, TrainingProgress, TrainingSnapshot
from worker_agent.supervisor.mirror import CheckpointMirror

WEIGHTS = 5000


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBucket]:
    with open_bucket("aws", tmp_path_factory.mktemp("keys")) as bucket:
        yield bucket


@pytest.fixture
def keeper(engine: Engine, opened: OpenBucket) -> Iterator[Keeper]:
    opened.shelf.clear()
    with open_keeper(engine, opened.store, opened.shelf) as keeper:
        keeper.submit(checkpoints={"keep": 3})
        yield keeper


@pytest.fixture
def url(keeper: Keeper) -> Iterator[str]:
    with keeper.serve() as url:
        yield url


@dataclass
class Disk:
    """The disk of one machine, and its way to the bucket; no test waits for a pause."""

    keeper: Keeper
    url: str
    root: Path
    number: int

    def __post_init__(self) -> None:
        self.slept: list[float] = []
        env = self.keeper.launch(self.number).env(self.url)
        ticks = count(0, 1)
        self.controller = ControllerClient(env)
        self.bucket = CheckpointBucket(
            self.controller,
            part_bytes=4096,
            sleep=self.slept.append,
            stopwatch=lambda: float(next(ticks)),
        )
        self.directory = self.root / f"machine-{self.number}"

    def close(self) -> None:
        self.bucket.close()
        self.controller._http.close()

    def write(self, iteration: int, generation: int = 1) -> Path:
        """Write a checkpoint that can be recognised by its iteration."""
        weights = np.full(WEIGHTS, iteration, dtype=np.float32)
        arrays = {"weight": HostArray("float32", (WEIGHTS,), weights.tobytes())}
        progress = TrainingProgress(iteration=iteration)
        snapshot = TrainingSnapshot(progress, {"dict": [["it", iteration]]}, arrays)
        origin = CheckpointOrigin(self.keeper.job, generation, 12.5)
        return write_checkpoint(self.directory, snapshot, origin, keep=9)

    def restored(self) -> int | None:
        """Return the iteration from which training would go on; its content must be its own."""
        checkpointer = Checkpointer(
            self.directory, self.keeper.job, every=60.0, keep=3, bucket=self.bucket
        )
        snapshot = checkpointer.newest()
        if snapshot is None:
            return None
        weights = np.frombuffer(snapshot.arrays["weight"].content, np.float32)
        assert set(weights.tolist()) == {float(snapshot.progress.iteration)}
        return snapshot.progress.iteration


@pytest.fixture
def disks(keeper: Keeper, url: str, tmp_path: Path) -> Iterator[tuple[Disk, Disk]]:
    opened = Disk(keeper, url, tmp_path, 1), Disk(keeper, url, tmp_path, 2)
    yield opened
    for disk in opened:
        disk.close()


def test_another_machine_goes_on_from_what_one_has_sent(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    assert there.restored() is None
    here.bucket.send(here.write(10))
    names = here.keeper.shelf.names()
    assert sum("state.safetensors" in name for name in names) == 5, "it travelled in parts"
    assert there.restored() == 10
    content = [checkpoint_path(disk.directory, 10).joinpath("state.json") for disk in disks]
    assert content[0].read_bytes() == content[1].read_bytes()


def test_what_is_sent_twice_is_there_once(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    here.bucket.send(here.write(10))
    puts = len([method for method, *_ in here.keeper.shelf.answered if method == "PUT"])
    here.bucket.send(checkpoint_path(here.directory, 10))
    assert there.restored() == 10
    there.bucket.send(checkpoint_path(there.directory, 10))
    assert len([method for method, *_ in here.keeper.shelf.answered if method == "PUT"]) == puts


@pytest.mark.parametrize("fault", ["truncate", "alter"])
def test_a_download_that_is_not_what_was_told_gives_the_one_before(
    disks: tuple[Disk, Disk], fault: str
) -> None:
    here, there = disks
    for iteration in (10, 20):
        here.bucket.send(here.write(iteration))
    here.keeper.shelf.fail("GET", *[fault] * agent_bucket.MAX_ALTERED)  # type: ignore[list-item]
    assert there.restored() == 10
    (told,) = here.keeper.events("checkpoint_trouble")
    assert "the checkpoint of iteration 20 is passed over" in told
    assert sorted(path.name for path in there.directory.iterdir()) == [f"{10:012}"]


def test_a_download_that_is_cut_off_once_is_fetched_again(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    here.bucket.send(here.write(10))
    here.keeper.shelf.fail("GET", "truncate", "alter")
    assert there.restored() == 10
    assert here.keeper.events("checkpoint_trouble") == []


def test_a_bucket_that_is_away_for_a_while_is_asked_again(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    here.bucket.send(here.write(10))
    here.keeper.shelf.fail("GET", "lose", "refuse", "lose")
    assert there.restored() == 10
    assert len(there.slept) == 3
    assert len(here.keeper.events("checkpoint_trouble")) == 2


def test_a_bucket_that_stays_away_ends_the_search_in_the_end(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    here.bucket.send(here.write(10))
    here.keeper.shelf.denied.add("GET")
    assert there.restored() is None
    assert there.slept


def test_the_newer_of_disk_and_bucket_is_used(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    here.bucket.send(here.write(10))
    there.write(20)
    assert there.restored() == 20
    here.bucket.send(here.write(5, generation=2))
    assert there.restored() == 5, "a later generation is newer"


def test_an_object_that_was_deleted_gives_the_one_before(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    for iteration in (10, 20):
        here.bucket.send(here.write(iteration))
    objects = here.keeper.shelf.objects
    del objects[next(name for name in objects if f"{20:012}" in name)]
    assert there.restored() == 10


def test_an_upload_that_fails_half_way_is_sent_again(disks: tuple[Disk, Disk]) -> None:
    here, there = disks
    for fault in ("lose", "lose answer", "refuse"):
        here.keeper.shelf.fail("PUT", fault)  # type: ignore[arg-type]
        with pytest.raises(BucketUnavailable) as caught:
            here.bucket.send(here.write(10))
        assert "X-Amz" not in str(caught.value)
        assert there.restored() is None
    here.bucket.send(here.write(10))
    assert there.restored() == 10


def test_a_checkpoint_that_is_deleted_meanwhile_is_sent_to_its_end(
    disks: tuple[Disk, Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = disks
    path = here.write(10)
    announce = ControllerClient.put_checkpoint

    def announce_and_delete(self: ControllerClient, upload):  # type: ignore[no-untyped-def]
        if path.exists():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        return announce(self, upload)

    monkeypatch.setattr(ControllerClient, "put_checkpoint", announce_and_delete)
    here.bucket.send(path)
    monkeypatch.undo()
    assert there.restored() == 10


def test_a_job_without_a_bucket_hears_it_once(disks: tuple[Disk, Disk]) -> None:
    here, _ = disks
    here.keeper.submit(checkpoints={"directory": "/data"})
    stranger = Disk(here.keeper, here.url, here.root, 3)
    with pytest.raises(ControllerRefused) as caught:
        stranger.bucket.send(here.write(10))
    assert caught.value.status == 404
    assert stranger.restored() is None
    stranger.close()


def test_a_script_under_agent_run_finds_on_its_disk_what_was_in_the_bucket(
    disks: tuple[Disk, Disk],
) -> None:
    here, there = disks
    assert there.bucket.fetch_if_newer(there.directory) is None
    here.bucket.send(here.write(10, generation=2))
    there.write(20, generation=1)
    fetched = there.bucket.fetch_if_newer(there.directory)
    assert fetched == checkpoint_path(there.directory, 10)
    assert agent_bucket.progress_of(fetched) == TrainingProgress(iteration=10)
    assert there.bucket.fetch_if_newer(there.directory) is None, "it is there now"


# The mirror


def mirror_of(disk: Disk) -> CheckpointMirror:
    return CheckpointMirror(disk.bucket, disk.directory, look_interval=0.01, retry_interval=0.01)


def kept_iterations(keeper: Keeper) -> set[int]:
    return {int(name.split("-")[1]) for name in keeper.kept()}


def test_the_mirror_sends_what_is_written_and_at_the_end_what_was_last(
    disks: tuple[Disk, Disk],
) -> None:
    here, there = disks
    mirror = mirror_of(here)
    mirror.start()
    here.write(10)
    until(lambda: there.restored() == 10)
    here.write(20)
    mirror.close(60.0)
    assert not mirror.is_alive()
    assert there.restored() == 20


def test_a_bucket_that_refuses_is_told_once_and_the_newest_is_sent_when_it_takes_it(
    disks: tuple[Disk, Disk],
) -> None:
    here, there = disks
    shelf = here.keeper.shelf
    shelf.denied.add("PUT")
    mirror = mirror_of(here)
    mirror.start()
    here.write(10)
    until(lambda: len([status for *_, status in shelf.answered if status == 403]) > 3)
    for iteration in (20, 30):
        here.write(iteration)
    shelf.denied.clear()
    until(lambda: there.restored() == 30)
    mirror.close(60.0)
    (told,) = here.keeper.events("checkpoint_trouble")
    assert told.endswith("not put into the bucket: the bucket answered 403 to an upload")


def test_a_bucket_that_hangs_holds_up_no_end(disks: tuple[Disk, Disk]) -> None:
    here, _ = disks
    here.keeper.shelf.fail("PUT", "hang")
    mirror = mirror_of(here)
    mirror.start()
    here.write(10)
    until(lambda: not here.keeper.shelf.faults["PUT"])
    mirror.close(0.05)
    assert mirror.is_alive()
    assert mirror.daemon, "it keeps no process alive"
    here.keeper.shelf.released.set()
    until(lambda: not mirror.is_alive())
