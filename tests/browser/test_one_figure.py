"""One job's cost is one figure wherever it is shown, to the last digit: every pair of places."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger.cli.main import app
from scavenger.client.client import Client
from service import ledger
from service.dashboard_files import DashboardFiles
from service.db import clock, jobs, vms
from service.offers import SeenPrice
from tests.browser.chromium import watched
from tests.builders import offer, spec
from tests.contract.host import KEYS, Host, host

JOB, JOB_NAME = "job_77", "figure"
# A third of a dollar per hour over odd spans: no figure of it ends.
PRICES = {1: "0.3333333333", 2: "0.0777", 3: "1.1111111"}


@pytest.fixture
def shown(engine: Engine, browser: Browser) -> Mapping[str, Decimal]:
    """Show the cost of a job that goes on, whose machines are gone, in every place there is."""
    with host(engine, DashboardFiles.read()) as asked:
        store(engine)
        return {
            **by_page(asked, browser),
            **by_api(asked),
            **by_client(asked),
            **by_command(asked),
            **by_ledger(engine),
        }


def store(engine: Engine) -> None:
    now = clock.now(engine)
    with engine.begin() as connection:
        own = spec(name=JOB_NAME, model={"key": "own", "dataset_size": 9})
        jobs.create(connection, JOB, own, now)
        for number, price in PRICES.items():
            began = now - timedelta(days=number, seconds=7.123 * number)
            market = "spot" if number == 3 else "on_demand"
            place = offer(price, cloud="cloud-77", market=market)
            vm = f"{JOB}-w{number}"
            vms.record_intent(connection, JOB, number, place, began, timedelta(days=9))
            vms.record_attempt(connection, vm, began, began + timedelta(days=9), "a-1")
            vms.record_launch(connection, vm, f"i-{number}")
            ended = began + timedelta(seconds=1234.567)
            if market == "spot":
                seen = [SeenPrice(began, Decimal("0.7")), SeenPrice(ended, Decimal("0.7"))]
                vms.record_prices(connection, vm, seen)
            vms.record_gone(connection, vm, ended)


def by_page(asked: Host, browser: Browser) -> Mapping[str, Decimal]:
    """Read what the pages write beside each amount, for those who copy it or point at it."""
    with Client(asked.url, KEYS.home_token) as client:
        code = client.buy_sign_in_code().code
    with watched(browser, asked.url) as visitor:
        page = visitor.page()
        page.goto(f"/#code={code}")

        def amount(place: Locator) -> Decimal:
            return Decimal(place.locator("data").first.get_attribute("value") or "")

        found = {"the page's list": amount(page.locator(f"tr[data-job={JOB}]"))}
        page.get_by_role("link", name=JOB_NAME, exact=True).click()
        found["the page of the job"] = amount(page.locator("[data-figure='cost now']"))
        page.get_by_role("link", name="Cost", exact=True).click()
        row = page.get_by_role("row").filter(has_text=JOB_NAME)
        found["the page's cost by job"] = amount(row)
        found["the page's total"] = amount(page.locator("[data-figure=total]"))
    return found


def by_api(asked: Host) -> Mapping[str, Decimal]:
    def ask(path: str) -> Any:
        headers = {"Authorization": f"Bearer {KEYS.home_token}"}
        answer = httpx.get(f"{asked.url}{path}", headers=headers)
        assert answer.is_success, answer.text
        return answer

    job = ask(f"/v1/jobs/{JOB}").json()
    (row,) = ask(f"/v1/jobs?q={JOB}&fields=cost").json()["jobs"]
    found = {
        "the job": Decimal(job["cost"]["accrued"]["amount"]),
        "the list of jobs": Decimal(row["cost"]["accrued"]["amount"]),
    }
    for by, key in (("job", JOB), ("model", "own"), ("cloud", "cloud-77")):
        entries = ask(f"/v1/cost?by={by}").json()["entries"]
        (entry,) = (each for each in entries if each["key"] == key)
        found[f"cost by {by}"] = Decimal(entry["cost"]["amount"])
    days = ask("/v1/cost?by=day").json()
    found["cost by day"] = sum((Decimal(e["cost"]["amount"]) for e in days["entries"]), Decimal(0))
    (project,) = ask("/v1/cost?by=project").json()["entries"]
    found["cost by project"] = Decimal(project["cost"]["amount"])
    for path, pattern in (
        ("/metrics/jobs", rf'scavenger_job_dollars{{job="{JOB}",kind="accrued"}} (\S+)'),
        ("/metrics", r'scavenger_job_cost_dollars{kind="accrued"} (\S+)'),
    ):
        value = re.search(pattern, ask(path).text)
        assert value is not None
        found[f"Grafana's {path}"] = Decimal(value[1])
    return found


def by_client(asked: Host) -> Mapping[str, Decimal]:
    with Client(asked.url, KEYS.home_token) as client:
        (entry,) = (e for e in client.get_cost("job").entries if e.key == JOB)
        return {
            "the client's job": client.get_job(JOB).cost.accrued.amount,
            "the client's cost": entry.cost.amount,
        }


def by_command(asked: Host) -> Mapping[str, Decimal]:
    def run(*words: str) -> Any:
        address = ("--url", asked.url, "--token", KEYS.home_token)
        answer = CliRunner().invoke(app, [*address, *words, "-o", "json"])
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)

    (entry,) = (each for each in run("cost")["entries"] if each["key"] == JOB)
    (listed,) = (each for each in run("list")["jobs"] if each["id"] == JOB)
    return {
        "scavenger show": Decimal(run("show", JOB)["cost"]["accrued"]["amount"]),
        "scavenger list": Decimal(listed["cost"]["accrued"]["amount"]),
        "scavenger cost": Decimal(entry["cost"]["amount"]),
    }


def by_ledger(engine: Engine) -> Mapping[str, Decimal]:
    with engine.connect() as connection:
        machines = vms.of_job(connection, JOB)
    return {"the ledger": ledger.booked(machines, clock.now(engine))}


def test_one_job_costs_the_same_wherever_it_is_shown(shown: Mapping[str, Decimal]) -> None:
    assert len(shown) == 19
    assert min(shown.values()) > Decimal("0.1")
    for one, other in combinations(shown, 2):
        assert shown[one] == shown[other], f"{one} and {other}"
