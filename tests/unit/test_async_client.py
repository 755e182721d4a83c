"""Both clients from one description: the same methods, which ask the same and return the same."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from scavenger import AsyncClient, Client
from scavenger.client.client import ControllerMethods
from scavenger.client.core import ApiRequest, Conversation, Sleep, get, post, send
from scavenger.client.errors import (
    ErrorResponse,
    JobCancelled,
    JobCapped,
    JobDiverged,
    JobFailed,
    JobInfeasible,
    JobUnplaced,
    ServerFault,
    StillRunning,
    TooManyRequests,
    Unreachable,
)
from scavenger.client.methods import ConversationMethod, ListingMethod
from scavenger.schemas.access import UserRole
from scavenger.schemas.jobs import JobPhase, JobView
from tests.unit.test_cli_rendering import ID, curve_view, event, job_view, problem

URL = "http://127.0.0.1:8321"
METHODS = {
    name: method
    for kind in reversed(ControllerMethods.__mro__)
    for name, method in vars(kind).items()
    if isinstance(method, ConversationMethod | ListingMethod)
}
# What methods are called with; one that is not here takes the id of a job for all it requires.
CALLS: dict[str, tuple[Any, ...]] = {
    "submit": ("name: x",),
    "has_code": ("a" * 64,),
    "upload_code": ("a" * 64, io.BytesIO(b"archive"), 7),
    "list_jobs": (3,),
    "import_prices": ([],),
    "list_offers": (3, {"cloud": "aws"}),
    "list_machines": (3, {"state": "gone"}),
    "get_cost": ("day",),
    "confirm_sweep": (3,),
    "create_token": ("ci", UserRole.VIEWER),
    "revoke_token": ("a/b",),
    "change_limits": (ID, {"max_time": "2h"}),
    "change_webhook": ("whk_1", {"is_enabled": False}),
    "listen": (ID, 0),
}


def call_of(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments with which a method can be called."""
    if name in CALLS:
        return CALLS[name], {}
    every = list(inspect.signature(METHODS[name].describe).parameters.values())[1:]
    required = [each for each in every if each.default is each.empty]
    named = {each.name: ID for each in required if each.kind is each.KEYWORD_ONLY}
    return tuple(ID for each in required if each.name not in named), named


@dataclass
class Recorder:
    """Answers every request alike, and remembers what was asked."""

    asked: list[tuple[str, str, bytes, str]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        kind = request.headers.get("content-type", "")
        self.asked.append((request.method, str(request.url), request.content, kind))
        return httpx.Response(200, json=ANSWER)

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self(request)


def as_json(view: Any) -> dict[str, Any]:
    return dict(json.loads(view.model_dump_json()))


# Every view finds its own fields in it.
LISTS = ("jobs", "models", "prices", "offers", "entries", "sweeps", "tokens", "refused", "checks")
ANSWER = {
    **as_json(curve_view()),
    **as_json(job_view(JobPhase.SUCCEEDED)),
    **{name: [] for name in LISTS},
    "events": [as_json(event(1))],
    "sha256": "", "size": 1, "accepted": 0, "status": "ok", "version": "1",
    "at": "2026-01-01T00:00Z",
    "by": "day", "until": "2026-01-01T00:00Z", "total": {"amount": "1"}, "number": 1, "cloud": "",
    "shown": 0, "suspects": [], "ended": 0, "tripped": None, "confirmed_at": None, "project": "",
    "role": "viewer", "created_by": "", "code": "c",
    "expires_at": "2026-01-01T00:00Z", "revoked_at": None,
    "last_used_at": None, "token": "t", "next_cursor": None,
}  # fmt: skip


# What never ends is followed in tests/integration/test_followers.py.
@pytest.mark.parametrize("name", sorted({*METHODS} - {"follow"}))
def test_both_clients_ask_the_same_and_return_the_same(name: str) -> None:
    arguments, options = call_of(name)
    blocking, awaiting = Recorder(), Recorder()
    with Client(URL, "t", transport=httpx.MockTransport(blocking)) as client:
        try:
            result = getattr(client, name)(*arguments, **options)
            here = [*result] if isinstance(METHODS[name], ListingMethod) else result
        except ServerFault as error:  # the answer is not of this view, for neither client
            here = str(error)

    async def ask() -> Any:
        transport = httpx.MockTransport(awaiting.answer_soon)
        async with AsyncClient(URL, "t", transport=transport) as client:
            try:
                result = getattr(client, name)(*arguments, **options)
                if isinstance(METHODS[name], ListingMethod):
                    return [item async for item in result]
                return await result
            except ServerFault as error:
                return str(error)

    assert asyncio.run(ask()) == here
    assert awaiting.asked == blocking.asked
    assert name == "import_prices" or blocking.asked


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_takes_and_does(name: str) -> None:
    for method in (getattr(Client(URL, "t"), name), getattr(AsyncClient(URL, "t"), name)):
        assert method.__name__ == name
        assert inspect.getdoc(method)
        assert "client" not in inspect.signature(method).parameters
        assert "self" not in inspect.signature(method).parameters
    assert inspect.getdoc(getattr(Client, name))


Answer = Callable[[ApiRequest[Any]], httpx.Response | Exception]


def play(conversation: Conversation[Any], answer: Answer) -> tuple[Any, list[float], int]:
    """Carry a conversation out without a network; returns result, pauses and requests."""
    pauses, requests, outcome = list[float](), 0, None
    while True:
        try:
            if isinstance(outcome, Exception):
                failure = Unreachable(URL, "lost")
                failure.__cause__ = outcome
                step = conversation.throw(failure)
            else:
                step = conversation.send(outcome)
        except StopIteration as end:
            return end.value, pauses, requests
        except ErrorResponse as error:
            return error, pauses, requests
        if isinstance(step, Sleep):
            pauses.append(step.seconds)
            outcome = None
        else:
            requests += 1
            outcome = answer(step)


def refusing(status: int, code: str, retry_after: str) -> Answer:
    shown = problem(status, code=code).model_dump_json()
    return lambda _: httpx.Response(
        status, text=shown, headers={"retry-after": retry_after} if retry_after else {}
    )


@pytest.mark.parametrize(
    ("status", "code", "retry_after", "pauses"),
    [
        (429, "too_many_requests", "3", [3, 3]),
        (503, "database_unavailable", "2", [2, 2]),
        (503, "not_ready", "2", [2, 2]),
        (409, "idempotency_in_progress", "1", [1, 1]),
        (503, "bucket_unavailable", "60", []),
        (503, "a_code_of_a_newer_controller", "4", [4, 4]),
        (409, "conflict_state", "", []),
        (500, "internal", "", []),
        (503, "not_ready", "Wed, 21 Oct 2026 07:28:00 GMT", []),
    ],
)
def test_a_request_is_repeated_when_the_controller_says(
    status: int, code: str, retry_after: str, pauses: list[float]
) -> None:
    for request in (get(JobView, "/v1/jobs/x"), post(JobView, "/v1/jobs/x/actions/cancel")):
        error, waited, requests = play(send(request), refusing(status, code, retry_after))
        assert waited == pauses
        assert requests == len(pauses) + 1
        assert error.retry_after == (float(retry_after) if retry_after.isdecimal() else None)


def test_what_may_take_effect_twice_is_not_repeated() -> None:
    request = ApiRequest(JobView, "POST", "/v1/jobs")
    answer = refusing(503, "database_unavailable", "1")
    assert play(send(request), answer)[2] == 1
    refused = refusing(429, "too_many_requests", "1")
    assert play(send(request), refused)[2] == 3, "what was refused took no effect"
    assert isinstance(play(send(request), refused)[0], TooManyRequests)


ENDINGS = [
    (JobPhase.FAILED, {"worker_exit_code": 1}, JobFailed),
    (JobPhase.FAILED, {"reason": "no configuration meets the limits"}, JobInfeasible),
    (JobPhase.FAILED, {"diverged": True}, JobDiverged),
    (JobPhase.CAPPED, {}, JobCapped),
    (JobPhase.CAPPED, {"lacks_capacity": True}, JobUnplaced),
    (JobPhase.CANCELLED, {}, JobCancelled),
]


def waiting(*states: JobView) -> tuple[Conversation[JobView], Answer]:
    shown = [*states]
    conversation = METHODS["wait"].describe(None, ID, 60.0)
    return conversation, lambda _: httpx.Response(
        200, text=(shown.pop(0) if len(shown) > 1 else shown[0]).model_dump_json()
    )


def test_a_job_is_waited_for() -> None:
    result, pauses, requests = play(*waiting(job_view(), job_view(), job_view(JobPhase.SUCCEEDED)))
    assert result.phase is JobPhase.SUCCEEDED
    assert len(pauses) == requests - 1 == 2


@pytest.mark.parametrize(("phase", "changes", "kind"), ENDINGS)
def test_a_job_that_ends_otherwise_is_an_error_with_its_reason(
    phase: JobPhase, changes: dict[str, Any], kind: type[Exception]
) -> None:
    ended = job_view(phase, **changes)
    with pytest.raises(kind) as caught:
        play(*waiting(job_view(), ended))
    assert getattr(caught.value, "job") == ended  # noqa: B009


def test_waiting_ends_with_its_time() -> None:
    conversation = METHODS["wait"].describe(None, ID, 0.0)
    with pytest.raises(StillRunning, match="after 0 s"):
        play(conversation, lambda _: httpx.Response(200, text=job_view().model_dump_json()))


def test_a_controller_that_restarts_is_waited_for_and_one_that_stays_away_is_not() -> None:
    shown = iter([True, False, False, False, True])
    states = iter([job_view(), job_view(JobPhase.SUCCEEDED)])

    def answer(_: ApiRequest[Any]) -> httpx.Response | Exception:
        if next(shown, False):
            return httpx.Response(200, text=next(states).model_dump_json())
        return httpx.ConnectError("refused")

    assert play(METHODS["wait"].describe(None, ID, None), answer)[0].phase is JobPhase.SUCCEEDED
    states = iter([job_view()])
    shown = iter([True])
    with pytest.raises(Unreachable):
        play(METHODS["wait"].describe(None, ID, None), answer)
    with pytest.raises(Unreachable):
        play(METHODS["wait"].describe(None, ID, None), lambda _: httpx.ConnectError("refused"))
