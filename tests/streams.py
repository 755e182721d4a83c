"""Followers of event streams, and controllers whose streams wake as those of a real one do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine

from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.background import PgListener
from service.clouds.storage import CheckpointStorage
from tests.builders import HERE
from tests.contract.host import Host, serve, unhurried
from tests.controller_double import LONG

STREAM = {"Accept": "text/event-stream"}


@dataclass
class Frame:
    """One frame of a stream.

    Attributes:
        kind: ``event`` or ``job``; ``comment`` and ``retry`` for what is neither.
    """

    kind: str = ""
    number: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


def frames_of(answer: httpx.Response) -> Iterator[Frame]:
    """Yield the frames of a stream until it ends."""
    frame = Frame()
    for line in answer.iter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "" if line:
                yield Frame("comment")
            case "retry":
                yield Frame("retry", int(value))
            case "event":
                frame.kind = value
            case "id":
                frame.number = int(value)
            case "data":
                frame.data = json.loads(value)
            case "" if frame.kind:
                yield frame
                frame = Frame()


@contextmanager
def follow(
    url: str, token: str, path: str = "/v1/events", **headers: str
) -> Iterator[Iterator[Frame]]:
    """Open a stream, and yield its frames but the first, which is read."""
    sent = {**STREAM, **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    with (
        httpx.Client(timeout=LONG) as client,
        client.stream(
            "GET", f"{url}{path}", headers={name.replace("_", "-"): sent[name] for name in sent}
        ) as answer,
    ):
        if not answer.is_success:
            answer.read()
            answer.raise_for_status()
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = frames_of(answer)
        first = next(frames)
        assert (first.kind, first.number) == ("retry", 2000)
        yield frames


@contextmanager
def streaming(engine: Engine, keys: ControllerKeys, *, hears: bool = True) -> Iterator[Host]:
    """Run a controller until the end of a block, which may hear of events and of changed jobs."""
    state = AppState(engine, HERE, CheckpointStorage(Path("/srv")))
    app = build_app(state, keys, unhurried())
    streams = app.state.streams
    listener = PgListener(engine.url, streams.note_job, streams.wake, streams.wake)
    if hears:
        listener.start()
    try:
        with serve(app) as url:
            yield Host(url, app)
    finally:
        if hears:
            listener.stop()
