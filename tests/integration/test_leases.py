"""Leases: of all controllers that may run at once, one acts for a job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.db import controllers, jobs
from service.db.controllers import LEASE_TERM, JobLease, under_lease
from service.db.database import DATABASE_AWAY, open_pool
from service.errors import LeaseLost
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, spec
from tests.fakecloud.provider import FakeCloudProvider

OVER = timedelta(0)  # a lease of this term is over when its transaction is
LONG = timedelta(hours=1)


@pytest.fixture(autouse=True)
def job(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)


def take(engine: Engine, held: JobLease | None = None, term: timedelta = LONG) -> JobLease | None:
    with engine.begin() as connection:
        return controllers.acquire_lease(connection, "job_1", held, term)


def taken(engine: Engine, term: timedelta = LONG) -> JobLease:
    lease = take(engine, term=term)
    assert lease is not None
    return lease


def said(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [event.message for event in jobs.events_after(connection, "job_1", 0, 100)]


def test_of_many_that_ask_at_once_one_gets_it(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: take(engine), range(24)))
    assert sum(lease is not None for lease in got) == 1


def test_its_holder_may_prolong_it_and_no_other_gets_it(engine: Engine) -> None:
    mine = taken(engine)
    assert take(engine) is None
    assert take(engine, mine) == mine
    assert take(engine, JobLease("job_1", "made up")) is None


def test_what_was_given_back_is_free_at_once(engine: Engine) -> None:
    mine = taken(engine)
    with engine.begin() as connection:
        controllers.release_lease(connection, mine)
    theirs = taken(engine)
    with engine.begin() as connection:
        controllers.release_lease(connection, mine)  # late, and not theirs to give
    with under_lease(engine, theirs):
        pass


def test_one_that_is_over_is_good_until_another_takes_it(engine: Engine) -> None:
    slow = taken(engine, OVER)
    with under_lease(engine, slow) as connection:
        jobs.record_event(connection, "job_1", NOW, "test", "slow, but alone")
    taken(engine)
    with (
        pytest.raises(LeaseLost, match="another controller acts for job_1"),
        under_lease(engine, slow),
    ):
        pass
    assert said(engine) == ["slow, but alone"]


def test_what_was_decided_under_a_lost_lease_is_not_written(engine: Engine) -> None:
    slow = taken(engine, OVER)
    taken(engine)
    with pytest.raises(LeaseLost):
        decide_late(engine, slow)
    assert said(engine) == []


def decide_late(engine: Engine, lease: JobLease) -> None:
    with engine.begin() as connection:
        jobs.record_event(connection, "job_1", NOW, "test", "decided long ago")
        controllers.verify_lease(connection, lease)


def test_who_lost_it_and_takes_it_again_gets_another_one(engine: Engine) -> None:
    before = taken(engine, OVER)
    taken(engine, OVER)
    again = take(engine, before)
    assert again is not None
    with pytest.raises(LeaseLost):
        decide_late(engine, before)


def test_no_controller_takes_it_while_its_holder_writes(engine: Engine) -> None:
    slow = taken(engine, OVER)
    began = threading.Event()

    def take_over() -> str:
        began.set()
        theirs = taken(engine)
        with under_lease(engine, theirs) as connection:
            jobs.record_event(connection, "job_1", NOW, "test", "second")
        return theirs.token

    with ThreadPoolExecutor(1) as pool:
        with under_lease(engine, slow) as connection:
            other = pool.submit(take_over)
            began.wait()
            jobs.record_event(connection, "job_1", NOW, "test", "first")
        assert other.result() != slow.token
    assert said(engine) == ["first", "second"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "prolong", "write", "give back", "end"]), st.integers(0, 2)),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_at_most_one_of_three_controllers_may_write(
    engine: Engine, steps: list[tuple[str, int]]
) -> None:
    """Beside a model that knows the owner, and whether its term is over."""
    with engine.begin() as connection:
        connection.execute(controllers.leases.delete())
    held: dict[int, JobLease] = {}
    owner: int | None = None
    is_over = False
    for what, who in steps:
        if what == "end" and owner is not None:
            assert take(engine, held[owner], OVER) == held[owner]
            is_over = True
        elif what in ("take", "prolong"):
            mine = held.get(who) if what == "prolong" else None
            lease = take(engine, mine)
            is_mine = what == "prolong" and owner == who
            assert (lease is not None) == (owner is None or is_over or is_mine)
            if lease is not None:
                held[who], owner, is_over = lease, who, False
        elif what == "give back" and who in held:
            with engine.begin() as connection:
                controllers.release_lease(connection, held[who])
            owner = None if owner == who else owner
        elif what == "write" and who in held:
            assert may_write(engine, held[who]) == (owner == who)


def may_write(engine: Engine, lease: JobLease) -> bool:
    try:
        with under_lease(engine, lease):
            return True
    except LeaseLost:
        return False


def test_jobs_of_a_dead_controller_do_not_wait_for_long() -> None:
    assert timedelta(seconds=5) >= LEASE_TERM


def test_what_others_have_is_known_without_asking_for_it(engine: Engine) -> None:
    mine = taken(engine)

    def others(*held: JobLease) -> set[str]:
        with engine.connect() as connection:
            return controllers.leased_by_others(connection, held)

    assert others() == {"job_1"}
    assert others(mine) == set()
    assert others(JobLease("job_1", "lost")) == {"job_1"}
    assert take(engine, mine, OVER) == mine
    assert others() == set()


def test_a_controller_that_only_watches_writes_nothing(engine: Engine) -> None:
    taken(engine)
    cloud = FakeCloudProvider("http://nowhere", "ours")
    owner = ResourceLabels("ours", b"secret")
    fleet = Fleet(engine, Clouds([cloud]), CONTACT, owner)
    ReconcilerLoop(Reconciler(fleet, NOW))._pass()
    cloud.close()
    with engine.connect() as connection:
        touched = connection.execute(text("SELECT xmax::text FROM leases")).scalars().all()
    assert touched == ["0"]


def test_a_controller_that_hangs_within_a_transaction_does_not_stop_the_others(
    engine: Engine,
) -> None:
    hanging = taken(engine, OVER)
    url = engine.url.render_as_string(hide_password=False)
    frozen = open_pool(url, timedelta(milliseconds=100))
    connection = frozen.connect()
    controllers.verify_lease(connection, hanging)
    theirs = taken(engine)
    with pytest.raises(DATABASE_AWAY):
        jobs.record_event(connection, "job_1", NOW, "test", "decided before it hung")
    connection.invalidate()
    frozen.dispose()
    with under_lease(engine, theirs):
        pass
    assert said(engine) == []
