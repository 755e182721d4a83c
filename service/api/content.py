"""Content: the body of a request, read whole, no larger and no deeper nested than allowed."""

from __future__ import annotations

import re
from itertools import accumulate

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from service.api.refusal import Refusal

LARGEST_BODY = 1 << 20
DEEPEST = 32
TEXT = re.compile(rb'"[^"]*"')
REST = bytes(set(range(256)) - set(b'[]{}"'))
STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


async def read(request: Request, receive: Receive) -> bytes:
    """Return the body of a request.

    Raises:
        Refusal: It is too large, or JSON nested too deep for those who read it.
        ClientDisconnect: The sender is gone.
    """
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > LARGEST_BODY:
        raise Refusal("payload_too_large", too_large(int(length)))
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            raise Refusal("payload_too_large", too_large(size))
        if not message.get("more_body", False):
            break
    body = b"".join(parts)
    if is_deep(body) and "yaml" not in request.headers.get("content-type", ""):
        limit = f"write at most {DEEPEST} lists and mappings inside each other"
        raise Refusal("validation", f"nested too deep: {limit}")
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """Return what hands a body over that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def is_deep(body: bytes) -> bool:
    r"""Tell whether a JSON text is nested deeper than allowed, without reading it.

    >>> [is_deep(text * 33) for text in (b"[", b"[1],", b'"[\\"",', b'{"a":')]
    [True, False, False, True]
    """
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = TEXT.sub(b"", plain.translate(None, REST)).replace(b'"', b"")
    return any(level > DEEPEST for level in accumulate(STEPS[byte] for byte in brackets))


def too_large(size: int) -> str:
    """Say how large a body may be."""
    return f"the body has {size} bytes; at most {LARGEST_BODY} are accepted"
