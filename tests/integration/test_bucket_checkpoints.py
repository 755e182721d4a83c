"""Checkpoints in a bucket: what machines of one job may send, and what they are offered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from scavenger.checkpoints import CheckpointPart, CheckpointUpload
from scavenger.protocol import WorkerSpec
from service.api.enrolment import worker_spec
from service.clouds.storage import CheckpointStorage
from service.db import jobs, vms
from service.db.checkpoints import MAX_UNFINISHED, TRANSFER_SPAN
from tests.fakecloud.object_doors import OpenBucket, open_bucket
from tests.integration.keeper import Keeper, fetch, open_keeper, upload_of

CONTENTS = [b"the manifest", b"the weights" * 100]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBucket]:
    with open_bucket("aws", tmp_path_factory.mktemp("keys")) as bucket:
        yield bucket


@pytest.fixture
def keeper(engine: Engine, bucket: OpenBucket) -> Iterator[Keeper]:
    bucket.shelf.clear()
    with open_keeper(engine, bucket.store, bucket.shelf) as keeper:
        keeper.submit(checkpoints={"keep": 2})
        yield keeper


def contents_of(iteration: int) -> list[bytes]:
    return [f"manifest {iteration}".encode(), f"weights {iteration}".encode() * 50]


def test_what_was_saved_is_offered_to_every_machine_of_the_job(keeper: Keeper) -> None:
    first, second = keeper.launch(1), keeper.launch(2)
    assert first.newest() is None
    saved = first.save(3, 10, CONTENTS)
    offered = second.newest()
    assert offered is not None
    assert (offered.checkpoint, offered.generation, offered.iteration) == (saved.id, 3, 10)
    assert fetch(offered) == CONTENTS
    assert second.newest(offered.checkpoint) is None
    (told,) = keeper.events("checkpoints")
    assert told.endswith(f"/{keeper.job} from iteration 10 on")


def test_google_is_no_different(engine: Engine, tmp_path: Path) -> None:
    with (
        open_bucket("google", tmp_path) as bucket,
        open_keeper(engine, bucket.store, bucket.shelf) as keeper,
    ):
        keeper.submit(checkpoints={"keep": 2})
        worker = keeper.launch(1)
        saved = [worker.save(1, n, contents_of(n)).id for n in (1, 2, 3)]
        offered = worker.newest()
        assert offered is not None
        assert fetch(offered) == contents_of(3)
        assert keeper.tidy() == 1
        assert keeper.kept() == set(saved[1:])


def test_of_two_the_later_generation_is_newer_and_then_the_later_iteration(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    for generation, iteration in ((2, 50), (3, 40), (3, 45)):
        worker.save(generation, iteration, contents_of(iteration))
    order = []
    offered = worker.newest()
    while offered is not None:
        order.append((offered.generation, offered.iteration))
        offered = worker.newest(offered.checkpoint)
    assert order == [(3, 45), (3, 40)]


def test_what_is_not_all_there_is_offered_to_none(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    upload = upload_of(1, 10, CONTENTS)
    target = worker.begin(upload)
    assert len(target.requests) == 2
    answer = worker.announce(upload, is_sent=True)
    assert answer.status_code == 503
    assert "state.json.0 is not in s3://kept/team/ours as it was told" in answer.text
    assert worker.newest() is None


def test_a_checkpoint_that_is_there_is_not_sent_again(keeper: Keeper) -> None:
    first, second = keeper.launch(1), keeper.launch(2)
    saved = first.save(1, 10, CONTENTS)
    assert second.begin(saved).is_complete
    assert second.announce(saved, is_sent=True).status_code == 200


def test_an_answer_that_is_lost_costs_nothing(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    upload = upload_of(1, 10, CONTENTS)
    assert worker.send(upload, CONTENTS) == [200, 200]
    assert worker.send(upload, CONTENTS) == [412, 412]
    for _ in range(2):
        assert worker.announce(upload, is_sent=True).status_code == 200
    assert keeper.kept() == {upload.id}


def test_older_ones_go_and_the_newest_stay(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    saved = [worker.save(1, n, contents_of(n)).id for n in range(1, 6)]
    assert keeper.kept() == set(saved)
    assert keeper.tidy() == 3
    assert keeper.kept() == set(saved[-2:])
    assert keeper.tidy() == 0
    keeper.wait(TRANSFER_SPAN.total_seconds() * 10)
    assert keeper.tidy() == 0, "also when nothing is written for long"


def test_one_that_may_be_being_read_stays_for_as_long(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    read = worker.save(1, 1, contents_of(1))
    offered = worker.newest()
    assert offered is not None
    for n in (2, 3, 4):
        worker.save(1, n, contents_of(n))
    keeper.tidy()
    assert fetch(offered) == contents_of(1)
    keeper.wait(TRANSFER_SPAN.total_seconds())
    keeper.tidy()
    assert read.id not in keeper.kept()


def test_what_a_dead_machine_began_goes_once_no_request_of_it_holds(keeper: Keeper) -> None:
    worker, other = keeper.launch(1), keeper.launch(2)
    upload = upload_of(1, 10, CONTENTS)
    worker.send(upload, CONTENTS)
    assert keeper.tidy() == 0
    keeper.wait(TRANSFER_SPAN.total_seconds())
    assert keeper.tidy() == 1
    assert keeper.kept() == set()
    assert other.newest() is None


def test_a_machine_that_begins_another_gives_up_the_one_before(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    abandoned = upload_of(1, 10, CONTENTS)
    worker.send(abandoned, CONTENTS)
    saved = worker.save(1, 11, contents_of(11))
    answer = worker.announce(abandoned, is_sent=True)
    assert answer.status_code == 409
    assert "given up" in answer.text
    keeper.wait(61)
    assert keeper.tidy() == 1
    assert keeper.kept() == {saved.id}


def test_machines_that_die_while_they_send_do_not_fill_the_bucket(keeper: Keeper) -> None:
    for number in range(1, MAX_UNFINISHED + 1):
        keeper.launch(number).begin(upload_of(1, number, contents_of(number)))
    last = keeper.launch(MAX_UNFINISHED + 1)
    refused = last.announce(upload_of(1, 100, CONTENTS))
    assert refused.status_code == 409
    assert "too many uploads" in refused.text
    keeper.wait(TRANSFER_SPAN.total_seconds())
    last.save(1, 100, CONTENTS)


@pytest.mark.parametrize(
    ("upload", "status"),
    [
        (upload_of(10**6, 1, CONTENTS), 409),  # a generation that never was
        (replace(upload_of(1, 1, CONTENTS), generation=-1), 422),
        (replace(upload_of(1, 1, CONTENTS), parts=()), 422),
        (CheckpointUpload(1, 1, (CheckpointPart("state.json", 2**40, "0" * 64),)), 422),
        (CheckpointUpload(1, 1, (CheckpointPart("state.json", 1, "../x"),)), 422),
    ],
)
def test_what_no_machine_means_is_refused(
    keeper: Keeper, upload: CheckpointUpload, status: int
) -> None:
    worker = keeper.launch(1)
    assert worker.announce(upload).status_code == status
    assert keeper.kept() == set()


def test_a_name_is_that_of_its_parts(keeper: Keeper) -> None:
    worker, upload = keeper.launch(1), upload_of(1, 1, CONTENTS)
    body = {"generation": 1, "iteration": 1, "parts": [vars_of(part) for part in upload.parts]}
    other = upload_of(1, 2, CONTENTS).id
    assert worker.ask("PUT", other, json=body).status_code == 422
    assert worker.ask("PUT", "x", json=body).status_code == 422
    assert worker.ask("GET", "newest", params={"older_than": "x"}).status_code == 422


def vars_of(part: CheckpointPart) -> dict[str, object]:
    return {"file": part.file, "size": part.size, "sha256": part.sha256}


def test_a_bucket_that_refuses_or_is_away_is_a_problem_of_its_own(keeper: Keeper) -> None:
    worker, upload = keeper.launch(1), upload_of(1, 1, CONTENTS)
    worker.send(upload, CONTENTS)
    keeper.shelf.denied.add("HEAD")
    refused = worker.announce(upload, is_sent=True)
    assert refused.status_code == 503
    assert "bucket_unavailable" in refused.text
    assert "allow" in refused.text
    assert worker.newest() is None
    keeper.shelf.denied.clear()
    assert worker.announce(upload, is_sent=True).status_code == 200


def test_what_cannot_be_deleted_now_is_deleted_later(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    for n in range(1, 5):
        worker.save(1, n, contents_of(n))
    keeper.shelf.fail("DELETE", "refuse")
    assert keeper.tidy() == 0
    assert keeper.tidy() == 2
    assert len(keeper.kept()) == 2


def test_trouble_is_an_event_without_addresses(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    why = "PUT https://kept.s3.amazonaws.com/x?X-Amz-Signature=0123456789abcdef: refused"
    assert worker.ask("POST", "trouble", json={"why": why}).status_code == 200
    (told,) = keeper.events("checkpoint_trouble")
    assert told.startswith(f"{worker.id}: PUT")
    assert "0123456789abcdef" not in told


def test_many_machines_at_once_agree(keeper: Keeper) -> None:
    """Two write, one reads and one deletes, each as fast as it can."""
    writers = [keeper.launch(1), keeper.launch(2)]
    reader = keeper.launch(3)

    def write(number: int) -> None:
        for n in range(1, 9):
            contents = contents_of(n * 10 + number)
            upload = upload_of(number + 1, n, contents)
            assert set(writers[number].send(upload, contents)) == {200}
            # Of the older generation, none is among the newest once the other has two.
            ended = writers[number].announce(upload, is_sent=True).status_code
            assert ended in ((200,) if number else (200, 409))

    def read(_: int) -> int:
        seen = 0
        for _ in range(8):
            offered = reader.newest()
            if offered is not None:
                assert fetch(offered) == contents_of(
                    offered.iteration * 10 + offered.generation - 1
                )
                seen += 1
        return seen

    def tidy(_: int) -> None:
        for _ in range(8):
            keeper.tidy()

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(task, n) for task, n in ((write, 0), (write, 1), (read, 0), (tidy, 0))]
        for each in found:
            each.result()
    offered = reader.newest()
    assert offered is not None
    assert (offered.generation, offered.iteration) == (2, 8)
    keeper.wait(TRANSFER_SPAN.total_seconds())
    keeper.tidy()
    assert len(keeper.kept()) == 2


def test_a_machine_that_is_gone_is_refused(keeper: Keeper) -> None:
    worker = keeper.launch(1)
    with keeper.engine.begin() as connection:
        vms.record_gone(connection, worker.id, keeper.shift.now())
    assert worker.announce(upload_of(1, 1, CONTENTS)).status_code == 403
    assert worker.ask("GET", "newest").status_code == 403


# Which jobs have a bucket


def test_a_job_that_names_a_directory_uses_no_bucket(keeper: Keeper) -> None:
    keeper.submit(checkpoints={"directory": "/data"})
    worker = keeper.launch(1)
    answer = worker.announce(upload_of(1, 1, CONTENTS))
    assert answer.status_code == 404
    assert keeper.events("checkpoints") == []
    found = told_to_machines(keeper)
    assert (found.checkpoints, found.checkpoint_store) == (f"/data/{keeper.job}", False)


def told_to_machines(keeper: Keeper) -> WorkerSpec:
    with keeper.engine.connect() as connection:
        job = jobs.find(connection, keeper.job)
    assert job is not None
    return worker_spec(job, "worker", CheckpointStorage(Path("/srv"), keeper.clouds))


def test_a_job_on_rented_machines_hears_where_its_checkpoints_are(
    keeper: Keeper, engine: Engine
) -> None:
    found = told_to_machines(keeper)
    assert (found.checkpoints, found.checkpoint_store) == (None, True)
    assert keeper.events("checkpoints") == []
    with open_keeper(engine, None, keeper.shelf) as without:
        without.submit()
        (told,) = without.events("checkpoints")
        assert "training starts over" in told
        assert not told_to_machines(without).checkpoint_store
        without.submit(checkpoints={"directory": "/data"})
        assert without.events("checkpoints") == []
