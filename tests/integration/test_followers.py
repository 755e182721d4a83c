"""Both clients follow a real controller's events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from scavenger import AsyncClient, Client
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import JobPhase
from service.db import jobs
from tests.builders import NOW, spec
from tests.contract.host import KEYS, Host
from tests.streams import streaming

JOB = "job_alpha"


@pytest.fixture
def host(engine: Engine) -> Iterator[Host]:
    with engine.begin() as connection:
        jobs.create(connection, JOB, spec(), NOW, "default")
    with streaming(engine, KEYS) as controller:
        yield controller


def say(engine: Engine, message: str) -> None:
    with engine.begin() as connection:
        jobs.record_event(connection, JOB, NOW, "test", message)


def end_job(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs.change_outcome(connection, JOB, phase=JobPhase.STARTING)
        jobs.change_outcome(connection, JOB, phase=JobPhase.CANCELLED, finished_at=NOW)


def test_a_job_is_followed_to_its_end_and_over_a_broken_stream(host: Host, engine: Engine) -> None:
    say(engine, "1")
    with Client(host.url, KEYS.home_token, pause=0) as client:
        seen = list[str]()
        for happened in client.events(JOB, follow=True):
            seen.append(happened.message)
            match seen:
                case ["1"]:
                    say(engine, "2")
                case ["1", "2"]:
                    host.app.state.streams.end_streams(token=None)
                    host.app.state.streams.close()
                    say(engine, "3")
                case ["1", "2", "3"]:
                    say(engine, "4")
                    end_job(engine)
        assert seen == ["1", "2", "3", "4"]
        assert [each.message for each in client.events(JOB)] == seen


def test_an_event_loop_follows_all_jobs(host: Host, engine: Engine) -> None:
    say(engine, "1")

    async def follow() -> list[str]:
        seen = list[str]()
        async with AsyncClient(host.url, KEYS.home_token) as client:
            async for news in client.follow(after=0):
                if isinstance(news, EventView):
                    seen.append(news.message)
                    say(engine, str(len(seen) + 1))
                if len(seen) == 3:
                    return seen
        return seen

    assert asyncio.run(follow()) == ["1", "2", "3"]
