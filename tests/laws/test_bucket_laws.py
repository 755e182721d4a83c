"""Laws of checkpoints in a bucket, over any sequence of what machines and the controller do.

What is offered is complete, has the hashes that were told, and is the newest of what was finished
and is not given up; and the bucket holds a bounded number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sqlalchemy import Engine

from scavenger.checkpoints import CheckpointUpload, UploadTarget
from service.db.checkpoints import TRANSFER_SPAN
from tests.conformance.object_stores import put
from tests.fakecloud.object_doors import OpenBucket, open_bucket
from tests.integration.keeper import Keeper, Worker, fetch, open_keeper, upload_of

KEEP, WORKERS, PARTS = 2, 3, 2
TARGET = TypeAdapter(UploadTarget)


@dataclass(frozen=True)
class Save:
    """A worker saves a checkpoint, and perhaps dies after so many requests of it."""

    worker: int
    generation: int
    iteration: int
    requests: int
    is_repeated: bool = False


@dataclass(frozen=True)
class Read:
    """A worker looks for a checkpoint, and passes over so many."""

    worker: int
    passed_over: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Tidy:
    """The controller deletes what it may; perhaps the bucket fails."""

    fails: bool


WORKER = st.integers(1, WORKERS)
STEPS = st.lists(
    st.one_of(
        st.builds(
            Save,
            WORKER,
            st.integers(1, 3),
            st.integers(1, 6),
            # The announcement, the parts, and the end; at most one of these is the last.
            st.integers(0, PARTS + 1) | st.just(PARTS + 1),
            st.booleans(),
        ),
        st.builds(Read, WORKER, st.integers(0, 3)),
        st.builds(Wait, st.sampled_from([1.0, 61.0, TRANSFER_SPAN.total_seconds()])),
        st.builds(Tidy, st.booleans()),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBucket]:
    with open_bucket("aws", tmp_path_factory.mktemp("keys")) as bucket:
        yield bucket


@pytest.fixture
def keeper(engine: Engine, bucket: OpenBucket) -> Iterator[Keeper]:
    bucket.shelf.clear()
    with open_keeper(engine, bucket.store, bucket.shelf) as keeper:
        yield keeper


@dataclass
class Model:
    """What must be true of a job's checkpoints.

    Attributes:
        contents: Of every checkpoint that was ever begun.
        finished: Those that must be offered, newest first: the order of their names.
    """

    keeper: Keeper
    machines: dict[int, Worker] = field(default_factory=dict)
    contents: dict[str, list[bytes]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    def run(self, steps: list[Save | Read | Wait | Tidy]) -> None:
        """Take the steps, and check after each what is offered."""
        self.machines = {number: self.keeper.launch(number) for number in range(1, WORKERS + 1)}
        for step in steps:
            match step:
                case Save():
                    self.save(step)
                case Wait(seconds):
                    self.keeper.wait(seconds)
                case Tidy(fails):
                    if fails:
                        self.keeper.shelf.fail("DELETE", "lose answer", "refuse")
                    self.keeper.tidy()
                    self.keeper.shelf.faults.clear()
                case Read(worker, passed_over):
                    self.read(self.machines[worker], passed_over)
            self.read(self.machines[1], 0)
            held = self.keeper.kept()
            assert held <= self.contents.keys(), "nothing else is there"
            assert held >= set(self.finished)
        self.keeper.wait(TRANSFER_SPAN.total_seconds())
        self.keeper.tidy()
        assert self.keeper.kept() == set(self.finished), "the newest stay, and no other"

    def save(self, step: Save) -> None:
        contents = [
            f"{step.worker} {step.iteration}".encode(),
            b"weights of " + repr(step).encode(),
        ]
        upload = upload_of(step.generation, step.iteration, contents)
        self.contents[upload.id] = contents
        for _ in range(1 + step.is_repeated):
            self.send(self.machines[step.worker], upload, step.requests)

    def send(self, machine: Worker, upload: CheckpointUpload, requests: int) -> None:
        """Send a checkpoint as machines do, which may die after some of its requests."""
        announced = machine.announce(upload)
        if announced.status_code == 409:  # it is being deleted, or its machine gave it up
            assert upload.id not in self.finished
            return
        target = TARGET.validate_json(announced.content)
        assert target.is_complete == (upload.id in self.finished)
        parts = list(zip(target.requests, self.contents[upload.id], strict=False))
        for request, content in parts[:requests]:
            assert put(request, content) in (200, 412)
        if requests <= PARTS:
            return
        ended = machine.announce(upload, is_sent=True)
        newest = sorted({*self.finished, upload.id}, reverse=True)[:KEEP]
        assert (ended.status_code == 200) == (upload.id in newest)
        self.finished = newest

    def read(self, machine: Worker, passed_over: int) -> None:
        """Look for the newest, pass over some, and fetch what is offered then."""
        offered = machine.newest()
        for _ in range(passed_over):
            offered = offered and machine.newest(offered.checkpoint)
        wanted = self.finished[passed_over : passed_over + 1]
        assert ([] if offered is None else [offered.checkpoint]) == wanted
        if offered is not None:
            assert fetch(offered) == self.contents[offered.checkpoint]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_only_complete_checkpoints_are_offered_newest_first_and_few_are_kept(
    keeper: Keeper, steps: list[Save | Read | Wait | Tidy]
) -> None:
    keeper.submit(checkpoints={"keep": KEEP})
    Model(keeper).run(steps)
