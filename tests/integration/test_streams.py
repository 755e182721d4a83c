"""Event streams of a controller: what they show, to whom, and when they end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from scavenger.cli.watch import follow_updates
from scavenger.client.client import Client
from scavenger.protocol import Hello
from scavenger.schemas.access import UserRole
from scavenger.schemas.events import JobNewsView
from scavenger.schemas.jobs import JobPhase
from service.api import streams
from service.auth.sessions import SESSION_COOKIE
from service.auth.tokens import TokenDigest, make_token
from service.db import access, jobs, schema, vms, workers
from service.db.access import StoredToken
from service.observability import metrics
from tests.builders import NOW, offer, spec
from tests.contract.host import Host
from tests.controller_double import LONG, until
from tests.integration.house import KEYS
from tests.streams import STREAM, Frame, follow, streaming

LEASE = timedelta(minutes=1)
HOME = {"Authorization": f"Bearer {KEYS.home_token}"}


@pytest.fixture
def host(engine: Engine) -> Iterator[Host]:
    """A controller with a job in each of two projects."""
    with engine.begin() as connection:
        for name in ("alpha", "beta"):
            jobs.create(connection, f"job_{name}", spec(), NOW, name)
    with streaming(engine, KEYS) as controller:
        yield controller


def say(engine: Engine, job: str, message: str, kind: str = "choice") -> None:
    with engine.begin() as connection:
        jobs.record_event(connection, job, NOW, kind, message)


def token_of(engine: Engine, project: str, role: str = "viewer") -> str:
    made = make_token()
    credential = TokenDigest.of(made)
    facts = {"created_at": datetime.now(UTC), "created_by": "test", "name": "of a test"}
    token = StoredToken(id=credential.id, project=project, role=UserRole(role), **facts)
    with engine.begin() as connection:
        access.store_token(connection, credential, token)
    return made


def next_of(frames: Iterator[Frame], kind: str) -> Frame:
    return next(frame for frame in frames if frame.kind == kind)


def ask(host: Host, path: str, token: str = KEYS.home_token, **headers: str) -> httpx.Response:
    sent = {"Authorization": f"Bearer {token}", **headers}
    return httpx.get(f"{host.url}{path}", headers=sent, timeout=LONG)


def open_streams(host: Host) -> int:
    return len(host.app.state.streams._streams)


def test_the_list_shows_the_events_of_the_project_by_job_and_kind(
    host: Host, engine: Engine
) -> None:
    for job in ("job_alpha", "job_beta"):
        say(engine, job, "one")
        say(engine, job, "two", "probe")
    mine = token_of(engine, "alpha")

    def listed(query: str, token: str = mine) -> list[str]:
        answer = ask(host, f"/v1/events{query}", token).json()
        return [f"{each['job']}: {each['message']}" for each in answer["events"]]

    assert listed("") == ["job_alpha: one", "job_alpha: two"]
    assert listed("", KEYS.home_token) == [
        "job_alpha: one",
        "job_alpha: two",
        "job_beta: one",
        "job_beta: two",
    ]
    assert listed("?kind=probe") == ["job_alpha: two"]
    assert listed("?kind=probe,choice&job=job_alpha") == listed("")
    assert listed("?job=job_beta", KEYS.home_token) == ["job_beta: one", "job_beta: two"]
    first = ask(host, "/v1/events?limit=1", mine).json()
    number = first["events"][0]["sequence"]
    last = ask(host, "/v1/events?limit=1&newest=true", mine).json()
    assert ([each["message"] for each in last["events"]], last["next_cursor"]) == (["two"], None)
    assert listed("?newest=true") == listed("")
    assert listed(f"?after={number}") == ["job_alpha: two"]
    assert listed(f"?cursor={first['next_cursor']}") == ["job_alpha: two"]
    for path in ("?job=job_beta", "?job=job_none"):
        assert ask(host, f"/v1/events{path}", mine).status_code == 404
    for path in ("?job=x", "?kind=A%20B", "?after=-1", "?since=1"):
        assert ask(host, f"/v1/events{path}", mine).status_code == 422


def test_a_stream_shows_what_happens_from_now_on_and_only_what_its_project_may_know(
    host: Host, engine: Engine
) -> None:
    say(engine, "job_alpha", "before")
    with (
        follow(host.url, token_of(engine, "alpha")) as mine,
        follow(host.url, KEYS.home_token) as all_of_them,
        follow(host.url, KEYS.home_token, "/v1/jobs/job_alpha/events?kind=probe") as others,
    ):
        say(engine, "job_beta", "of another project")
        say(engine, "job_alpha", "in time")
        say(engine, "job_alpha", "chosen", "probe")
        assert next_of(mine, "event").data["message"] == "in time"
        assert next_of(others, "event").data["message"] == "chosen"
        seen = [next_of(all_of_them, "event") for _ in range(3)]
        assert [each.data["message"] for each in seen] == [
            "of another project",
            "in time",
            "chosen",
        ]
        assert [each.number for each in seen] == [each.data["sequence"] for each in seen]


def test_a_follower_goes_on_where_it_was(host: Host, engine: Engine) -> None:
    for number in range(3):
        say(engine, "job_alpha", str(number))
    first, *_ = ask(host, "/v1/events").json()["events"]

    def begins_with(path: str, **headers: str) -> Any:
        with follow(host.url, KEYS.home_token, path, **headers) as frames:
            return next_of(frames, "event").data["message"]

    assert begins_with("/v1/events?after=0") == "0"
    assert begins_with(f"/v1/events?after={first['sequence']}") == "1"
    assert begins_with("/v1/events?after=0", Last_Event_ID=str(first["sequence"])) == "1"
    with follow(host.url, KEYS.home_token, "/v1/events", Last_Event_ID=str(2**50)) as frames:
        say(engine, "job_alpha", "after a backup was restored, numbers are lower")
        assert "lower" in next_of(frames, "event").data["message"]
    assert ask(host, "/v1/events", **STREAM, **{"Last-Event-ID": "x"}).status_code == 422


def test_what_changes_about_a_job_is_said_with_the_version_that_the_api_shows(
    host: Host, engine: Engine
) -> None:
    with follow(host.url, token_of(engine, "alpha")) as frames:
        with engine.begin() as connection:
            jobs.change_outcome(connection, "job_alpha", phase=JobPhase.STARTING)
            jobs.notify_job_changed(connection, "job_alpha")
        frame = next_of(frames, "job")
        news = JobNewsView.model_validate(frame.data)
        assert (news.job, news.phase, frame.number) == ("job_alpha", JobPhase.STARTING, None)
        assert ask(host, "/v1/jobs/job_alpha").headers["etag"] == news.tag
        # Progress is announced by no transaction: reports are looked for once a second.
        with engine.begin() as connection:
            vms.record_intent(connection, "job_alpha", 1, offer("0.36"), NOW, LEASE)
            workers.record_hello(connection, "job_alpha", Hello("job_alpha-w1", "h:1"), NOW)
            jobs.notify_job_changed(connection, "job_alpha")
        assert next_of(frames, "job").data["progress"]["iteration"] == 0
        with engine.begin() as connection:
            change = {"iteration": 7, "seen_at": datetime.now(UTC)}
            connection.execute(update(schema.workers).values(change))
        assert next_of(frames, "job").data["progress"]["iteration"] == 7


def test_a_stream_that_waits_shows_that_it_lives(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "COMMENT_INTERVAL", 0.05)
    with follow(host.url, KEYS.home_token) as frames:
        assert [next(frames).kind for _ in range(3)] == ["comment"] * 3


def test_without_notifications_an_event_is_late_and_not_lost(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_alpha", spec(), NOW)
    with (
        streaming(engine, KEYS, hears=False) as deaf,
        follow(deaf.url, KEYS.home_token) as frames,
    ):
        say(engine, "job_alpha", "late")
        assert next_of(frames, "event").data["message"] == "late"


def test_a_token_that_is_revoked_ends_its_streams_at_once(host: Host, engine: Engine) -> None:
    token, other = token_of(engine, "alpha"), token_of(engine, "alpha")
    cookie = httpx.post(f"{host.url}/v1/session", json={"token": token}).cookies[SESSION_COOKIE]
    with ExitStack() as stack:
        by_token = stack.enter_context(follow(host.url, token))
        by_cookie = stack.enter_context(follow(host.url, "", Cookie=f"{SESSION_COOKIE}={cookie}"))
        stays = stack.enter_context(follow(host.url, other))
        revoke = f"{host.url}/v1/tokens/{TokenDigest.of(token).id}/actions/revoke"
        assert httpx.post(revoke, headers=HOME).is_success
        assert [each.kind for each in by_token if each.kind == "event"] == []
        assert [each.kind for each in by_cookie if each.kind == "event"] == []
        assert ask(host, "/v1/events", token, **STREAM).status_code == 401
        say(engine, "job_alpha", "goes on")
        assert next_of(stays, "event").data["message"] == "goes on"


def test_signing_out_ends_the_streams_of_this_session_alone(host: Host, engine: Engine) -> None:
    token = token_of(engine, "alpha")
    answer = httpx.post(f"{host.url}/v1/session", json={"token": token})
    cookie = {"Cookie": f"{SESSION_COOKIE}={answer.cookies[SESSION_COOKIE]}"}
    proof = {"X-CSRF": answer.json()["csrf"], "Sec-Fetch-Site": "same-origin"}
    with follow(host.url, "", **cookie) as mine, follow(host.url, token) as stays:
        assert httpx.delete(f"{host.url}/v1/session", headers={**cookie, **proof}).is_success
        assert [each.kind for each in mine if each.kind == "event"] == []
        say(engine, "job_alpha", "goes on")
        assert next_of(stays, "event").data["message"] == "goes on"


def test_a_token_that_another_controller_revoked_ends_its_streams_soon(
    host: Host, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "AUTHORISATION_INTERVAL", 0.05)
    token = token_of(engine, "alpha")
    with follow(host.url, token) as frames:
        with engine.begin() as connection:
            access.revoke_token(connection, TokenDigest.of(token).id, datetime.now(UTC))
        assert [each.kind for each in frames if each.kind != "comment"] == []


def test_a_token_has_eight_streams_and_gets_the_place_of_one_that_it_closes(
    host: Host, engine: Engine
) -> None:
    token, other = token_of(engine, "alpha"), token_of(engine, "alpha")
    with ExitStack() as stack:
        for _ in range(streams.MAX_STREAMS):
            stack.enter_context(follow(host.url, token))
        refused = ask(host, "/v1/events", token, **STREAM)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert "8 streams" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        with follow(host.url, other):
            pass
    until(lambda: open_streams(host) == 0)
    with follow(host.url, token):
        assert open_streams(host) == 1
    until(lambda: open_streams(host) == 0)


def test_streams_end_before_the_controller_and_count_in_no_histogram(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.create(connection, "job_alpha", spec(), NOW)
    counted = timed_requests()
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        with streaming(engine, KEYS) as controller:
            frames = stack.enter_context(follow(controller.url, KEYS.home_token))
            reader = pool.submit(list, frames)
            until(lambda: open_streams(controller) == 1)
        # Not cut off, which would raise here, but ended: the follower knows that it has all.
        assert [frame.kind for frame in reader.result() if frame.kind == "event"] == []
        assert open_streams(controller) == 0
    assert timed_requests() == counted


def timed_requests() -> float | None:
    labels = {"method": "GET", "route": "/v1/events", "status": "200"}
    return metrics.REGISTRY.get_sample_value("scavenger_request_seconds_count", labels)


def test_the_command_line_follows_a_job_to_its_end_and_asks_only_when_it_changed(
    host: Host, engine: Engine
) -> None:
    say(engine, "job_alpha", "before")
    with ThreadPoolExecutor(1) as pool, Client(host.url, token_of(engine, "*")) as client:
        followed = pool.submit(list, follow_updates(client, "job_alpha", lambda _: None))
        until(lambda: open_streams(host) == 1)
        asked = answered_requests()
        say(engine, "job_beta", "elsewhere")
        with engine.begin() as connection:
            jobs.change_outcome(connection, "job_alpha", phase=JobPhase.STARTING)
            jobs.record_event(connection, "job_alpha", NOW, "test", "meanwhile")
            jobs.notify_job_changed(connection, "job_alpha")
        until(lambda: answered_requests() > asked)
        with engine.begin() as connection:
            jobs.change_outcome(connection, "job_alpha", phase=JobPhase.CANCELLED)
            jobs.record_event(connection, "job_alpha", NOW, "test", "at the end")
        updates = followed.result()
    said = [event.message for update in updates for event in update.new_events]
    assert said == ["before", "meanwhile", "at the end"]
    assert updates[-1].job.phase is JobPhase.CANCELLED
    assert not any(update.job.phase.is_final for update in updates[:-1])
    assert answered_requests() - asked <= 6


def answered_requests() -> float:
    """Count requests about jobs that this process has answered."""
    samples = (s for f in metrics.REQUEST_SECONDS.collect() for s in f.samples)
    counted = (s for s in samples if s.name.endswith("_count"))
    return sum(s.value for s in counted if str(s.labels["route"]).startswith("/v1/jobs/{job}"))


def test_fifty_streams_get_every_event_and_leave_the_controller_responsive(
    host: Host, engine: Engine
) -> None:
    tokens = [token_of(engine, "alpha") for _ in range(7)]
    with ExitStack() as stack:
        followers = [
            stack.enter_context(follow(host.url, tokens[number % 7])) for number in range(50)
        ]
        for number in range(20):
            say(engine, "job_alpha", str(number))
            assert ask(host, "/v1/jobs/job_alpha").is_success
        for frames in followers:
            seen = [next_of(frames, "event").data["message"] for _ in range(20)]
            assert seen == [str(number) for number in range(20)]
