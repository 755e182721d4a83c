"""A controller as users run it sends to webhooks, and to no address of its own computer."""

from __future__ import annotations

from pathlib import Path
from secrets import token_urlsafe

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from service.db import webhooks
from tests.contract.host import webhook
from tests.controller import Controller
from tests.receiver import receive


def test_no_setting_lets_a_controller_send_to_its_own_computer(open_directory: Path) -> None:
    with (
        receive() as receiver,
        Controller(open_directory / token_urlsafe(4) / "home") as controller,
    ):
        password = (controller.home / "postgres/password").read_text().strip()
        port = (controller.home / "postgres/data/postmaster.pid").read_text().splitlines()[3]
        address = f"postgresql+psycopg://scavenger:{password}@127.0.0.1:{port}/postgres"
        engine = create_engine(address, poolclass=NullPool)
        told = webhook(url=receiver.url, project="*")
        with engine.begin() as connection:
            webhooks.create(connection, told)
        path = f"/v1/webhooks/{told.id}"
        assert controller.ask("POST", f"{path}/actions/test").status_code == 202

        def ended() -> str | None:
            (delivery,) = controller.ask("GET", f"{path}/deliveries").json()["deliveries"]
            return delivery["told"] if delivery["state"] == "failed" else None

        why = controller.wait(ended)
        assert why == (
            "the controller does not connect there: 127.0.0.1 is no host of the public internet"
        )
        assert receiver.received == []
