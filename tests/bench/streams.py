"""Fifty event streams: how soon an event arrives, and what they cost the other requests.

A controller of its own process holds a hundred jobs. Every 50 ms an event is recorded, as all
streams are sent. Prints the 95th percentile of pages of jobs and of single jobs, without a stream
and with all of them open, then how long an event takes from its commit to its last follower. Run by
``make bench-streams``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import httpx
from sqlalchemy import Engine

from scavenger.schemas.access import UserRole
from service.auth.tokens import TokenDigest, make_token
from service.db import access, jobs
from service.db.access import StoredToken
from service.db.database import open_pool
from service.postgres.server import EmbeddedPostgres
from tests.bench.load import percentile
from tests.builders import spec
from tests.controller import Controller

STREAMS, STREAMS_OF_A_TOKEN, JOBS = 50, 8, 100
EVENT_INTERVAL = 0.05
LIMIT = 0.1  # of a request, in seconds
ARRIVAL_LIMIT = 1.0


def main() -> int:
    """Measure, and return 1 if a figure is above its limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as postgres:
            given = {"SCAVENGER_DATABASE_URL": postgres.url()}
            with patch.dict(os.environ, given), Controller(directory / "home") as controller:
                engine = open_pool(postgres.url())
                is_within = measure(controller, engine, seconds)
                engine.dispose()
    return 0 if is_within else 1


def measure(controller: Controller, engine: Engine, seconds: float) -> bool:
    """Measure without streams and with them; tells whether all figures keep their limits."""
    with engine.begin() as connection:
        for number in range(JOBS):
            # Ended, or the controller would launch a machine for each.
            jobs.create(connection, f"job_{number}", spec(), datetime.now(UTC))
            jobs.change_outcome(connection, f"job_{number}", phase="cancelled")
    url = controller.connection["url"]
    tokens = [store_viewer(engine) for _ in range(-(-STREAMS // STREAMS_OF_A_TOKEN))]
    alone = ask_often(controller, engine, seconds)
    with followed(url, tokens) as arrivals:
        beside = ask_often(controller, engine, seconds)
        time.sleep(ARRIVAL_LIMIT)
    last = [max(each) for each in arrivals.values() if len(each) == STREAMS]
    is_within = len(last) == len(arrivals)
    for what in alone:
        before, after = (percentile(found[what], 0.95) for found in (alone, beside))
        is_within &= after <= LIMIT
        print(
            f"{what}, p95: {1000 * before:.0f} ms without streams, {1000 * after:.0f} ms beside "
            f"{STREAMS} (limit {1000 * LIMIT:.0f} ms)"
        )
    arrived = percentile(last, 0.95)
    print(f"{len(last)} of {len(arrivals)} events reached all {STREAMS} streams")
    print(
        f"an event at its last follower, p95: {1000 * arrived:.0f} ms "
        f"(limit {1000 * ARRIVAL_LIMIT:.0f} ms)"
    )
    return is_within and arrived <= ARRIVAL_LIMIT


def store_viewer(engine: Engine) -> str:
    """Store the token of a viewer, and return it."""
    made = make_token()
    credential = TokenDigest.of(made)
    facts = {"created_at": datetime.now(UTC), "created_by": "bench", "name": "bench"}
    token = StoredToken(id=credential.id, project="*", role=UserRole.VIEWER, **facts)
    with engine.begin() as connection:
        access.store_token(connection, credential, token)
    return made


def ask_often(controller: Controller, engine: Engine, seconds: float) -> dict[str, list[float]]:
    """Ask while events are recorded, and return how long each request took."""
    taken: dict[str, list[float]] = defaultdict(list)
    known = controller.connection
    headers = {"Authorization": f"Bearer {known['token']}"}
    ends_at, due, number = time.monotonic() + seconds, 0.0, 0
    with httpx.Client(base_url=known["url"], headers=headers) as client:
        while (now := time.monotonic()) < ends_at:
            if now >= due:
                due, number = now + EVENT_INTERVAL, number + 1
                with engine.begin() as connection:
                    at, job = datetime.now(UTC), f"job_{number % JOBS}"
                    jobs.record_event(connection, job, at, "bench", str(time.monotonic()))
            for what, path in (("a page of 50 jobs", "/v1/jobs"), ("a job", "/v1/jobs/job_1")):
                began = time.monotonic()
                client.get(path).raise_for_status()
                taken[what].append(time.monotonic() - began)
    return taken


@contextmanager
def followed(url: str, tokens: Sequence[str]) -> Iterator[dict[int, list[float]]]:
    """Follow all events with all streams, and yield how long each took, by its number."""
    arrivals: dict[int, list[float]] = defaultdict(list)
    loop, are_open = asyncio.new_event_loop(), threading.Event()
    followers: list[asyncio.Task[None]] = []
    count = 0

    def note_open() -> None:
        nonlocal count
        count += 1
        if count == STREAMS:
            are_open.set()

    async def follow(token: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        number = 0
        while line := await reader.readline():
            name, _, value = line.decode().strip().partition(": ")
            if name == "retry":
                note_open()
            elif name == "id":
                number = int(value)
            elif name == "data" and '"kind":"bench"' in value:
                said = value.partition('"message":"')[2].partition('"')[0]
                arrivals[number].append(time.monotonic() - float(said))

    async def follow_all() -> None:
        followers.extend(
            asyncio.create_task(follow(tokens[number % len(tokens)])) for number in range(STREAMS)
        )
        await asyncio.gather(*followers, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(follow_all()))
    thread.start()
    assert are_open.wait(60), "not all streams opened"
    try:
        yield arrivals
    finally:
        for each in followers:
            loop.call_soon_threadsafe(each.cancel)
        thread.join()
        loop.close()


if __name__ == "__main__":
    sys.exit(main())
