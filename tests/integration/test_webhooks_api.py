"""Webhooks over the API: made, shown, changed, rotated, deleted, tested and replayed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import text

from service.outbound import PUBLIC_INTERNET
from tests.integration.house import House, code_of
from tests.integration.test_outbound import LITERALS, NOT_ADDRESSES

URL = "https://hooks.example.org/scavenger"
NOTABLE = ["budget", "cancelled", "capped", "failed", "not_finite", "succeeded", "undeletable"]


def make(house: House, maker: str = "", headers: Any = None, **wish: Any) -> Any:
    body = {"url": URL, **wish}
    token = maker or house.token("admin")
    return house.ask("POST", "/v1/webhooks", token, json=body, headers=headers or {})


def tables(house: House) -> str:
    with house.engine.connect() as connection:
        rows = [
            *connection.execute(text("SELECT w::text FROM webhooks w")).scalars(),
            *connection.execute(text("SELECT r::text FROM requests r")).scalars(),
        ]
    return "\n".join(rows)


def test_a_secret_is_shown_at_creation_and_rotation_and_kept_nowhere(house: House) -> None:
    admin, key = house.token("admin"), {"Idempotency-Key": str(uuid4())}
    made, again = make(house, headers=key), make(house, headers=key)
    assert made.status_code == 201, made.text
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == made.json()
    view = made.json()
    assert made.headers["location"] == f"/v1/webhooks/{view['id']}"
    assert (view["kind"], view["events"], view["project"]) == ("generic", NOTABLE, "alpha")
    assert (view["is_enabled"], view["disabled_why"], view["rotations"]) == (True, None, 0)
    path = f"/v1/webhooks/{view['id']}"
    rotated = house.ask("POST", f"{path}/actions/rotate", admin, headers=key | {"x": "y"})
    assert rotated.status_code == 422, "the key was used for another request"
    rotated = house.ask("POST", f"{path}/actions/rotate", admin).json()
    assert rotated["rotations"] == 1
    secrets = {view["secret"], rotated["secret"]}
    assert len(secrets) == 2
    assert all(secret.startswith("whsec_") and len(secret) == 50 for secret in secrets)
    shown = house.ask("GET", path, admin).json()
    assert shown == {**view, "rotations": 1, "secret": None}
    assert house.ask("GET", "/v1/webhooks", admin).json()["webhooks"][0] == shown
    assert not any(secret.removeprefix("whsec_")[:20] in tables(house) for secret in secrets)


def test_an_address_that_is_not_public_is_refused_before_it_is_stored(house: House) -> None:
    outside = house.open(outbound=PUBLIC_INTERNET)
    headers = {"Authorization": f"Bearer {house.token('admin')}"}
    there, _ = house.webhook()
    before = tables(house)
    for url in [*(f"http://{each}:8321/" for each in LITERALS), *NOT_ADDRESSES]:
        for method, path in (("POST", "/v1/webhooks"), ("PATCH", f"/v1/webhooks/{there}")):
            answer = outside.request(method, path, json={"url": url}, headers=headers)
            assert (answer.status_code, code_of(answer)) == (422, "validation"), (url, answer.text)
            assert answer.json()["errors"][0]["pointer"] == "/url", answer.text
    assert tables(house) == before


NONSENSE: list[dict[str, Any]] = [
    {"kind": "email"},
    {"events": []},
    {"events": ["sucseeded"]},
    {"events": "succeeded"},
    {"project": "../beta"},
    {"secret": "whsec_mine"},
    {"url": "https://hooks.example.org/ä"},
    {"url": "https://" + "a" * 3000},
]


def test_nonsense_makes_no_webhook(house: House) -> None:
    for wish in NONSENSE:
        assert make(house, **wish).status_code == 422, wish
    assert tables(house) == ""


def test_admins_make_webhooks_of_their_project_only(house: House) -> None:
    for project, status in (("alpha", 201), ("beta", 403), ("*", 403)):
        assert make(house, project=project).status_code == status
    every = make(house, house.token("admin", "*"))
    assert every.json()["project"] == "*"
    path = f"/v1/webhooks/{every.json()['id']}"
    assert house.ask("GET", path, house.token("admin")).status_code == 404
    assert house.ask("GET", path, house.token("admin", "*")).status_code == 200


def test_a_webhook_is_changed_switched_off_and_on_and_deleted(house: House) -> None:
    admin = house.token("admin")
    path = f"/v1/webhooks/{make(house).json()['id']}"

    def change(**body: Any) -> Any:
        return house.ask("PATCH", path, admin, json=body)

    assert change(events=["resize", "*", "resize"]).json()["events"] == ["*", "resize"]
    assert change(url="https://other.example.org/").json()["url"] == "https://other.example.org/"
    off = change(is_enabled=False).json()
    assert (off["is_enabled"], off["disabled_why"]) == (False, "it was disabled by a request")
    assert change(is_enabled=True).json()["is_enabled"]
    for body in ({}, {"is_enabled": "yes"}, {"kind": "slack"}, {"url": None}):
        assert house.ask("PATCH", path, admin, json=body).status_code == 422, body
    assert house.ask("DELETE", path, admin).json()["url"] == "https://other.example.org/"
    for method in ("GET", "PATCH", "DELETE"):
        answer = house.ask(method, path, admin, json={"is_enabled": True})
        assert (answer.status_code, code_of(answer)) == (404, "not_found")
    assert house.written()[-1]["target"] == path.rpartition("/")[2]


def test_a_webhook_of_slack_has_no_secret(house: House) -> None:
    made = make(house, kind="slack").json()
    assert made["secret"] is None
    path = f"/v1/webhooks/{made['id']}/actions/rotate"
    refused = house.ask("POST", path, house.token("admin"))
    assert refused.status_code == 422
    assert "make a new address at Slack" in refused.json()["detail"]


def test_a_project_has_so_many_webhooks_and_no_more(house: House) -> None:
    for _ in range(50):
        assert make(house).status_code == 201
    refused = make(house)
    assert refused.status_code == 422
    assert "delete one" in refused.json()["detail"]
    first = house.ask("GET", "/v1/webhooks?limit=30", house.token("admin")).json()
    path = f"/v1/webhooks?limit=30&cursor={first['next_cursor']}"
    second = house.ask("GET", path, house.token("admin")).json()
    assert second["next_cursor"] is None
    ids = [each["id"] for each in (*first["webhooks"], *second["webhooks"])]
    assert len(set(ids)) == 50
    assert make(house, house.token("admin", "beta")).status_code == 201


def test_tests_are_sent_and_only_events_are_replayed(house: House) -> None:
    admin = house.token("admin")
    path = f"/v1/webhooks/{make(house).json()['id']}"
    asked = house.ask("POST", f"{path}/actions/test", admin)
    assert asked.status_code == 202
    delivery = asked.json()
    assert (delivery["event"], delivery["state"], delivery["attempts"]) == (None, "waiting", 0)
    listed = house.ask("GET", f"{path}/deliveries", admin).json()
    assert listed == {"deliveries": [delivery], "next_cursor": None}
    number = delivery["number"]
    replay = house.ask("POST", f"{path}/deliveries/{number}/actions/replay", admin)
    assert replay.status_code == 422
    assert "send another with actions/test" in replay.json()["detail"]
    for odd in ("0", "-1", "x", "99999999999999999999", f"{number}0", "%31%30"):
        answer = house.ask("POST", f"{path}/deliveries/{odd}/actions/replay", admin)
        assert (answer.status_code, code_of(answer)) == (404, "not_found"), odd
