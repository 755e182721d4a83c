"""What schemathesis cannot know of this API: which conditions hold, and who speaks for whom."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import schemathesis
from pydantic import JsonValue, TypeAdapter

from service.api.pagination import CursorCodec
from service.api.problems import ApiProblem
from tests.contract.host import JOB, KEYS, THERE, WORKER

LISTS = (
    "jobs",
    "models",
    "prices",
    "offers",
    "sweeps",
    "events",
    f"events of {JOB}",
    f"orders of {JOB}",
    "webhooks",
    f"deliveries of {THERE['{webhook}']}",
    f"decisions of {JOB}",
    "machines",
    f"logs of {JOB}",
    *(f"cost by {by}" for by in ("job", "model", "project", "cloud", "day")),
)


@schemathesis.hook
def before_call(_: Any, case: Any, kwargs: Any) -> None:
    """Make conditions hold where data should be accepted: no schema can say when they do."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    headers = case.headers or {}
    if "If-Match" in headers:
        headers["If-Match"] = "*"
    if "Idempotency-Key" in headers:
        headers["Idempotency-Key"] = str(uuid4())
    query = case.query or {}
    if "cursor" in query and not is_given_out(query["cursor"]):
        del query["cursor"]
    if isinstance(case.body, dict) and "worker" in case.body:
        case.body["worker"] = WORKER


def is_given_out(cursor: object) -> bool:
    return isinstance(cursor, str) and any(reads(listed, cursor) for listed in LISTS)


def reads(listed: str, cursor: str) -> bool:
    try:
        CursorCodec(KEYS.cursor_secret()).read(listed, cursor, TypeAdapter(JsonValue))
    except ApiProblem:
        return False
    return True
