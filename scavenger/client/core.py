"""What the client asks and how it reads the answers, without a network.

A method of the client is described once, as one request or as a conversation: a generator that
yields steps and is sent their outcomes. ``scavenger.client.drivers`` carries steps out, in one way
for ``Client`` and in another for ``AsyncClient``; tests carry them out by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import ValidationError

from scavenger.client.errors import (
    ErrorResponse,
    RateLimited,
    ServerFault,
    Unreachable,
    error_for_problem,
)
from scavenger.schemas.base import View
from scavenger.schemas.problems import ProblemView

ANSWER_TIMEOUT = 15.0
REQUEST_ATTEMPTS = 3
MAX_PAGE_SIZE = 200  # the largest that the controller allows
# A command that asks for patience longer than this had better say so and end.
MAX_REPEAT_PAUSE = 10.0
# Errors before the first byte left: the controller cannot have acted, and a repetition fails alike.
NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
JOB_LOOK_INTERVAL = 1.0  # seconds between two looks at a job
PATIENT_ATTEMPTS = 30  # with that interval longer than a controller takes to restart
KEY_HEADER = "Idempotency-Key"
DOCUMENT_MEDIA_TYPES = {"yaml": "application/yaml", "json": "application/json"}

AgreedT = TypeVar("AgreedT")
ViewT = TypeVar("ViewT", bound=View)
ListedT = TypeVar("ListedT")
QueryParameters = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[ViewT]):
    """One request, and what its answer is read as.

    Attributes:
        view: Schema of a successful answer.
        method: Method of HTTP.
        path: Path below the controller's address.
        parameters: Query parameters.
        content: The body; a function that returns its parts where it is large.
        headers: Headers beside those of the client.
        timeout: Seconds to wait for a part of the answer.
    """

    view: type[ViewT]
    method: str
    path: str
    parameters: QueryParameters = field(default_factory=dict)
    content: bytes | Callable[[], Iterator[bytes]] = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = ANSWER_TIMEOUT

    @property
    def is_repeatable(self) -> bool:
        """Whether it takes effect once, however often it is sent."""
        return self.method in ("GET", "PUT") or KEY_HEADER in self.headers


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait before the next step.

    Attributes:
        seconds: How long at least.
        turns: How often the client's own pause, where that is longer.
    """

    seconds: float
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Found(Generic[ListedT]):
    """One item of an iteration."""

    item: ListedT


@dataclass(frozen=True, slots=True, eq=False)
class EventStream:
    """A stream of events; a step reads its next line, and the first one opens it.

    The outcome is a line, None where the stream ended, or an answer that is no stream. Another
    stream, also an equal one, closes this one.

    Attributes:
        path: Path below the controller's address.
        parameters: Query parameters.
    """

    path: str
    parameters: QueryParameters = field(default_factory=dict)


Step = ApiRequest[Any] | Sleep | EventStream
StepOutcome = httpx.Response | str | None
Conversation = Generator[Step, StepOutcome, AgreedT]
Listing = Generator[Step | Found[ListedT], StepOutcome, None]


def send(request: ApiRequest[ViewT]) -> Conversation[ViewT]:
    """Send a request, again where that may succeed and takes effect once, and read the answer.

    Raises:
        Unreachable: No controller answers.
        ErrorResponse: It answers with a problem.
    """
    for turn in range(1, REQUEST_ATTEMPTS):
        try:
            return read_answer(request, (yield request))
        except (Unreachable, ErrorResponse) as error:
            seconds = seconds_to_retry(request, error)
            if seconds is None:
                raise
        yield Sleep(seconds, turn)
    return read_answer(request, (yield request))


def seconds_to_retry(request: ApiRequest[Any], error: Unreachable | ErrorResponse) -> float | None:
    """Return after how many seconds a failed request is repeated; None where it is not."""
    # What was refused for its number took no effect.
    if not (request.is_repeatable or isinstance(error, RateLimited)):
        return None
    if isinstance(error, ErrorResponse):
        wanted = error.retry_after
        return None if wanted is None or wanted > MAX_REPEAT_PAUSE else wanted
    cause = error.__cause__
    # What was never sent fails alike. A silent controller is not asked to read again: the request
    # waited long enough. One that changes something may have been carried out, and must be known.
    is_hopeless = isinstance(cause, NOT_SENT_ERRORS)
    is_slow_read = request.method == "GET" and isinstance(cause, httpx.TimeoutException)
    return None if is_hopeless or is_slow_read else 0.0


def iterate_items(
    request: ApiRequest[ViewT], items_of: Callable[[ViewT], Iterable[ListedT]]
) -> Listing[ListedT]:
    """Yield the items of a list; a page is requested only when the iteration reaches it."""
    following: ApiRequest[ViewT] | None = request
    while following is not None:
        page = yield from send(following)
        for item in items_of(page):
            yield Found(item)
        following = next_page(following, page)


def read_items(
    request: ApiRequest[ViewT], items_of: Callable[[ViewT], Sequence[ListedT]], limit: int
) -> Conversation[tuple[list[ListedT], str | None]]:
    """Return the first items of a list, and the cursor of the others; None where there are none."""
    found = list[ListedT]()
    while True:
        size = min(limit - len(found), MAX_PAGE_SIZE)
        request = get(request.view, request.path, {**request.parameters, "limit": size})
        page = yield from send(request)
        found += items_of(page)
        following = next_page(request, page)
        if following is None or not items_of(page) or len(found) >= limit:
            return found, cursor_of(page)
        request = following


def send_patiently(request: ApiRequest[ViewT]) -> Conversation[ViewT]:
    """Send a request that reads, and wait for a controller that restarts."""
    for _ in range(PATIENT_ATTEMPTS):
        try:
            return (yield from send(request))
        except Unreachable:
            yield Sleep(JOB_LOOK_INTERVAL)
    return (yield from send(request))


def next_page(request: ApiRequest[ViewT], page: View) -> ApiRequest[ViewT] | None:
    """Return the request of the page that follows one; None after the last."""
    cursor = cursor_of(page)
    # A cursor that repeats would make a list endless.
    if cursor is None or cursor == request.parameters.get("cursor"):
        return None
    return get(request.view, request.path, {**request.parameters, "cursor": cursor})


def cursor_of(page: View) -> str | None:
    """Return where the items after a page begin; None after the last."""
    cursor = getattr(page, "next_cursor", None)
    return cursor if isinstance(cursor, str) else None


def get(
    view: type[ViewT], path: str, parameters: QueryParameters | None = None
) -> ApiRequest[ViewT]:
    """Return a request that reads."""
    return ApiRequest(view, "GET", path, parameters or {})


def post(
    view: type[ViewT],
    path: str,
    document: object = None,
    *,
    media: Literal["yaml", "json"] = "json",
    method: Literal["POST", "PATCH", "DELETE"] = "POST",
    headers: Mapping[str, str] | None = None,
) -> ApiRequest[ViewT]:
    """Return a request that changes something, with an idempotency key of its own.

    The key lets the controller recognize a repetition, so it acts once.

    Args:
        view: Schema of the answer.
        path: Path of the request.
        document: The body as JSON values; None for none, a text is sent as it is.
        media: What a text is.
        method: Method of HTTP.
        headers: Headers beside the key.
    """
    kind = {} if document is None else {"Content-Type": DOCUMENT_MEDIA_TYPES[media]}
    match document:
        case None:
            content = b""
        case str():
            content = document.encode()
        case _:
            content = json.dumps(document).encode()
    sent = {**kind, KEY_HEADER: str(uuid4()), **(headers or {})}
    return ApiRequest(view, method, path, content=content, headers=sent)


def job_path(job: str) -> str:
    """Return the path of a job; an id with slashes cannot lead elsewhere."""
    return f"/v1/jobs/{quote(job, safe='')}"


def read_answer(request: ApiRequest[ViewT], response: StepOutcome) -> ViewT:
    """Read an answer.

    Raises:
        ErrorResponse: It is a problem, or no such view.
    """
    assert isinstance(response, httpx.Response)
    if not response.is_success:
        raise read_error(response, request.path)
    try:
        return request.view.model_validate_json(response.content)
    except ValidationError as error:
        detail = f"the answer is no {request.view.__name__} ({error.error_count()} differences)"
        problem = generic_problem(response, "The answer cannot be read", detail)
        raise ServerFault(problem, request.path) from None


def read_error(response: httpx.Response, path: str) -> ErrorResponse:
    """Return the error of an answer that refuses, or that is not what was asked for."""
    if response.is_success:
        detail = f"asked {path}: an older controller, or a proxy that holds streams back"
        return ServerFault(generic_problem(response, "The answer is no stream", detail), path)
    return error_for_problem(parse_problem(response), path, read_retry_after(response))


def read_retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the header Retry-After; None without one, or with a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def parse_problem(response: httpx.Response) -> ProblemView:
    """Parse an error answer, also one of a proxy in between, which describes no problem."""
    try:
        problem = ProblemView.model_validate_json(response.content)
    except ValidationError:
        words = response.reason_phrase or "no reason given"
        title = f"The server answered {response.status_code} ({words}) and is not a controller"
        return generic_problem(response, title, "")
    return problem.model_copy(update={"status": response.status_code})


def generic_problem(response: httpx.Response, title: str, detail: str) -> ProblemView:
    """Return a problem for an answer that does not describe one."""
    return ProblemView(
        type="about:blank",
        title=title,
        status=response.status_code,
        detail=detail or f"asked {response.request.method} {response.request.url.path}",
        code="unreadable",
        request_id=response.headers.get("x-request-id"),
    )
