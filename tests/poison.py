"""Poison: what a broken or hostile client may put wherever a value belongs.

Every endpoint has to stay upright: no answer of 5xx, nothing stored that is not finite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MARK = "@poison@"

# JSON, or nearly, by name.
VALUES = {
    "nan": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "overflow": "1e999",
    "minus overflow": "-1e999",
    "minus zero": "-0.0",
    "subnormal": "5e-324",
    "huge": "1" + "0" * 30,
    "huge fraction": "1e308",
    "2^63": str(2**63),
    "2^53 + 1": str(2**53 + 1),
    "2^53": str(2**53),
    "minus one": "-1",
    "half": "0.5",
    "text of a number": '"nan"',
    "nul": '"a\\u0000b"',
    "lone surrogate": '"\\ud800"',
    "right to left": '"\\u202e\\u2066x"',
    "null": "null",
    "true": "true",
    "list": "[]",
    "object": "{}",
    "object with a nul": '{"a\\u0000": 1}',
    "nested list": "[[1], [2]]",
    "empty text": '""',
    "digits": "9" * 5_000,
}

# The same, so large that one place is enough for a test.
LARGE = {
    "a megabyte of text": '"' + "x" * (1 << 20) + '"',
    "nearly a megabyte of text": '"' + "x" * 900_000 + '"',
    "deep nesting": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "many members": "[" + ",".join(["0"] * 200_000) + "]",
}

# Whole bodies that are no message at all.
BODIES = {
    "nothing": b"",
    "no json": b"{",
    "no utf-8": b'{"worker": "\xff\xfe"}',
    "a mark of byte order": b"\xef\xbb\xbf{}",
    "zeros": b"\x00" * 100,
    "a number": b"1",
    "null": b"null",
    "text": b'"x"',
    "a list": b"[]",
    "deep nesting": b"[" * 100_000,
    "the same key twice": b'{"worker": "a", "worker": "b"}',
}


def places(message: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return where a message holds a value, its lists and objects included."""
    if path:
        yield path
    match message:
        case dict():
            members = list(message.items())
        case list():
            members = list(enumerate(message))
        case _:
            return
    for key, value in members:
        yield from places(value, (*path, key))


def poisoned(message: Any, path: tuple[str | int, ...], poison: str) -> bytes:
    """Return a message as JSON with a poison in one place."""
    copy = json.loads(json.dumps(message))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = MARK
    return json.dumps(copy).replace(json.dumps(MARK), poison).encode()


def corpus(message: Any) -> Iterator[tuple[str, bytes]]:
    """Return bodies that are this message but for one thing, each with a name."""
    yield from BODIES.items()
    for path in places(message):
        for name, poison in VALUES.items():
            yield f"{'.'.join(map(str, path))}: {name}", poisoned(message, path, poison)
    for name, poison in LARGE.items():
        for path in list(places(message))[::7]:
            yield f"{'.'.join(map(str, path))}: {name}", poisoned(message, path, poison)
