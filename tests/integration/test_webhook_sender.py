"""The sender and a real receiver over HTTP: signatures, tries, rotation, refused addresses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from scavenger.schemas.webhooks import DeliveryState, EventKind, WebhookKind
from service.auth.tokens import ControllerKeys
from service.db import jobs, webhooks
from service.db.webhooks import StoredDelivery, StoredWebhook
from service.outbound import PUBLIC_INTERNET, OutboundClient
from service.webhooks.messages import text_of_secret
from service.webhooks.sender import WebhookSender
from tests.builders import spec
from tests.contract.host import webhook
from tests.receiver import THIS_COMPUTER_IS_PUBLIC, Receiver, receive

KEYS = ControllerKeys(home_token="a word from before", secret="s" * 48)
ADDRESS = "https://scavenger.example.org"
HOUR = timedelta(hours=1)


class Post:
    """A job of the project alpha, and the sender of a controller whose clock a test moves."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.at = engine, datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.sender = self.controller()
        with engine.begin() as connection:
            jobs.create(connection, "job_1", spec(), self.at, "alpha")

    def controller(self, outbound: OutboundClient = THIS_COMPUTER_IS_PUBLIC) -> WebhookSender:
        chance = random.Random(1)
        return WebhookSender(self.engine, KEYS, ADDRESS, outbound, chance, lambda: self.at)

    def subscribe(self, receiver: Receiver, **changes: Any) -> StoredWebhook:
        told = webhook(**{"url": receiver.url, "project": "alpha", **changes})
        with self.engine.begin() as connection:
            webhooks.create(connection, told)
        return told

    def say(self, kind: str = "succeeded", message: str = "reached 0.97 & more") -> None:
        with self.engine.begin() as connection:
            jobs.record_event(connection, "job_1", self.at, kind, message)

    def deliveries(self, told: StoredWebhook) -> list[StoredDelivery]:
        with self.engine.connect() as connection:
            return list(webhooks.deliveries_before(connection, told.id, None, 100))

    def stored(self, told: StoredWebhook) -> StoredWebhook:
        with self.engine.connect() as connection:
            found = webhooks.find(connection, told.id)
        assert found is not None
        return found

    def play(self, hours: float, step: float = 0.05) -> None:
        """Let the sender work while time passes."""
        for _ in range(round(hours / step)):
            self.at += step * HOUR
            self.sender.run_once()


@pytest.fixture
def post(engine: Engine) -> Post:
    return Post(engine)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receive() as running:
        yield running


def test_an_event_arrives_once_and_signed(post: Post, receiver: Receiver) -> None:
    post.say("failed")
    told = post.subscribe(receiver, events=(EventKind.SUCCEEDED,))
    post.say()
    post.say("resize")
    for _ in range(3):
        post.sender.run_once()
        post.controller().run_once()
    (request,) = receiver.received
    secret = text_of_secret(KEYS.webhook_secret(told.id, 0))
    assert request.is_signed_by(secret)
    assert not request.is_signed_by(text_of_secret(KEYS.webhook_secret(told.id, 1)))
    assert request.path == "/hook"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-timestamp"] == str(int(post.at.timestamp()))
    (delivery,) = post.deliveries(told)
    assert (delivery.state, delivery.attempts, delivery.status) == ("delivered", 1, 200)
    assert request.message_id == delivery.message_id
    assert request.document == {
        "type": "succeeded",
        "timestamp": post.at.isoformat(),
        "data": {
            "event": delivery.event,
            "job": "job_1",
            "name": "digits",
            "project": "alpha",
            "message": "reached 0.97 & more",
            "url": f"{ADDRESS}/jobs/job_1",
            "api": f"{ADDRESS}/v1/jobs/job_1",
        },
    }


def test_events_of_other_projects_are_not_told(post: Post, receiver: Receiver) -> None:
    post.subscribe(receiver, id="whk_1", project="beta")
    post.subscribe(receiver, id="whk_2", project="*")
    post.say()
    post.sender.run_once()
    assert [request.message_id.split("_")[1] for request in receiver.received] == ["2"]


def test_slack_gets_a_text_that_names_no_channel(post: Post, receiver: Receiver) -> None:
    post.subscribe(receiver, kind=WebhookKind.SLACK)
    post.say("failed", "<!channel> exited 1 " + "x" * 5000)
    post.sender.run_once()
    (request,) = receiver.received
    assert list(request.document) == ["text"]
    text = request.document["text"]
    assert text.startswith(f"*failed* <{ADDRESS}/jobs/job_1|digits>: &lt;!channel&gt; exited 1 xx")
    assert len(text) < 2200
    assert request.headers["webhook-signature"] is None


def test_eight_tries_within_a_day_and_then_it_is_over(post: Post) -> None:
    with receive(*[500] * 100) as receiver:
        told = post.subscribe(receiver)
        post.say()
        started = post.at
        post.play(30)
        assert len(receiver.received) == 8
        assert len({request.message_id for request in receiver.received}) == 1
        moments = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
        assert moments[-1] - started.timestamp() < 24 * 3600
        assert moments[-1] - moments[-2] > 7 * 3600
    (delivery,) = post.deliveries(told)
    assert (delivery.state, delivery.attempts) == (DeliveryState.FAILED, 8)
    assert (delivery.status, delivery.told) == (500, "the receiver answered 500")
    assert post.stored(told).disabled_why is None


@pytest.mark.parametrize("statuses", [(500, 0, 503), (0, 0), (302, 404)])
def test_a_receiver_that_comes_back_gets_it(post: Post, statuses: tuple[int, ...]) -> None:
    with receive(*statuses, location="http://127.0.0.1:1/") as receiver:
        told = post.subscribe(receiver)
        post.say()
        post.play(5)
        assert len(receiver.received) == len(statuses) + 1
    (delivery,) = post.deliveries(told)
    assert (delivery.state, delivery.told) == (DeliveryState.DELIVERED, None)
    assert post.stored(told).failing_since is None


def test_after_five_days_without_success_it_is_switched_off(post: Post) -> None:
    with receive(*[500] * 1000) as receiver:
        told = post.subscribe(receiver)
        for _ in range(7):
            post.say()
            post.play(25, step=0.5)
        off = post.stored(told)
        assert "no event could be delivered since 2026-01-01" in (off.disabled_why or "")
        sent = len(receiver.received)
        post.say()
        post.play(48, step=1)
        assert len(receiver.received) == sent
        states = {delivery.state for delivery in post.deliveries(told)}
        assert states == {DeliveryState.FAILED}
    with post.engine.begin() as connection:
        webhooks.change(connection, told.id, enabled_at=post.at)
    assert post.stored(told).disabled_why is None
    with receive() as receiver:
        with post.engine.begin() as connection:
            webhooks.change(connection, told.id, url=receiver.url)
        post.say("failed")
        post.sender.run_once()
        assert [request.document["type"] for request in receiver.received] == ["failed"]


def test_a_receiver_that_is_gone_is_left_alone(post: Post) -> None:
    with receive(410) as receiver:
        told = post.subscribe(receiver)
        post.say()
        post.say()
        post.play(30, step=0.5)
        assert len(receiver.received) == 2, "both were on their way"
    assert "410 Gone" in (post.stored(told).disabled_why or "")


def test_two_secrets_sign_for_a_day_after_a_rotation(post: Post, receiver: Receiver) -> None:
    told = post.subscribe(receiver)
    secrets = [text_of_secret(KEYS.webhook_secret(told.id, number)) for number in (0, 1)]
    with post.engine.begin() as connection:
        webhooks.rotate(connection, told.id, post.at)
    post.say()
    post.sender.run_once()
    post.at += 25 * HOUR
    post.say()
    post.sender.run_once()
    signed = [[one.is_signed_by(secret) for secret in secrets] for one in receiver.received]
    assert signed == [[True, True], [False, True]]


def test_a_replay_has_the_id_of_the_event(post: Post, receiver: Receiver) -> None:
    told = post.subscribe(receiver)
    post.say()
    post.sender.run_once()
    (sent,) = post.deliveries(told)
    with post.engine.begin() as connection:
        again = webhooks.request_delivery(connection, told.id, post.at, sent)
    assert (again.replay_of, again.message_id) == (sent.number, sent.message_id)
    post.sender.run_once()
    assert [one.message_id for one in receiver.received] == [sent.message_id] * 2


def test_a_test_is_sent_once_even_while_the_webhook_is_off(post: Post) -> None:
    with receive(500) as receiver:
        told = post.subscribe(receiver, enabled_at=None)
        for _ in range(2):
            post.say()
            with post.engine.begin() as connection:
                webhooks.request_delivery(connection, told.id, post.at)
            post.play(1)
        assert [one.document["type"] for one in receiver.received] == ["test", "test"]
    succeeded, failed = post.deliveries(told)
    assert (failed.state, failed.attempts) == (DeliveryState.FAILED, 1)
    assert succeeded.state is DeliveryState.DELIVERED
    assert post.stored(told).failing_since is None


def test_a_private_address_is_refused_at_each_connection(post: Post, receiver: Receiver) -> None:
    told = post.subscribe(receiver)
    post.sender = post.controller(PUBLIC_INTERNET)
    post.say()
    post.play(1)
    assert receiver.received == []
    (delivery,) = post.deliveries(told)
    assert delivery.attempts >= 3
    assert delivery.told == (
        "the controller does not connect there: 127.0.0.1 is no host of the public internet"
    )


def test_one_receiver_that_fails_keeps_no_other_waiting(post: Post, receiver: Receiver) -> None:
    with receive(*[500] * 1000) as broken:
        post.subscribe(broken, id="whk_1")
        post.subscribe(receiver, id="whk_2")
        for _ in range(100):
            post.say()
        post.sender.run_once()
        first = receiver.received[:50]
        assert len(first) == 50
        assert len(broken.received) == 100
        assert len(receiver.received) == 100
    assert replace(post.stored(webhook(id="whk_2")), seen=0).failing_since is None


def test_old_deliveries_are_forgotten(post: Post, receiver: Receiver) -> None:
    told = post.subscribe(receiver)
    post.say()
    post.sender.run_once()
    post.say()
    with post.engine.begin() as connection:
        webhooks.make_deliveries(connection, post.at)
        assert webhooks.delete_old_deliveries(connection, post.at) == 0
        assert webhooks.delete_old_deliveries(connection, post.at + HOUR) == 1
    (left,) = post.deliveries(told)
    assert left.state is DeliveryState.WAITING
