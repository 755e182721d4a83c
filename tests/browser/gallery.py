"""A controller with something of each kind to look at, and the pages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from playwright.sync_api import Page, expect
from sqlalchemy import Connection, Engine, text

from service.background import PgListener
from service.clouds.labels import ResourceLabels
from service.dashboard_files import DashboardFiles
from service.db import partitions
from tests.bench.fleet import Fleet
from tests.browser.chromium import PATIENCE
from tests.contract.host import KEYS, host
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

JOB, OTHER = "job_0001", "job_0002"
JOBS, RECORDS = 5, 20_000
WISHES = {  # a target of epochs, so that time and cost are absolute; and a cap near what is left
    "target": {"epochs": 30, "at_batch": 160},
    "limits": {"max_cost": "0.95 USD", "workers": "1..8", "batch": [160, 640]},
}
PLANNED = {  # a job like the others, whose model is known
    "name": "planned",
    "model": {"key": "digits/1", "dataset_size": 1437},
    "price": "0.36 USD/h",
    "run": {"command": ["python", "train.py"], "directory": "/srv"},
    **WISHES,
}
NUMBERS = (
    "(SELECT :prefix || '_' || lpad(n::text, 4, '0') AS id"
    " FROM generate_series(1, :jobs) AS n) AS copies"
)
COPY_JOBS = text(f"""
INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object(
    'id', copies.id, 'name', replace(copies.id, '_', '-')))).*
FROM jobs AS j, {NUMBERS} WHERE j.id = 'job_4'
""")
COPY_OUTCOMES = text(f"""
INSERT INTO outcomes SELECT (jsonb_populate_record(o, jsonb_build_object('job', copies.id))).*
FROM outcomes AS o, {NUMBERS} WHERE o.job = 'job_4'
""")
PAGES = {
    "jobs": "/jobs",
    "job": f"/jobs/{JOB}",
    "curve": f"/jobs/{JOB}/curve",
    "telemetry": f"/jobs/{JOB}/telemetry",
    "job-events": f"/jobs/{JOB}/events",
    "logs": f"/jobs/{JOB}/logs",
    "plan": "/plan",
    "compare": f"/compare?jobs={JOB},{OTHER}",
    "models": "/models",
    "cost": "/cost",
    "fleet": "/fleet",
    "events": "/events",
    "tokens": "/settings/tokens",
    "webhooks": "/settings/webhooks",
    "checks": "/settings/checks",
    "audit": "/settings/audit",
    "missing": "/jobs/job_none",
}


@dataclass(frozen=True, slots=True)
class Gallery:
    """A controller that is looked at.

    Attributes:
        url: Where it is.
        headers: Those of its owner's requests.
        pages: The addresses of its pages, by name; those of a model and a plan among them.
    """

    url: str
    headers: dict[str, str]
    pages: dict[str, str] = field(default_factory=lambda: dict(PAGES))

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(
            method, self.url + path, headers=self.headers, timeout=PATIENCE, **options
        )

    def add_pages(self) -> None:
        """Add the pages whose addresses the controller chooses."""
        models = self.ask("GET", "/v1/models").json()["models"]
        self.pages["model"] = f"/models/{quote(models[0]['signature'], safe='')}"
        plan = self.ask("POST", "/v1/plans", json=PLANNED)
        assert plan.is_success, plan.text
        self.pages["planned"] = f"/plan/{plan.json()['id']}"

    def enter(self, page: Page) -> None:
        """Sign in with a one-time code, and wait for the first page."""
        code = self.ask("POST", "/v1/session/codes").json()["code"]
        page.goto("about:blank")  # else only the fragment of an open page would change
        page.goto(f"/#code={code}")
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


@contextmanager
def gallery(engine: Engine, jobs: int = JOBS, records: int = RECORDS) -> Iterator[Gallery]:
    """Fill a database with jobs that train, and serve it until the end of a block."""
    cloud = FakeCloud(VirtualClock(), Settings(page=1000))
    with engine.begin() as connection:
        partitions.create_ahead(connection)
    with (
        CloudServer(cloud) as server,
        host(engine, DashboardFiles.read()) as controller,
        ExitStack() as stack,
    ):
        provider = FakeCloudProvider(server.url, "account")
        labels = ResourceLabels("gallery", b"a secret")
        Fleet(engine, provider, labels, jobs, records, WISHES).build()
        provider.close()
        streams = controller.app.state.streams
        listener = PgListener(engine.url, streams.note_job, streams.wake, streams.wake)
        stack.callback(listener.stop)
        listener.start()
        place = Gallery(controller.url, {"Authorization": f"Bearer {KEYS.home_token}"})
        place.add_pages()
        yield place


def copy_jobs(connection: Connection, count: int, prefix: str = "many") -> None:
    """Add jobs that wait, named many-0001 and so on."""
    for copy in (COPY_JOBS, COPY_OUTCOMES):
        connection.execute(copy, {"jobs": count, "prefix": prefix})


def settle(page: Page) -> None:
    """Wait until a page has loaded what it shows."""
    expect(page.locator("main h1, main [role=alert]").first).to_be_visible()
    expect(page.get_by_label("loading")).to_have_count(0)
