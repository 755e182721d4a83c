"""A machine tells that its cloud takes it back: written down once, and another is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from scavenger.schemas.events import EventView
from service.db import jobs, vms
from service.db.shortages import Shortage, active_shortages, record_shortage, record_taken
from tests.builders import offer
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.integration.house import KEYS, House
from tests.integration.test_offers import Region

PLACE = offer(cloud="fake", zone="a", market="spot")
SAID = {"reason": "EC2 terminates it", "ends_at": "2026-01-01T12:02:00Z"}


@pytest.fixture
def worker(house: House) -> str:
    """A machine of the house's job."""
    now, minute = datetime.now(UTC), timedelta(minutes=1)
    with house.engine.begin() as connection:
        vms.record_intent(connection, house.job, 1, PLACE, now, minute)
        vms.record_attempt(connection, f"{house.job}-w1", now, now + minute, "a-1")
    return f"{house.job}-w1"


def tell(house: House, worker: str, **said: str) -> int:
    token, message = KEYS.issue_worker_token(worker), {"worker": worker, **SAID, **said}
    return int(house.ask("POST", "/v1/agent/notice", token, json=message).status_code)


def told(house: House) -> list[EventView]:
    with house.engine.connect() as connection:
        events = jobs.events_after(connection, house.job, 0, 100)
    return [event for event in events if event.kind == "interruption_notice"]


def shortages(engine: Engine) -> tuple[Shortage, ...]:
    with engine.connect() as connection:
        return active_shortages(connection, ["fake"], datetime.now(UTC))


def test_a_notice_is_an_event_with_the_clouds_words_and_marks_its_place(
    house: House, worker: str
) -> None:
    assert tell(house, worker) == 200
    (event,) = told(house)
    assert event.message == f"{worker} will be taken back: EC2 terminates it"
    assert event.data == {
        "vm": worker,
        "reason": "EC2 terminates it",
        "ends_at": "2026-01-01T12:02:00+00:00",
    }
    (short,) = shortages(house.engine)
    assert (short.kind, short.is_refusal, short.covers(PLACE)) == ("taken", False, True)


def test_a_notice_that_comes_again_changes_nothing(house: House, worker: str) -> None:
    for _ in range(3):
        assert tell(house, worker) == 200
    assert len(told(house)) == 1


def test_a_notice_of_a_machine_that_ends_anyway_changes_nothing(house: House, worker: str) -> None:
    now = datetime.now(UTC)
    with house.engine.begin() as connection:
        vms.record_end_order(connection, worker, now)
    assert tell(house, worker) == 200
    assert (told(house), shortages(house.engine)) == ([], ())


def test_a_notice_after_the_command_has_ended_changes_nothing(house: House, worker: str) -> None:
    with house.engine.begin() as connection:
        vms.record_exit(connection, worker, -15, "", datetime.now(UTC))
    assert tell(house, worker) == 200
    assert told(house) == []


@pytest.mark.parametrize(
    "said", [{"reason": "x" * 300}, {"reason": "a\nb"}, {"ends_at": "soon"}, {"ends_at": "12:02"}]
)
def test_a_notice_that_says_nonsense_is_refused(
    house: House, worker: str, said: dict[str, str]
) -> None:
    assert tell(house, worker, **said) == 422
    assert told(house) == []


def test_a_refusal_says_more_of_a_place_than_a_machine_that_was_taken(engine: Engine) -> None:
    now = datetime.now(UTC)
    place = (PLACE.cloud, PLACE.zone, PLACE.machine_type, PLACE.market)
    refused = Shortage(*place, "capacity", "sold out", now + timedelta(days=1))
    with engine.begin() as connection:
        record_shortage(connection, refused)
        record_taken(connection, PLACE, "took a machine back", now)
    assert shortages(engine) == (refused,)


@pytest.fixture
def region(engine: Engine) -> Iterator[Region]:
    cloud = FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))
    with CloudServer(cloud) as server:
        provider = FakeCloudProvider(server.url, "account", zone="abc", boot=30.0)
        yield Region(engine, provider, cloud)
        provider.close()


def warn(region: Region, machine: str, job: str = "job_1") -> None:
    """Store what the route stores."""
    with region.engine.begin() as connection:
        place = vms.record_warning(connection, machine, region.now)
        assert place is not None
        record_taken(connection, place, "took a machine back", region.now)


def test_the_next_tick_asks_for_another_machine_elsewhere(region: Region) -> None:
    region.submit(workers=2)
    region.tick()
    first, second = region.rows()
    warn(region, second.id)
    region.tick()
    *_, third = region.rows()
    assert [first.zone, second.zone, third.zone] == ["a", "a", "b"]
    region.tick()
    assert len(region.rows()) == 3


def test_a_place_that_lost_a_machine_is_asked_when_no_other_gives_one(region: Region) -> None:
    for zone in "bc":
        region.cloud.stock(f"small@{zone}", 0)
    region.submit()
    region.tick()
    warn(region, "job_1-w1")
    for _ in range(3):
        region.tick()
    assert [vm.zone for vm in region.rows() if vm.refusal is None] == ["a", "a"]


def test_another_job_avoids_the_place_for_a_while(region: Region) -> None:
    region.submit()
    region.tick()
    warn(region, "job_1-w1")
    region.submit("job_2")
    region.tick("job_2")
    assert [vm.zone for vm in region.rows("job_2")] == ["b"]
    region.submit("job_3")
    region.tick("job_3", after=181.0)
    assert [vm.zone for vm in region.rows("job_3")] == ["a"]
