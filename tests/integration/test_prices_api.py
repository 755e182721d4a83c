"""Prices through the API: what holds, what is refused, and which tokens may change them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from scavenger.job.validation import validate_job
from scavenger.schemas.prices import PriceImportView, PriceList, PriceView
from service.__main__ import store_shipped_prices
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.prices import shipped_prices
from tests.builders import HERE, document
from tests.integration.house import House

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def row(price: Any, item: str = "m7i.large", **changes: Any) -> dict[str, Any]:
    return {"provider": "aws", "region": "eu-central-1", "item": item, "price": price, **changes}


def send(client: TestClient, *rows: dict[str, Any]) -> PriceImportView:
    answer = client.post("/v1/prices", json={"prices": list(rows)})
    assert answer.status_code == 200, answer.text
    return PriceImportView.model_validate_json(answer.text)


def held(client: TestClient) -> dict[str, PriceView]:
    listed = PriceList.model_validate_json(client.get("/v1/prices?limit=200").text)
    return {price.item: price for price in listed.prices}


def test_an_import_holds_from_now_on_and_its_order_does_not_matter(client: TestClient) -> None:
    assert send(client, row("0.1"), row(0.2, "m7i.xlarge", vcpus=4, memory_gib=16)).accepted == 2
    found = held(client)
    assert {name: price.price for name, price in found.items()} == {
        "m7i.large": Decimal("0.1"),
        "m7i.xlarge": Decimal("0.2"),
    }
    assert found["m7i.xlarge"].vcpus == 4
    assert found["m7i.large"].source == "imported"
    old = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert send(client, row("0.3", as_of=old)) == PriceImportView(accepted=0, refused=[])
    assert held(client)["m7i.large"].price == Decimal("0.1")
    # A list without sizes keeps those that are known.
    assert send(client, row("0.21", "m7i.xlarge")).accepted == 1
    assert held(client)["m7i.xlarge"].vcpus == 4


@pytest.mark.parametrize("wrong", ["0", "-1", "NaN", "Infinity", "1.1", "0.001", "1e999"])
def test_a_price_that_is_not_believed_leaves_the_old_one_and_its_neighbours(
    client: TestClient, wrong: str
) -> None:
    send(client, row("0.1"))
    answer = send(client, row(wrong), row("0.2", "m7i.xlarge"))
    assert answer.accepted == 1
    assert len(answer.refused) == 1
    assert "m7i.large in aws eu-central-1" in answer.refused[0]
    assert {name: str(price.price) for name, price in held(client).items()} == {
        "m7i.large": "0.1",
        "m7i.xlarge": "0.2",
    }


def test_the_shipped_table_never_replaces_what_is_newer(engine: Engine, client: TestClient) -> None:
    imported = row("0.1", "m6i.large")
    send(client, imported)
    for _ in range(2):
        store_shipped_prices(engine)
    listed: list[PriceView] = []
    cursor: str | None = None
    while True:
        query = {"limit": 100} | ({} if cursor is None else {"cursor": cursor})
        page = PriceList.model_validate_json(client.get("/v1/prices", params=query).text)
        listed += page.prices
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(listed) == len(shipped_prices())
    (mine,) = (each for each in listed if each.source == "imported")
    assert (mine.item, mine.price) == ("m6i.large", Decimal("0.1"))
    # Its size came with the shipped table only: a price list of a cloud says no sizes.
    assert listed == sorted(listed, key=lambda each: (each.provider, each.region, each.item))


def test_only_an_admin_of_all_projects_imports_and_each_viewer_reads(house: House) -> None:
    body = {"prices": [row("0.1")]}
    for role, project, status in (
        ("viewer", "*", 403),
        ("operator", "*", 403),
        ("admin", "alpha", 403),
        ("admin", "*", 200),
    ):
        token = house.token(role, project)
        assert house.ask("POST", "/v1/prices", token, json=body).status_code == status
        assert house.ask("GET", "/v1/prices", token).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prices": []},
        {"prices": [row("x")]},
        {"prices": [row("1", unit="day")]},
        {"prices": [{**row("1"), "cloud": "x"}]},
        {"prices": [row("1", as_of="2026-01-01T00:00:00")]},
        {"prices": [row("1", item="a b")]},
    ],
)
def test_rows_that_are_no_prices_are_refused_as_a_whole(
    client: TestClient, body: dict[str, Any]
) -> None:
    assert client.post("/v1/prices", json=body).status_code == 422
    assert held(client) == {}


HOME = {"provider": "local", "region": "here"}


def unpriced(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in document(**changes).items() if key != "price"}


def test_a_job_without_a_price_is_planned_with_that_of_its_machines(client: TestClient) -> None:
    send(client, row("0.25", "local", **HOME))
    job = client.post("/v1/jobs", json=unpriced()).json()
    assert job["spec"]["price"] == "0.25 USD/h"
    send(client, row("0.5", "local", **HOME))
    assert client.get(f"/v1/jobs/{job['id']}").json()["spec"]["price"] == "0.25 USD/h"
    assert client.post("/v1/jobs", json=unpriced()).json()["spec"]["price"] == "0.50 USD/h"
    own = client.post("/v1/jobs", json=document()).json()
    assert own["spec"]["price"] == "0.36 USD/h"


def test_a_spot_machine_is_planned_and_reserved_at_the_price_on_demand(client: TestClient) -> None:
    send(client, row("0.25", "local", **HOME), row("0.08", "local", market="spot", **HOME))
    job = client.post("/v1/jobs", json=unpriced(machine={"market": "spot"})).json()
    spec = validate_job(job["spec"])
    assert spec.price_per_hour == Decimal("0.25")
    assert {place.terms.price_per_hour for place in HERE.places_for(spec)} == {Decimal("0.25")}


def test_a_job_without_a_price_that_is_known_is_refused_with_the_command_that_helps(
    client: TestClient,
) -> None:
    send(client, row("0.25", "local", region="elsewhere", provider="local"))
    answer = client.post("/v1/jobs", json=unpriced())
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/price"
    assert "no price of local in local here is known" in error["message"]
    assert "scavenger prices import FILE" in error["message"]
    assert client.get("/v1/jobs").json()["jobs"] == []
