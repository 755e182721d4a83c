"""What machines cost, through the API: it agrees with the pages of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine

from scavenger.schemas.jobs import JobView
from scavenger.schemas.prices import CostReportView
from service.db import clock, jobs, stored_models, vms
from service.offers import Market, SeenPrice
from tests.builders import offer, spec
from tests.integration.house import House
from tests.integration.test_lesson import OLD

CENT = Decimal("0.01")
SPOT_PRICES = ((2, "0.1"), (1.5, "0.2"), (1, "0.2"))  # days ago, dollars per hour


def machine(
    engine: Engine,
    job: str,
    number: int,
    cloud: str,
    began: datetime,
    ended: datetime | None,
    market: Market = "on_demand",
) -> None:
    """Store a machine that was asked for at a moment, and one that is gone as gone."""
    with engine.begin() as connection:
        where = offer("0.37", cloud=cloud, market=market)
        vms.record_intent(connection, job, number, where, began, timedelta(days=9))
        vm = f"{job}-w{number}"
        vms.record_attempt(connection, vm, began, began + timedelta(days=9), "a-1")
        vms.record_launch(connection, vm, f"i-{job}-{number}")
        if ended is not None:
            vms.record_gone(connection, vm, ended)


@pytest.fixture
def now(house: House, engine: Engine) -> datetime:
    """Store machines of three jobs, two of them in a project, over several days until now."""
    now = clock.now(engine)
    with engine.begin() as connection:
        for number, project in ((1, "alpha"), (2, "alpha"), (3, "beta")):
            jobs.create(connection, f"job_{number}", spec(name=f"n{number}"), now, project)
        jobs.create(connection, "job_4", spec(), now, "alpha")
    days = timedelta(days=1)
    machine(engine, "job_1", 1, "local", now - 3 * days, now - 1.5 * days)
    machine(engine, "job_1", 2, "aws-frankfurt", now - days / 3, None)
    machine(engine, "job_2", 1, "aws-frankfurt", now - 2 * days, now - days, market="spot")
    with engine.begin() as connection:
        seen = [SeenPrice(now - ago * days, Decimal(price)) for ago, price in SPOT_PRICES]
        vms.record_prices(connection, "job_2-w1", seen)
    machine(engine, "job_3", 1, "local", now - 5 * days, now - days)
    with engine.begin() as connection:
        vms.record_intent(connection, "job_4", 1, offer(), now, timedelta(minutes=1))
    return now


def report(house: House, token: str, **query: Any) -> CostReportView:
    answer = house.client.get("/v1/cost", params=query, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return CostReportView.model_validate_json(answer.text)


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_each_job_costs_what_its_page_shows(house: House, now: datetime) -> None:
    token = house.token("viewer", "alpha")
    found = report(house, token)
    assert [(each.key, each.name) for each in found.entries] == [("job_2", "n2"), ("job_1", "n1")]
    spot = Decimal(12) * (Decimal("0.1") + Decimal("0.2"))
    assert abs(found.entries[0].cost.amount - spot) < CENT
    for entry in found.entries:
        page = house.client.get(f"/v1/jobs/{entry.key}", headers=bearer(token))
        shown = JobView.model_validate_json(page.text).cost.accrued.amount
        assert abs(entry.cost.amount - shown) < CENT
    assert found.total.amount == sum(each.cost.amount for each in found.entries)


@pytest.mark.parametrize("by", ["job", "cloud", "day"])
def test_pages_of_each_division_add_up_to_the_total(house: House, now: datetime, by: str) -> None:
    token = house.token("viewer", "*")
    whole = report(house, token, by=by)
    paged, cursor = [], None
    while True:
        query = {"by": by, "limit": 1} | ({} if cursor is None else {"cursor": cursor})
        page = report(house, token, **query)
        paged += page.entries
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [each.key for each in paged] == [each.key for each in whole.entries]
    assert whole.total.amount == sum(each.cost.amount for each in whole.entries)
    assert abs(whole.total.amount - report(house, token).total.amount) < CENT
    keys = [each.key for each in whole.entries]
    assert keys == sorted(keys, reverse=by != "cloud")
    assert len(keys) == {"job": 3, "cloud": 2}.get(by, len(keys))


def test_a_project_sees_its_own_costs_only(house: House, now: datetime) -> None:
    found = report(house, house.token("viewer", "beta"))
    assert [each.key for each in found.entries] == ["job_3"]
    assert report(house, house.token("viewer", "gamma")).entries == []


# Lists that a token of all projects can narrow to one, and what names an entry of each.
NARROWED = [
    ("/v1/cost?by=project", "entries", "key"),
    ("/v1/models?", "models", "signature"),
    ("/v1/events?", "events", "sequence"),
    ("/v1/machines?", "machines", "id"),
]


@pytest.mark.parametrize(("path", "entries", "name"), NARROWED)
def test_a_list_of_one_project_is_what_a_token_of_it_sees(
    house: House, engine: Engine, now: datetime, path: str, entries: str, name: str
) -> None:
    model = stored_models.STORED_MODEL.validate_python(OLD)
    with engine.begin() as connection:
        for project, job in (("alpha", "job_1"), ("beta", "job_3")):
            own_model = replace(model, signature=project)
            stored_models.store(connection, project, "digits", own_model, now)
            jobs.record_event(connection, job, now, "phase", "it began")

    def listed(token: str, query: str) -> set[str]:
        answer = house.client.get(path + query, headers=bearer(token))
        return {str(entry[name]) for entry in answer.json()[entries]}

    everything, alpha = house.token("viewer", "*"), house.token("viewer", "alpha")
    own, others = listed(alpha, ""), listed(everything, "&project=beta")
    assert listed(everything, "&project=alpha") == listed(alpha, "&project=alpha") == own
    assert (own & others, own | others) == (set(), listed(everything, ""))
    refused = house.client.get(f"{path}&project=beta", headers=bearer(alpha))
    assert (refused.status_code, "leave out project" in refused.json()["detail"]) == (403, True)


def test_a_cursor_of_one_division_opens_no_other(house: House, now: datetime) -> None:
    token = house.token("viewer", "*")
    cursor = report(house, token, by="day", limit=1).next_cursor
    query = {"by": "job", "cursor": cursor}
    answer = house.client.get("/v1/cost", params=query, headers=bearer(token))
    assert answer.status_code == 422
