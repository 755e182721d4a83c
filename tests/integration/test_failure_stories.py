"""Failures of other systems that no other test tells, each played against a cloud and a database.

docs/failure-stories.md lists them with those that other tests tell.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from scavenger.schemas.jobs import JobPhase
from service.db import jobs
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Fault, Ignored, LateRequest, LostResponse
from tests.integration.test_offers import Region, cloud, region

__all__ = ["cloud", "region"]
STEP = 7.0
HOUR = timedelta(hours=1)


def cancel(region: Region, job: str) -> None:
    with region.engine.begin() as connection:
        jobs.request_cancel(connection, job, region.now)


def alive(cloud: FakeCloud) -> list[str]:
    return [one.description.id for one in cloud.machines() if one.gone_at is None]


def phase_of(region: Region, job: str) -> JobPhase:
    with region.engine.connect() as connection:
        found = jobs.find(connection, job)
    assert found is not None
    return found.phase


def tick_until_over(region: Region, cloud: FakeCloud, *names: str) -> None:
    """Tick jobs until all their rows are gone, for at most half an hour."""
    for _ in range(60):
        for job in names:
            region.tick(job)
        rows = [row for job in names for row in region.rows(job)]
        if all(row.state == "gone" for row in rows):
            return
        cloud.clock.advance(30.0)
    raise AssertionError([(row.id, row.state) for row in rows])


@pytest.mark.parametrize(
    "fault",
    [None, LostResponse(), LateRequest(20.0)],
    ids=["answered", "answer lost", "done 20 s later"],
)
def test_a_job_that_is_cancelled_at_any_moment_leaves_no_machine(
    region: Region, cloud: FakeCloud, fault: Fault | None
) -> None:
    """Also while it is launched, and while a machine that the cloud took back is replaced."""
    names = [f"job_{moment}" for moment in range(9)]
    for moment, job in enumerate(names):
        region.submit(job, workers=2)
        before = set(alive(cloud))
        for step in range(moment):
            if fault is not None and step in (0, 5):
                cloud.faults.next("launch", fault)
            if step == 4:
                for machine in set(alive(cloud)) - before:
                    cloud.interrupt(machine)
            region.tick(job, STEP)
        if fault is not None:
            cloud.faults.next("launch", fault)
        cancel(region, job)
        region.tick(job)
    tick_until_over(region, cloud, *names)
    assert alive(cloud) == []
    assert {phase_of(region, job) for job in names} == {JobPhase.CANCELLED}
    tokens = Counter(one.description.token for one in cloud.machines())
    assert set(tokens.values()) == {1}


def test_no_machine_of_two_hundred_leaks_though_each_tenth_answer_is_lost(
    region: Region, cloud: FakeCloud
) -> None:
    names = [f"job_{number}" for number in range(4)]
    cloud.faults.sometimes("launch", LostResponse(), 0.1)
    for job in names:
        region.submit(job, workers=50, max_cost="90 USD")
        for _ in range(2):
            region.tick(job, STEP)
    assert cloud.faults.counts()["LostResponse"] >= 10
    assert len(alive(cloud)) == 200
    cloud.faults.calm()
    for job in names:
        cancel(region, job)
    tick_until_over(region, cloud, *names)
    assert alive(cloud) == []
    assert len(cloud.machines()) == 200


def test_machines_that_are_killed_as_they_come_are_not_launched_without_end(
    region: Region, cloud: FakeCloud
) -> None:
    region.submit(workers=2, max_cost="90 USD")
    began = []
    for _ in range(250):
        known = len(cloud.machines())
        region.tick(after=60.0)
        began += [region.now] * (len(cloud.machines()) - known)
        for machine in alive(cloud):
            cloud.interrupt(machine)
        if phase_of(region, "job_1").is_final:
            break
    most = 2 * 2 + 2
    assert max(sum(at <= other < at + HOUR for other in began) for at in began) == most
    assert phase_of(region, "job_1") is JobPhase.FAILED
    assert "workers keep dying" in region.told()[-1][1]


def test_a_machine_that_the_cloud_does_not_end_is_never_said_to_be_gone_and_costs(
    region: Region, cloud: FakeCloud
) -> None:
    region.submit()
    region.tick()
    cloud.faults.always("terminate", Ignored())
    (machine,) = alive(cloud)
    cloud.renew(machine, 86400.0)  # nor does it power itself off
    cancel(region, "job_1")
    region.tick()
    costs = []
    for _ in range(40):
        region.tick(after=60.0)
        (row,) = region.rows()
        assert row.state == "ending"
        costs.append(row.cost(region.now))
    assert costs == sorted(set(costs))
    cloud.faults.calm()
    tick_until_over(region, cloud, "job_1")
    assert alive(cloud) == []


def test_a_new_machine_at_the_address_of_a_lost_one_is_another(
    region: Region, cloud: FakeCloud
) -> None:
    region.submit()
    region.tick()
    (lost,) = alive(cloud)
    cloud.interrupt(lost)
    for _ in range(3):
        region.tick(after=STEP)
    first, second = (one.description for one in cloud.machines())
    assert first.address == second.address
    known = {row.provider_id: row.state for row in region.rows()}
    assert known == {first.id: "gone", second.id: "launched"}
    region.tick(after=STEP)
    assert alive(cloud) == [second.id]
