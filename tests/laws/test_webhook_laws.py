"""Every event that a webhook wants arrives, in at most eight requests, also when controllers die.

Controllers are killed before any statement, before any commit, and before and after any request;
answers are lost. Postgres is real; receivers are a network that obeys the contract.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Literal

import httpx
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, func, select

from scavenger.schemas.webhooks import DeliveryState, EventKind
from service.auth.tokens import ControllerKeys
from service.db import jobs, schema, webhooks
from service.outbound import OutboundClient
from service.webhooks.messages import MAX_TRIES
from service.webhooks.sender import WebhookSender
from tests.builders import NOW, spec
from tests.contract.host import resolve_to_public, webhook

KEYS = ControllerKeys(home_token="a word from before", secret="s" * 48)
NUMBERS = count(1)
DAY = timedelta(days=1)
BROKEN = "broken"  # the receiver that refuses everything
Fate = Literal["deliver", "refuse", "lose", "redirect"]


class Killed(BaseException):
    """The controller is dead."""


@dataclass
class Network(httpx.AsyncBaseTransport):
    """Receivers, whose answers follow a plan and are good once it ends.

    Attributes:
        received: How many requests came, by webhook and message.
        answered: Messages that a receiver has acknowledged, by webhook.
    """

    plan: list[Fate]
    life: Life
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: set[tuple[str, str]] = field(default_factory=set)
    moments: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.life.step()
        name = request.headers["host"].partition(".")[0], request.headers["webhook-id"]
        self.received[name] += 1
        self.moments.setdefault(name, []).append(int(request.headers["webhook-timestamp"]))
        fate = self.plan.pop() if self.plan else "deliver"
        if name[0] == BROKEN:
            fate = "refuse"
        if fate != "refuse":
            self.answered.add(name)
        self.life.step()
        if fate == "lose":
            raise httpx.ReadError("the connection was reset", request=request)
        status = {"deliver": 204, "refuse": 503, "redirect": 307}[fate]
        if fate == "redirect":
            self.answered.discard(name)
        return httpx.Response(status, stream=httpx.ByteStream(b""))


@dataclass
class Life:
    """Of the controller that works now: how many more steps it does."""

    left: int | None = None

    def step(self, *_: Any) -> None:
        if self.left is None:
            return
        if self.left == 0:
            raise Killed
        self.left -= 1

    @contextmanager
    def watch(self, engine: Engine) -> Iterator[None]:
        """Count statements and commits."""
        for name in ("before_cursor_execute", "commit"):
            event.listen(engine, name, self.step)
        try:
            yield
        finally:
            for name in ("before_cursor_execute", "commit"):
                event.remove(engine, name, self.step)


@dataclass(frozen=True, slots=True)
class Say:
    """Something happens to a job, in a transaction that may be rolled back."""

    job: int
    kind: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Work:
    """A controller does a round, and dies after so many steps of it; None if it does not."""

    killed_after: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes."""

    minutes: int


KINDS = ("succeeded", "failed", "resize")
SAYS = st.builds(
    Say, st.integers(0, 1), st.sampled_from(KINDS), st.sampled_from([True, True, False])
)
WORKS = st.builds(Work, st.none() | st.integers(0, 25))
WAITS = st.builds(Wait, st.integers(1, 120))
FATES: st.SearchStrategy[Fate] = st.sampled_from(["deliver", "refuse", "lose", "redirect"])


def next_try(engine: Engine) -> datetime | None:
    """Return when the next delivery is due; None if all are over."""
    waiting = schema.deliveries.c.state == DeliveryState.WAITING
    with engine.connect() as connection:
        query = select(func.min(schema.deliveries.c.next_try_at)).where(waiting)
        found: datetime | None = connection.execute(query).scalar()
    return found


@given(
    steps=st.lists(SAYS | WORKS | WAITS, max_size=14),
    plan=st.lists(FATES, max_size=4),
    seed=st.integers(0, 9),
)
@example(steps=[Say(0, "failed", True), Work(7), Wait(1), Work(None)], plan=["lose"], seed=0)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_event_arrives_and_is_sent_eight_times_at_most(
    engine: Engine, steps: Sequence[Say | Work | Wait], plan: list[Fate], seed: int
) -> None:
    """A message meets at most 4 failures and 3 kills, so that its eight tries suffice."""
    life = Life()
    network = Network(list(plan), life)
    outbound = OutboundClient(resolve_to_public, transport=network)
    chance, clock = random.Random(seed), [NOW]
    names = [f"job_{next(NUMBERS)}" for _ in range(2)]
    wanted = {"a": (EventKind.EVERY,), "b": (EventKind.FAILED, EventKind.SUCCEEDED)}
    wanted[BROKEN] = (EventKind.FAILED,)
    ids = {name: f"whk_{next(NUMBERS)}" for name in wanted}
    projects = {"a": "p0", "b": "*", BROKEN: "*"}
    with engine.begin() as connection:
        connection.execute(schema.webhooks.delete())
        for number, name in enumerate(names):
            jobs.create(connection, name, spec(), NOW, f"p{number}")
        for name, kinds in wanted.items():
            facts = {"url": f"http://{name}.example.org/", "events": kinds}
            told = webhook(id=ids[name], project=projects[name], **facts)
            webhooks.create(connection, told)

    def work(killed_after: int | None) -> None:
        sender = WebhookSender(engine, KEYS, "http://x", outbound, chance, lambda: clock[0])
        life.left = killed_after
        with life.watch(engine), suppress(Killed):
            sender.run_once()
        life.left = None

    kills, idle = 0, timedelta(0)  # while no controller works, nothing is sent
    for step in steps:
        match step:
            case Say(number, kind, is_kept):
                with engine.connect() as connection:
                    jobs.record_event(connection, names[number], clock[0], kind, "x")
                    if is_kept:
                        connection.commit()
            case Work(None):
                work(None)
            case Work(killed_after):
                kills += 1
                work(killed_after if kills <= 3 else None)
            case Wait(minutes):
                clock[0] += timedelta(minutes=minutes)
                idle += timedelta(minutes=minutes)
    work(None)
    while (following := next_try(engine)) is not None:
        assert max(network.received.values(), default=0) <= MAX_TRIES
        clock[0] = max(clock[0], following)
        work(None)
    with engine.connect() as connection:
        query = select(schema.events).where(schema.events.c.job.in_(names))
        happened = connection.execute(query.where(schema.events.c.sequence > 0)).all()
        left = connection.execute(select(schema.deliveries)).all()
    expected = {
        (name, f"msg_{ids[name].removeprefix('whk_')}_{row.sequence}")
        for name, kinds in wanted.items()
        for row in happened
        if (EventKind.EVERY in kinds or row.kind in kinds)
        and projects[name] in ("*", f"p{names.index(row.job)}")
    }
    lost = {message for message in expected if message[0] == BROKEN}
    assert network.answered == expected - lost
    assert set(network.received) == expected
    assert max(network.received.values(), default=0) <= MAX_TRIES
    # A kill between a try's row and its request uses the try up.
    assert all(network.received[message] >= MAX_TRIES - 3 for message in lost)
    assert sorted((row.webhook == ids[BROKEN], row.state) for row in left) == sorted(
        (message in lost, "failed" if message in lost else "delivered") for message in expected
    )
    for moments in network.moments.values():
        assert timedelta(seconds=moments[-1] - moments[0]) <= DAY + idle


def test_controllers_that_work_at_once_send_nothing_twice(engine: Engine) -> None:
    network = Network([], Life())
    outbound = OutboundClient(resolve_to_public, transport=network)
    with engine.begin() as connection:
        jobs.create(connection, "job_1", spec(), NOW)
        webhooks.create(connection, webhook(url="http://a.example.org/"))
        for _ in range(200):
            jobs.record_event(connection, "job_1", NOW, "failed", "x")

    def work(seed: int) -> None:
        chance = random.Random(seed)
        sender = WebhookSender(engine, KEYS, "http://x", outbound, chance, lambda: NOW)
        for _ in range(5):
            sender.run_once()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(network.received) == 200
    assert set(network.received.values()) == {1}
