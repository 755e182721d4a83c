"""Everywhere people and programs can look, for tests that planted secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from sqlalchemy import Engine, text

from scavenger.schemas.webhooks import WebhookView
from service.db.schema import metadata
from tests.builders import document
from tests.contract.host import CODE, CODE_SHA256, ROUTES, THERE
from tests.controller import Controller

Place = tuple[str, str]  # its name, and what stands there


class Leak(AssertionError):
    """A secret was found where others may read it."""


def search(places: Iterable[Place], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return all places, if none of them shows a secret.

    Raises:
        Leak: One does; the message names the secret.
    """
    looked = dict(places)
    for place, said in looked.items():
        for name, secret in secrets.items():
            if secret in said:
                raise Leak(f"{name} in {place}: …{said[max(0, said.index(secret) - 80) :][:200]}…")
    return looked


def quiet_webhook(controller: Controller) -> WebhookView:
    """Make a webhook, with a key, of an event that does not happen: nothing is sent from here."""
    wish = {"url": "https://93.184.216.34/", "events": ["undeletable"]}
    headers = {"Idempotency-Key": "the-only-one"}
    made = controller.ask("POST", "/v1/webhooks", json=wish, headers=headers)
    assert made.status_code == 201, made.text
    return WebhookView.model_validate_json(made.content)


def everything_shown(controller: Controller, job: str | None = None) -> Iterator[Place]:
    """What every route that only shows something says to the admin of everything."""
    controller.ask("PUT", f"/v1/code/{CODE_SHA256}", content=CODE)
    shown = [path for method, path in ROUTES if method == "GET"]
    token = controller.ask("GET", "/v1/tokens").json()["tokens"][0]["id"]
    webhook = quiet_webhook(controller).id
    plan = controller.ask("POST", "/v1/plans", json=document()).json()["id"]
    for template in [*shown, "/nowhere", "/docs"]:
        is_asset = template.startswith("/assets/")  # a bundle need not be there
        if not is_asset and (job is not None or "{job}" not in template):
            named = {**THERE, "{job}": job or "", "{token}": token, "{webhook}": webhook}
            named["{plan}"] = plan
            path = "/".join(named.get(part, part) for part in template.split("/"))
            answer = controller.ask("GET", path)
            # Machines ask others; a model is there once a job has learned.
            may_refuse = template.startswith(("/v1/agent/", "/v1/models/"))
            assert answer.is_success or may_refuse or template not in shown, path
            yield path, f"{answer.headers} {answer.text}"


def everything_stored(engine: Engine) -> Iterator[Place]:
    """Every row of every table, as text."""
    with engine.connect() as connection:
        for name in metadata.tables:
            rows = connection.execute(text(f"SELECT t::text FROM {name} t")).scalars().all()
            yield name, "\n".join(rows)


def everything_written(home: Path) -> Iterator[Place]:
    """Every file of a controller and its machines, and its log."""
    for file in [*home.rglob("*"), home.parent / "controller.log"]:
        if file.is_file():
            yield str(file.relative_to(home.parent)), file.read_bytes().decode(errors="replace")


def everything_started() -> Iterator[Place]:
    """The arguments of every process of this computer."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            yield str(process.pid), " ".join(process.cmdline())


def readable(home: Path) -> Iterator[Place]:
    """Those files of a controller that others than their owner may read."""
    for name, said in everything_written(home):
        if (home.parent / name).stat().st_mode & 0o077:
            yield name, said
