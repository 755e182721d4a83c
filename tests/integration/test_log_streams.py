"""Streams of what commands print: two writers, two controllers, breaks, and a token that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from io import StringIO

import httpx
import pytest
from pydantic import TypeAdapter
from rich.console import Console
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger import AsyncClient, Client
from scavenger.cli.main import app
from scavenger.cli.output import Terminal
from scavenger.client.errors import Unauthenticated
from scavenger.errors import ExitCode
from scavenger.protocol import LogBatch, LogLine
from scavenger.schemas.access import UserRole
from scavenger.schemas.jobs import JobPhase
from service.api import streams
from service.auth.tokens import TokenDigest, make_token
from service.db import access, jobs, log_lines, vms
from service.db.access import StoredToken
from tests.builders import NOW, offer, spec
from tests.contract.host import KEYS, Host
from tests.controller_double import LONG, until
from tests.streams import STREAM, Frame, follow, streaming

JOB = "job_alpha"
ONE, TWO = f"{JOB}-w1", f"{JOB}-w2"
PATH = f"/v1/jobs/{JOB}/logs"
BATCH = TypeAdapter(LogBatch)


@pytest.fixture
def host(engine: Engine) -> Iterator[Host]:
    """A controller with a running job of two machines."""
    with engine.begin() as connection:
        jobs.create(connection, JOB, spec(), NOW, "alpha")
        for number in (1, 2):
            vms.record_intent(
                connection, JOB, number, offer(), datetime.now(UTC), timedelta(minutes=1)
            )
    with streaming(engine, KEYS) as controller:
        yield controller


def batch(machine: str, first: int, count: int = 1) -> LogBatch:
    at, numbers = datetime.now(UTC), range(first, first + count)
    lines = tuple(LogLine(number, at, f"{machine} {number}") for number in numbers)
    return LogBatch(machine, first + count - 1, lines)


def store(engine: Engine, machine: str, first: int, count: int = 1) -> None:
    with engine.begin() as connection:
        log_lines.store_lines(connection, JOB, batch(machine, first, count))


def end_job(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.change_outcome(connection, JOB, phase=JobPhase.STARTING)
        jobs.change_outcome(connection, JOB, phase=JobPhase.CANCELLED, finished_at=NOW)


def token_of(engine: Engine, project: str = "alpha") -> str:
    made = make_token()
    credential = TokenDigest.of(made)
    facts = {"created_at": datetime.now(UTC), "created_by": "test", "name": "of a test"}
    token = StoredToken(id=credential.id, project=project, role=UserRole.VIEWER, **facts)
    with engine.begin() as connection:
        access.store_token(connection, credential, token)
    return made


def next_text(frames: Iterator[Frame]) -> str:
    frame = next(frame for frame in frames if frame.kind != "comment")
    return str(frame.data["text"]) if frame.kind == "line" else frame.kind


def test_a_stream_begins_with_the_tail_and_goes_on_until_the_job_has_ended(
    host: Host, engine: Engine
) -> None:
    store(engine, ONE, 1, 5)
    store(engine, TWO, 1, 2)
    with follow(host.url, KEYS.home_token, f"{PATH}?machine={ONE}&tail=2") as frames:
        assert [next_text(frames) for _ in range(2)] == [f"{ONE} 4", f"{ONE} 5"]
        store(engine, TWO, 3)
        store(engine, ONE, 6)
        assert next_text(frames) == f"{ONE} 6"
        end_job(engine)
        assert [frame.kind for frame in frames if frame.kind != "comment"] == ["end"]
    until(lambda: not host.app.state.streams._streams)
    with follow(host.url, KEYS.home_token, f"{PATH}?tail=1") as frames:
        assert [next_text(frames) for _ in range(2)] == [f"{ONE} 6", "end"]


def test_a_stream_says_how_many_lines_are_not_kept(host: Host, engine: Engine) -> None:
    store(engine, ONE, 4, 2)  # the first three were dropped on their machine
    with follow(host.url, KEYS.home_token, PATH) as frames:
        told = next(frame for frame in frames if frame.kind != "comment")
        assert (told.kind, told.data, told.number) == ("dropped", {"dropped": 3}, None)
        assert [next_text(frames) for _ in range(2)] == [f"{ONE} 4", f"{ONE} 5"]
        store(engine, ONE, 6)
        assert next_text(frames) == f"{ONE} 6"
        store(engine, TWO, 2)
        assert [next_text(frames) for _ in range(2)] == ["dropped", f"{TWO} 2"]


def test_a_stream_goes_on_where_its_follower_was(host: Host, engine: Engine) -> None:
    store(engine, ONE, 1, 3)
    with follow(host.url, KEYS.home_token, PATH) as frames:
        first = next(frame for frame in frames if frame.kind == "line")
        assert first.number == first.data["number"]
    for path, headers in (
        (f"{PATH}?after={first.number}", {}),
        (f"{PATH}?tail=0&after=0", {"Last_Event_ID": str(first.number)}),
    ):
        with follow(host.url, KEYS.home_token, path, **headers) as frames:
            assert next_text(frames) == f"{ONE} 2"
    with follow(host.url, KEYS.home_token, PATH, Last_Event_ID=str(2**50)) as frames:
        store(engine, ONE, 4)
        assert next_text(frames) == f"{ONE} 4"


def test_what_a_machine_sends_is_shown_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINES_INTERVAL", 3600.0)
    with follow(host.url, KEYS.home_token, PATH) as frames:
        sent = {"Authorization": f"Bearer {KEYS.issue_worker_token(ONE)}"}
        kind = {"Content-Type": "application/json"}
        content = BATCH.dump_json(batch(ONE, 1))
        answer = httpx.post(f"{host.url}/v1/agent/logs", headers=sent | kind, content=content)
        assert answer.is_success, answer.text
        assert next_text(frames) == f"{ONE} 1"


@pytest.mark.parametrize(
    ("path", "project", "status"),
    [
        (PATH, "beta", 404),
        ("/v1/jobs/job_none/logs", "alpha", 404),
        (f"{PATH}?machine=job_0-w1", "alpha", 404),
        (f"{PATH}?after=-1", "alpha", 422),
        (f"{PATH}?follow=true", "alpha", 422),
    ],
)
def test_a_stream_is_refused_as_a_page_is(
    host: Host, engine: Engine, path: str, project: str, status: int
) -> None:
    headers = {"Authorization": f"Bearer {token_of(engine, project)}"}
    for more in ({}, STREAM):
        answer = httpx.get(f"{host.url}{path}", headers=headers | more, timeout=LONG)
        assert (answer.status_code, "code" in answer.json()) == (status, True)


def test_a_token_has_eight_streams_of_lines_and_events_together(host: Host, engine: Engine) -> None:
    token = token_of(engine)
    with ExitStack() as stack:
        for number in range(streams.MAX_STREAMS):
            stack.enter_context(follow(host.url, token, PATH if number % 2 else "/v1/events"))
        headers = {"Authorization": f"Bearer {token}", **STREAM}
        refused = httpx.get(f"{host.url}{PATH}", headers=headers, timeout=LONG)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")


@pytest.mark.parametrize("is_told", [True, False])
def test_a_follower_whose_token_is_revoked_is_told_so(
    host: Host, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """By this controller at once, by another at the next look."""
    if not is_told:
        monkeypatch.setattr(streams, "AUTHORISATION_INTERVAL", 0.05)
    store(engine, ONE, 1)
    token = token_of(engine)
    name = TokenDigest.of(token).id
    with Client(host.url, token, pause=0) as client:
        lines = client.logs(JOB, follow=True)
        assert next(lines).text == f"{ONE} 1"
        if is_told:
            headers = {"Authorization": f"Bearer {KEYS.home_token}"}
            revoke = f"{host.url}/v1/tokens/{name}/actions/revoke"
            assert httpx.post(revoke, headers=headers).is_success
        else:
            with engine.begin() as connection:
                access.revoke_token(connection, name, datetime.now(UTC))
        with pytest.raises(Unauthenticated):
            next(lines)


def test_no_follower_of_two_writers_and_two_controllers_misses_a_line_or_sees_one_twice(
    host: Host, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While streams are cut off again and again."""
    monkeypatch.setattr(streams, "LINES_INTERVAL", 0.05)

    def write(machine: str) -> None:
        for first in range(1, 201, 10):
            store(engine, machine, first, 10)
            if first % 50 == 1:
                host.app.state.streams.close()

    async def follow_one() -> list[str]:
        async with AsyncClient(host.url, KEYS.home_token, pause=0) as client:
            found = client.logs(JOB, tail=20_000, follow=True)
            return [line.text async for line in found]

    def follow_two(url: str) -> list[str]:
        with Client(url, KEYS.home_token, pause=0) as client:
            return [line.text for line in client.logs(JOB, tail=20_000, follow=True)]

    with streaming(engine, KEYS) as other, ThreadPoolExecutor(5) as pool:
        followers = [
            pool.submit(asyncio.run, follow_one()),
            pool.submit(follow_two, host.url),
            pool.submit(follow_two, other.url),
        ]
        writers = [pool.submit(write, machine) for machine in (ONE, TWO)]
        for writer in writers:
            writer.result()
        end_job(engine)
        for follower in followers:
            seen = follower.result()
            for machine in (ONE, TWO):
                own = [text for text in seen if text.startswith(machine)]
                assert own == [f"{machine} {number}" for number in range(1, 201)]


def test_the_command_prints_lines_until_the_job_has_ended(host: Host, engine: Engine) -> None:
    store(engine, ONE, 1)
    end_job(engine)
    data, chatter = (Console(file=StringIO(), width=60, markup=False) for _ in range(2))
    terminal = Terminal(data, chatter, lambda: Client(host.url, KEYS.home_token))
    result = CliRunner().invoke(app, ["logs", "latest", "-f"], obj=terminal)
    assert result.exit_code == ExitCode.SUCCESS
    assert f"w1  {ONE} 1\n" in data.file.getvalue()  # type: ignore[attr-defined]
