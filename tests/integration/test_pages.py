"""All lists page the same way, and only by cursors they gave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sqlalchemy import Engine

from scavenger.models.performance import fit_performance
from scavenger.planning.transfer import StoredModel
from scavenger.schemas.prices import PriceRow
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.api.pagination import CursorCodec
from service.api.problems import ApiProblem
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import jobs, prices, stored_models, sweeps
from service.db.jobs import record_event
from service.prices import to_price
from tests.builders import HERE, NOW, observation, spec

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
LISTS = {
    "jobs": "/v1/jobs",
    "events": "/v1/jobs/job_0/events",
    "models": "/v1/models",
    "sweeps": "/v1/sweeps",
    "prices": "/v1/prices",
}
ENTRIES = 7
POSITION = TypeAdapter(tuple[str, int])


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    app = build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger"))), KEYS)
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    fill(engine)
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def fill(engine: Engine) -> None:
    """Store as many of everything; two of each at the same moment."""
    with engine.begin() as connection:
        for number in range(ENTRIES):
            at = NOW + timedelta(seconds=number // 2)
            jobs.create(connection, f"job_{number}", spec(), at)
            record_event(connection, "job_0", at, "test", f"event {number}")
            stored_models.store(connection, "default", "key", stored_model(number), at)
            row = PriceRow(provider="aws", region="r", item=f"m{number}", price=Decimal("0.1"))
            prices.store_prices(connection, [to_price(row, "imported", at)], at)
            sweep = sweeps.begin(connection, "local", at, timedelta(0))
            assert sweep is not None
            sweeps.record(connection, sweep, shown=0, suspects=(), tripped=None)


def stored_model(number: int) -> StoredModel:
    seen = tuple(observation(k, b) for k, b in ((1, 32), (1, 128), (2, 128), (2, 32)))
    laws = fit_performance(seen, 1437, 32, None)
    return StoredModel(f"signature {number}", laws, seen, {}, 1)


def pages(client: TestClient, name: str, **query: Any) -> list[list[Any]]:
    found, cursor = [], None
    while True:
        parameters = {**query, **({} if cursor is None else {"cursor": cursor})}
        answer = client.get(LISTS[name], params=parameters)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[name])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize("name", LISTS)
def test_pages_hold_everything_once_and_in_order(client: TestClient, name: str) -> None:
    (everything,) = pages(client, name)
    assert len(everything) == ENTRIES
    for limit in (1, 3, ENTRIES):
        found = pages(client, name, limit=limit)
        assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
        assert without_clock(entry for page in found for entry in page) == without_clock(everything)


def without_clock(entries: Iterable[Any]) -> list[Any]:
    return [{key: entry[key] for key in entry if key != "elapsed"} for entry in entries]


def test_events_after_a_number_page_like_all_events(client: TestClient) -> None:
    (everything,) = pages(client, "events")
    after = everything[2]["sequence"]
    found = pages(client, "events", after=after, limit=2)
    assert [entry for page in found for entry in page] == everything[3:]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("other", LISTS)
def test_a_cursor_opens_its_own_list_only(client: TestClient, name: str, other: str) -> None:
    cursor = client.get(LISTS[other], params={"limit": 1}).json()["next_cursor"]
    answer = client.get(LISTS[name], params={"cursor": cursor})
    assert answer.status_code == (200 if name == other else 422)


def test_a_cursor_of_one_jobs_events_is_none_of_anothers(client: TestClient) -> None:
    cursor = client.get(LISTS["events"], params={"limit": 1}).json()["next_cursor"]
    answer = client.get("/v1/jobs/job_2/events", params={"cursor": cursor})
    assert answer.status_code == 422
    assert "no cursor of this list" in ProblemView.model_validate_json(answer.text).detail


def test_a_cursor_of_another_installation_is_refused(client: TestClient) -> None:
    foreign = CursorCodec(ControllerKeys("scv_token", "t" * 48).cursor_secret())
    cursor = foreign.write("jobs", NOW.isoformat(), "job_3")
    assert client.get("/v1/jobs", params={"cursor": cursor}).status_code == 422
    own = CursorCodec(KEYS.cursor_secret()).write("jobs", NOW.isoformat(), "job_1")
    assert client.get("/v1/jobs", params={"cursor": own}).status_code == 200


@given(st.text(max_size=50), st.integers(), st.data())
def test_a_cursor_reads_as_it_was_written_and_no_other_spelling_of_it_does(
    text: str, number: int, data: st.DataObject
) -> None:
    cursors = CursorCodec(b"key")
    cursor = cursors.write("list", text, number)
    assert cursors.read("list", cursor, POSITION) == (text, number)
    place = data.draw(st.integers(0, len(cursor) - 1))
    letter = data.draw(st.sampled_from("ABab01-_=+/ \né"))
    changed = data.draw(
        st.sampled_from(
            [cursor[:place] + letter + cursor[place + 1 :], cursor + letter, cursor[:place]]
        )
    )
    if changed != cursor:
        with pytest.raises(ApiProblem, match="no cursor"):
            cursors.read("list", changed, POSITION)
