"""Validation before a route runs: the body's size, speed and nesting, query parameters, text rules.

A query parameter that the route does not have is refused: a list that is asked for
``?phase=failed`` would otherwise show every job, and its reader would not know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from json import JSONDecodeError
from typing import Any

from anyio import fail_after
from fastapi import Request
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, from_json
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from scavenger.errors import DocumentProblem
from scavenger.job.fields import closest_name
from service.api.problems import MAX_NAME_LENGTH, MAX_PROBLEMS_LISTED, ApiProblem

JOB_ID_PATTERN = re.compile(r"job_[0-9a-z]{1,40}")
MAX_BODY_BYTES = 1 << 20
MAX_BODY_NESTING = 32
BODY_TIMEOUT = 30.0
JSON_STRING = re.compile(rb'"[^"]*"')
ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
NESTING_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


async def read_body(request: Request, timeout: float = BODY_TIMEOUT) -> bytes:
    """Return the whole body of a request.

    Raises:
        ApiProblem: It is too large, arrives too slowly, or is JSON nested too deep to be parsed.
        ClientDisconnect: The sender is gone.
    """
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large(int(length))  # before a byte of it is read
    try:
        with fail_after(timeout):
            parts = body_parts(request.receive, MAX_BODY_BYTES)
            body = b"".join([part async for part in parts])
    except TimeoutError:
        raise ApiProblem("too_slow", f"the body must arrive within {timeout:g} s") from None
    if is_nested_too_deep(body) and "yaml" not in request.headers.get("content-type", ""):
        limit = f"write at most {MAX_BODY_NESTING} lists and mappings inside each other"
        raise ApiProblem("validation", f"nested too deep: {limit}")
    return body


async def body_parts(receive: Receive, most: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, as long as it is not too large: its header may be a lie."""
    size, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large(size, most)
        yield part
        is_more = message.get("more_body", False)


def too_large(size: int, most: int = MAX_BODY_BYTES) -> ApiProblem:
    """Return the problem of a body with too many bytes."""
    detail = f"the body has {size} bytes; at most {most} are accepted"
    return ApiProblem("payload_too_large", detail)


class ChangesNothing:
    """A dependency: the body of the request is a question, of which the audit trail need not know.

    A person who moves a limit asks many times a second.
    """

    async def __call__(self) -> None:
        """Do nothing: what counts is that a route names it."""


@dataclass(frozen=True, slots=True)
class StreamsBody:
    """A dependency: the body part by part, of a route that takes more than memory should hold.

    ``GuardedRoute`` leaves the body of such a route unread.

    Attributes:
        most: Bytes that it may have.
    """

    most: int

    async def __call__(self, request: Request) -> AsyncIterator[bytes]:
        """Return the parts of the body; each raises ApiProblem if it is too late or too much."""
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.most:
            raise too_large(int(length), self.most)

        async def receive_in_time() -> Message:
            try:
                with fail_after(BODY_TIMEOUT):
                    return await request.receive()
            except TimeoutError:
                why = f"no part of the body arrived for {BODY_TIMEOUT:g} s"
                raise ApiProblem("too_slow", why) from None

        return body_parts(receive_in_time, self.most)


class CheckedRequest(Request):
    """A request whose body was read within its limits; FastAPI reads it again from here."""

    def __init__(self, request: Request, body: bytes) -> None:
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await request.receive()

        super().__init__(request.scope, receive)

    async def json(self) -> Any:
        """Parse the body as pydantic does.

        The standard library accepts half a surrogate pair, which no database can store.
        """
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from None


def is_nested_too_deep(body: bytes) -> bool:
    r"""Tell whether a JSON text is nested deeper than allowed, without parsing it.

    >>> [is_nested_too_deep(text * 33) for text in (b"[", b"[1],", b'"[\\"",', b'{"a":')]
    [True, False, False, True]
    """
    # A parser that recurses would exhaust the stack on 100 000 brackets: they are counted first.
    if body.count(b"[") + body.count(b"{") <= MAX_BODY_NESTING:
        return False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = JSON_STRING.sub(b"", plain.translate(None, ALL_BUT_BRACKETS)).replace(b'"', b"")
    return any(
        level > MAX_BODY_NESTING for level in accumulate(NESTING_STEPS[byte] for byte in brackets)
    )


def check_parameters(request: Request, known: Sequence[str]) -> None:
    """Refuse a request whose query has parameters that its route does not have, or has one twice.

    Raises:
        ApiProblem: Lists each such parameter, with those that exist.
    """
    given = Counter(name for name, _ in request.query_params.multi_items())
    errors = []
    for name, count in given.items():
        shown = name[:MAX_NAME_LENGTH]
        if name not in known:
            errors.append(DocumentProblem(shown, unknown_parameter(shown, known)))
        elif count > 1:
            why = f'"{name}" is given {count} times, and one would count; write it once'
            errors.append(DocumentProblem(name, why))
    if errors:
        errors = errors[:MAX_PROBLEMS_LISTED]
        raise ApiProblem("validation", "; ".join(each.message for each in errors), errors)


def check_media_type(request: Request, body: bytes) -> None:
    """Refuse a body that does not say it is JSON, on a route that takes nothing else.

    Raises:
        ApiProblem: It says something else, or nothing.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and media != "application/json" and not media.endswith("+json"):
        given = f"the body came as {media[:MAX_NAME_LENGTH]}" if media else "the body has no type"
        detail = f"{given}; send JSON, with the header Content-Type: application/json"
        raise ApiProblem("unsupported_media", detail)


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """Say that a parameter does not exist, and which do.

    >>> unknown_parameter("limt", ["limit", "cursor"])
    'there is no parameter "limt" here; did you mean "limit"? this route takes limit, cursor'
    >>> unknown_parameter("x", [])
    'there is no parameter "x" here; this route takes none'
    """
    start = f'there is no parameter "{name}" here; '
    if not known:
        return f"{start}this route takes none"
    near = closest_name(name, known)
    hint = "" if near is None else f'did you mean "{near}"? '
    return f"{start}{hint}this route takes {', '.join(known)}"


def storable(text: str) -> str:
    """Return part of a path as Postgres can store and compare it: no NUL, no surrogates."""
    return text.replace("\x00", "").encode(errors="replace").decode()[:200]


@dataclass(frozen=True, slots=True)
class TextRule:
    """Refuses a text in words; OpenAPI shows the pattern.

    Stands in an ``Annotated[str, ...]`` where pydantic's own ``pattern`` would answer with the
    regular expression.

    Attributes:
        pattern: Regular expression of the whole text.
        rule: The message for a text that does not match.
        shown: The pattern in OpenAPI, where the route refuses more in words of its own.
    """

    pattern: str
    rule: str
    shown: str = ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        expression = re.compile(self.pattern)

        def check(text: str | None) -> str | None:
            if text is None or expression.search(text):
                return text
            raise PydanticCustomError("spelling", "{rule}", {"rule": self.rule})

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) | {"pattern": self.shown or self.pattern}
