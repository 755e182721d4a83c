"""Tokens: created, shown once, listed, revoked, expired."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service.auth.tokens import TokenDigest
from tests.integration.house import KEYS, House

DAY = timedelta(days=1)


def make(house: House, maker: str, **wish: Any) -> Any:
    return house.ask("POST", "/v1/tokens", maker, json={"name": "ci", "role": "viewer", **wish})


def test_a_token_is_shown_once_and_only_its_hash_is_kept(house: House) -> None:
    admin = house.token("admin")
    made = make(house, admin, role="submitter")
    assert made.status_code == 201
    secret = made.json()["token"]
    assert made.json()["created_by"] == TokenDigest.of(admin).id
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    listed = house.ask("GET", "/v1/tokens", admin)
    assert made.json()["id"] in listed.text
    assert secret.split("_", 2)[2] not in listed.text
    with house.engine.connect() as connection:
        kept = connection.execute(text("SELECT t::text FROM tokens t")).scalars().all()
    assert not any(secret.split("_", 2)[2] in row for row in kept)


def test_a_request_that_is_repeated_makes_one_token_and_shows_its_secret_once(
    house: House,
) -> None:
    admin, key = house.token("admin"), {"Idempotency-Key": "k"}

    def send(name: str = "ci") -> Any:
        wish = {"name": name, "role": "viewer"}
        return house.ask("POST", "/v1/tokens", admin, json=wish, headers=key)

    made, again, other = send(), send(), send("other")
    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/tokens/{made.json()['id']}"
    assert (again.status_code, again.json()["code"]) == (409, "shown_once")
    assert made.json()["id"] in again.json()["detail"]
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    own = [each["name"] for each in house.ask("GET", "/v1/tokens", admin).json()["tokens"]]
    assert (own.count("ci"), own.count("other")) == (1, 0)
    secret = made.json()["token"].split("_", 2)[2]
    assert secret not in again.text
    with house.engine.connect() as connection:
        stored = connection.execute(text("SELECT r::text FROM requests r")).scalars().all()
    assert stored
    assert not any(secret in row for row in stored)


def test_admins_make_tokens_of_their_project_only(house: House) -> None:
    for project, status in (("alpha", 201), ("beta", 403), ("*", 403)):
        assert make(house, house.token("admin"), project=project).status_code == status
    assert make(house, house.token("admin", "*"), project="beta").status_code == 201
    own = make(house, house.token("admin"))
    assert own.json()["project"] == "alpha"
    shown = house.ask("GET", "/v1/tokens", house.token("admin", "beta")).json()["tokens"]
    assert {token["project"] for token in shown} == {"beta"}


@pytest.mark.parametrize(
    "wish",
    [
        {"name": ""},
        {"name": "a\u0000b"},
        {"role": "root"},
        {"project": "Alpha"},
        {"project": "../beta"},
        {"lifetime": 0},
        {"lifetime": 1e12},
        {"digest": "0"},
    ],
)
def test_nonsense_makes_no_token(house: House, wish: dict[str, Any]) -> None:
    assert make(house, house.token("admin"), **wish).status_code == 422


def test_a_revoked_token_opens_nothing_from_that_moment(house: House) -> None:
    admin, secret = house.token("admin"), make(house, house.token("admin")).json()["token"]
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    path = f"/v1/tokens/{TokenDigest.of(secret).id}/actions/revoke"
    first, second = house.ask("POST", path, admin), house.ask("POST", path, admin)
    assert first.json()["revoked_at"] == second.json()["revoked_at"] is not None
    refused = house.ask("GET", "/v1/jobs", secret)
    assert refused.status_code == 401
    assert "this token was revoked" in refused.json()["detail"]


def test_a_token_expires(house: House) -> None:
    secret = make(house, house.token("admin"), lifetime=3600).json()["token"]
    assert house.ask("GET", "/v1/jobs", secret).status_code == 200
    headers = {"Authorization": f"Bearer {secret}"}
    refused = house.open(DAY).get("/v1/jobs", headers=headers)
    assert refused.status_code == 401
    assert "this token has expired" in refused.json()["detail"]


def test_the_use_of_a_token_is_noted_once_a_minute(house: House) -> None:
    def used() -> str | None:
        (mine,) = [
            token
            for token in house.ask("GET", "/v1/tokens", house.token("admin")).json()["tokens"]
            if token["id"] == TokenDigest.of(house.token("viewer")).id
        ]
        return mine["last_used_at"] and str(mine["last_used_at"])

    house.token("viewer")
    assert used() is None
    house.ask("GET", "/v1/jobs", house.token("viewer"))
    first = used()
    house.ask("GET", "/v1/jobs", house.token("viewer"))
    assert used() == first is not None
    headers = {"Authorization": f"Bearer {house.token('viewer')}"}
    house.open(timedelta(minutes=2)).get("/v1/jobs", headers=headers)
    assert (used() or "") > first


def test_the_first_token_is_let_in_once_and_stays_revoked(house: House) -> None:
    me = house.ask("GET", "/v1/tokens", KEYS.home_token).json()["tokens"]
    home = next(token for token in me if token["name"] == "home")
    assert (home["project"], home["role"], home["created_by"]) == ("*", "admin", "serve")
    path = f"/v1/tokens/{home['id']}/actions/revoke"
    assert house.ask("POST", path, KEYS.home_token).status_code == 200
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    assert house.open().get("/v1/jobs", headers=headers).status_code == 401
