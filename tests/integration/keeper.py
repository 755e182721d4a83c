"""A controller whose cloud names a bucket, and machines that send and fetch checkpoints there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine

from scavenger.checkpoints import (
    CheckpointPart,
    CheckpointUpload,
    NewestCheckpoint,
    StoredCheckpoint,
    UploadTarget,
)
from scavenger.worker_env import WorkerEnv
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.clouds.object_store import ObjectStore
from service.clouds.storage import CheckpointStorage, delete_old_checkpoints
from service.db import directives, jobs, vms
from tests.builders import directive, document, offer
from tests.contract.host import serve, unhurried
from tests.fakecloud.object_server import ObjectShelf

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
NEWEST_GENERATION = 1000
_UPLOAD = TypeAdapter(CheckpointUpload)
_TARGET = TypeAdapter(UploadTarget)
_NEWEST = TypeAdapter(NewestCheckpoint)


class KeepingProvider(LocalProvider):
    """A cloud with a bucket."""

    def __init__(self, store: ObjectStore | None) -> None:
        super().__init__(Path("/nowhere"), "python")
        self.object_store = store
        self.traits = replace(self.traits, is_rented=True)


@dataclass
class Shift:
    """How far the controller's clock is ahead; the bucket and what signs for it have their own."""

    by: timedelta = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.by


@dataclass(frozen=True, slots=True)
class Shifted(AppState):
    """A state whose clock a test sets."""

    shift: Shift = field(kw_only=True)

    def now(self) -> datetime:
        return self.shift.now()


@dataclass
class Keeper:
    """A controller with one job.

    Attributes:
        client: Asks it as the machine whose token is sent.
        shelf: What is in the bucket.
    """

    engine: Engine
    client: TestClient
    clouds: Clouds
    shelf: ObjectShelf
    shift: Shift
    job: str = ""

    def submit(self, **run: Any) -> str:
        """Submit a job, and publish a generation of it."""
        job = document(run={"command": ["python", "train.py"], **run})
        headers = {"Authorization": f"Bearer {KEYS.home_token}"}
        answer = self.client.post("/v1/jobs", json=job, headers=headers)
        assert answer.status_code == 201, answer.text
        self.job = str(answer.json()["id"])
        with self.engine.begin() as connection:
            now = datetime.now(UTC)
            newest = directive(1, 32, generation=NEWEST_GENERATION)
            directives.publish(connection, self.job, newest, now)
        return self.job

    def launch(self, number: int) -> Worker:
        worker = f"{self.job}-w{number}"
        with self.engine.begin() as connection:
            now, minute = datetime.now(UTC), timedelta(minutes=1)
            vms.record_intent(connection, self.job, number, offer("0.36"), now, minute)
            vms.record_attempt(connection, worker, now, now + minute, "a-1")
        return Worker(self, worker)

    def events(self, kind: str) -> list[str]:
        with self.engine.connect() as connection:
            page = jobs.events_after(connection, self.job, 0, 200)
        return [event.message for event in page if event.kind == kind]

    def wait(self, seconds: float) -> None:
        """Let time pass for the controller."""
        self.shift.by += timedelta(seconds=seconds)

    def tidy(self) -> int:
        """Delete what may be deleted."""
        return delete_old_checkpoints(self.engine, self.clouds, self.shift.now())

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve the controller over HTTP; returns its URL."""
        app: Any = self.client.app
        with serve(app) as url:
            yield url

    def kept(self) -> set[str]:
        """Return the checkpoints of which the bucket has an object."""
        return {name.split("/")[-2] for name in self.shelf.names() if self.job in name}


@dataclass(frozen=True)
class Worker:
    """A machine of the job, as the controller hears it."""

    keeper: Keeper
    id: str

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        now = self.keeper.shift.now().timestamp()
        token = KEYS.issue_worker_token(self.id, 1, now)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        url = f"/v1/agent/checkpoints/{path}"
        answer: Any = self.keeper.client.request(method, url, headers=headers, **options)
        return answer  # type: ignore[no-any-return]

    def env(self, url: str) -> WorkerEnv:
        """Return the variables of the machine, for an agent."""
        return WorkerEnv(
            controller=url,
            token=KEYS.issue_worker_token(self.id, 1),
            job=self.keeper.job,
            worker=self.id,
            prepaid=60.0,
            checkpoint_store=True,
        )

    def announce(self, upload: CheckpointUpload, *, is_sent: bool = False) -> httpx.Response:
        content = _UPLOAD.dump_json(replace(upload, is_sent=is_sent))
        return self.ask("PUT", upload.id, content=content)

    def begin(self, upload: CheckpointUpload) -> UploadTarget:
        answer = self.announce(upload)
        assert answer.status_code == 200, answer.text
        return _TARGET.validate_json(answer.content)

    def send(self, upload: CheckpointUpload, contents: list[bytes]) -> list[int]:
        """Send all parts; returns the status of each."""
        requests = self.begin(upload).requests
        return [
            httpx.put(
                request.url, content=content, headers=request.headers, trust_env=False
            ).status_code
            for request, content in zip(requests, contents, strict=True)
        ]

    def save(self, generation: int, iteration: int, contents: list[bytes]) -> CheckpointUpload:
        """Put a checkpoint into the bucket."""
        upload = upload_of(generation, iteration, contents)
        assert set(self.send(upload, contents)) <= {200, 412}
        answer = self.announce(upload, is_sent=True)
        assert answer.status_code == 200, answer.text
        return upload

    def newest(self, older_than: str | None = None) -> StoredCheckpoint | None:
        query = {} if older_than is None else {"older_than": older_than}
        answer = self.ask("GET", "newest", params=query)
        assert answer.status_code == 200, answer.text
        return _NEWEST.validate_json(answer.content).stored


def fetch(stored: StoredCheckpoint) -> list[bytes]:
    """Fetch all parts, as they were told."""
    contents = []
    for request, part in zip(stored.requests, stored.parts, strict=True):
        answer = httpx.get(request.url, headers=request.headers, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert (len(answer.content), sha256(answer.content).hexdigest()) == (part.size, part.sha256)
        contents.append(answer.content)
    return contents


def upload_of(generation: int, iteration: int, contents: list[bytes]) -> CheckpointUpload:
    """Describe a checkpoint: what comes first is its manifest."""
    parts = tuple(
        CheckpointPart(
            "state.safetensors" if number else "state.json",
            len(content),
            sha256(content).hexdigest(),
        )
        for number, content in enumerate(contents)
    )
    return CheckpointUpload(generation, iteration, parts)


@contextmanager
def open_keeper(engine: Engine, store: ObjectStore | None, shelf: ObjectShelf) -> Iterator[Keeper]:
    """Open a controller whose cloud has this bucket."""
    clouds = Clouds([KeepingProvider(store)])
    shift = Shift()
    state = Shifted(engine, clouds, CheckpointStorage(Path("/srv"), clouds), shift=shift)
    with TestClient(build_app(state, KEYS, unhurried())) as client:
        yield Keeper(engine, client, clouds, shelf, shift)
