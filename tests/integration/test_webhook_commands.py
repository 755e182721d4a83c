"""``scavenger webhook`` against a real controller, sender and receiver."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger.cli.main import app
from scavenger.cli.output import Terminal
from scavenger.client.client import Client
from scavenger.errors import ExitCode
from scavenger.schemas.webhooks import NOTABLE_EVENTS, WebhookKind
from service.db import clock, schema, webhooks
from service.webhooks.messages import text_of_secret
from service.webhooks.sender import WebhookSender
from tests.contract.host import KEYS, Host, host, webhook
from tests.integration.test_every_command import type_in
from tests.receiver import THIS_COMPUTER_IS_PUBLIC, receive


@pytest.fixture
def controller(engine: Engine) -> Iterator[Host]:
    with host(engine) as controller:
        yield controller


def test_a_webhook_from_its_creation_to_its_end(controller: Host) -> None:
    """Each command does what the page says, and says what to do next."""

    def connect() -> Client:
        return Client(controller.url, KEYS.home_token)

    def typed(*words: str, code: ExitCode = ExitCode.SUCCESS) -> tuple[str, str]:
        said = type_in(["webhook", *words], connect)
        assert said[0] == code, said
        return said[1].strip(), said[2]

    secret, chatter = typed("create", "https://hooks.example.org/", "--event", "failed")
    assert secret.startswith("whsec_")
    hook = next(word for word in chatter.split() if word.startswith("whk_"))
    assert f"scavenger webhook test {hook}" in chatter
    slack, chatter = typed("create", "https://hooks.slack.com/services/T/B/X", "--slack")
    assert slack.startswith("whk_")
    assert "secret" not in chatter
    shown = json.loads(typed("list", "-o", "json")[0])["webhooks"]
    assert [each["events"] for each in shown[:2]] == [sorted(NOTABLE_EVENTS), ["failed"]]
    assert shown[0]["kind"] == WebhookKind.SLACK
    assert "● on" in typed("show", hook)[0]
    assert "○ off: it was disabled by a request" in typed("disable", hook)[0]
    assert "● on" in typed("enable", hook)[0]
    assert typed("rotate", hook)[0] not in ("", secret)
    assert "hears of nothing any more" in typed("delete", hook)[1]
    _, lost = typed("show", hook, code=ExitCode.NOT_FOUND)
    assert "scavenger webhook list" in lost
    _, wrong = typed("create", "https://x.example.org", "--event", "fail", code=ExitCode.USAGE)
    assert "failed" in wrong


@pytest.mark.parametrize(
    ("status", "code", "told"), [(200, 0, "delivered"), (404, 1, "the receiver answered 404")]
)
def test_a_test_says_what_the_receiver_answered(
    controller: Host, engine: Engine, status: int, code: int, told: str
) -> None:
    sender = WebhookSender(
        engine,
        KEYS,
        controller.url,
        THIS_COMPUTER_IS_PUBLIC,
        random.Random(1),
        lambda: clock.now(engine),
    )
    data, chatter = Console(file=StringIO(), width=200), Console(file=StringIO(), width=200)

    def let_it_work(_: float) -> None:
        sender.run_once()

    with receive(status) as receiver, Client(controller.url, KEYS.home_token) as client:
        with engine.begin() as connection:
            connection.execute(schema.webhooks.delete())
            webhooks.create(connection, webhook(url=receiver.url))
        terminal = Terminal(data, chatter, lambda: client, let_it_work)
        result = CliRunner().invoke(app, ["webhook", "test", webhook().id], obj=terminal)
    assert result.exit_code == code
    said = data.file.getvalue() + result.stderr  # type: ignore[attr-defined]
    assert told in said
    assert [one.document["type"] for one in receiver.received] == ["test"]
    secret = text_of_secret(KEYS.webhook_secret(webhook().id, 0))
    assert receiver.received[0].is_signed_by(secret)
