"""The audit trail: which requests leave a row, and that rows stay."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.auth.tokens import TokenDigest, make_token
from tests.builders import document
from tests.integration.house import House


def test_each_change_is_written_down_with_who_what_and_how_it_was_answered(house: House) -> None:
    submitter, viewer = house.token("submitter"), house.token("viewer")
    made = house.ask("POST", "/v1/jobs", submitter, json=document())
    house.ask("POST", "/v1/jobs", viewer, json=document())
    house.ask("POST", "/v1/jobs", submitter, json={})
    house.ask("POST", f"/v1/jobs/{house.job}/actions/cancel", submitter)
    house.ask("POST", f"/v1/jobs/{house.job}/actions/cancel", house.token("submitter", "beta"))
    house.ask("PATCH", "/v1/nowhere", viewer)
    house.ask("GET", "/v1/jobs", viewer)
    rows = house.written()[1:]  # the first is the house's own job
    facts = [(row["who"], row["route"], row["target"], row["status"]) for row in rows]
    me, other = TokenDigest.of(submitter).id, TokenDigest.of(house.token("submitter", "beta")).id
    cancel = "/v1/jobs/{job}/actions/cancel"
    assert facts == [
        (me, "/v1/jobs", made.json()["id"], 201),
        (TokenDigest.of(viewer).id, "/v1/jobs", None, 403),
        (me, "/v1/jobs", None, 422),
        (me, cancel, house.job, 202),
        (other, cancel, house.job, 404),
        (TokenDigest.of(viewer).id, "", None, 404),
    ]
    assert rows[0]["request_id"] == made.headers["x-request-id"]


def test_what_a_revoked_token_tries_is_written_down_and_what_strangers_try_is_not(
    house: House,
) -> None:
    gone = house.token("admin", "alpha", revoked_at=datetime.now(UTC))
    before = len(house.written())
    house.ask("POST", "/v1/jobs", gone, json=document())
    house.ask("POST", "/v1/jobs", make_token(), json=document())
    rows = house.written()[before:]
    assert [(row["who"], row["status"]) for row in rows] == [(TokenDigest.of(gone).id, 401)]


@pytest.mark.parametrize(
    "change", ["UPDATE audit SET who = 'me'", "DELETE FROM audit", "TRUNCATE audit"]
)
def test_what_is_written_down_stays(house: House, change: str) -> None:
    with pytest.raises(DBAPIError, match="cannot be changed"), house.engine.begin() as connection:
        connection.execute(text(change))
    assert house.written()


def test_admins_read_what_the_tokens_of_their_project_asked_page_by_page(house: House) -> None:
    for _ in range(5):
        house.ask("POST", "/v1/jobs", house.token("viewer"))
    house.submit("beta")
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = house.ask("GET", "/v1/audit", house.token("admin"), params=query).json()
        seen += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [entry["status"] for entry in seen] == [403] * 5 + [201]
    numbers = [entry["number"] for entry in seen]
    assert numbers == sorted(numbers, reverse=True)
    everything = house.ask("GET", "/v1/audit", house.token("admin", "*")).json()["entries"]
    assert len(everything) == 7
