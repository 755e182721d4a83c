"""Poison: what no program should send, and what some program will; each piece by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

MEBIBYTE = 1 << 20
DEEP = 100_000

# Values as JSON spells them, or as no JSON may.
JSON: dict[str, str] = {
    "NaN": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "overflowing float": "1e999",
    "underflowing float": "1e-999",
    "negative zero": "-0.0",
    "subnormal": "5e-324",
    "largest float": "1.7976931348623157e308",
    "negative": "-1",
    "fraction": "0.5",
    "2^53 + 1": str(2**53 + 1),
    "2^63": str(2**63),
    "-2^63 - 1": str(-(2**63) - 1),
    "10^30": "1" + "0" * 30,
    "5000 digits": "9" * 5000,
    "NUL": r'"a\u0000b"',
    "lone surrogate": r'"\ud800"',
    "swapped surrogates": r'"\udc00\ud800"',
    "right to left": '"\u202egnp.exe"',
    "not a character": r'"\uffff"',
    "control characters": r'"\u001b[31m\u0007\r\n"',
    "markup": '"<script>alert(1)</script>"',
    "path": '"../../etc/passwd"',
    "query": '"\'; DROP TABLE jobs; --"',
    "template": '"{{7*7}} ${jndi:ldap://x} %s %n"',
    "empty text": '""',
    "text": '"x"',
    "number in text": '"1"',
    "NaN in text": '"NaN"',
    "long text": json.dumps("x" * 900_000),
    "true": "true",
    "null": "null",
    "empty list": "[]",
    "empty mapping": "{}",
    "list": "[1, null, {}]",
    "mapping of poison": r'{"\u0000": NaN, "\ud800": 1, "": []}',
    "the same key twice": '{"a": 1, "a": 2}',
    "prototype": '{"__proto__": {"x": 1}, "__class__": "x"}',
    "deep list": "[" * DEEP,
    "deep closed list": "[" * 5000 + "]" * 5000,
    "deep mapping": '{"a":' * DEEP,
}

# Bodies that are no JSON at all.
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "one byte": b"\xff",
    "latin-1": '{"name": "é"}'.encode("latin-1"),
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "NUL bytes": b"\x00" * 1000,
    "half": b'{"a": ',
    "two": b"{} {}",
    "a mebibyte of spaces": b" " * MEBIBYTE,
    "more than a mebibyte": b" " * (MEBIBYTE + 1),
    "a mebibyte of text": b'"' + b"x" * (MEBIBYTE - 2) + b'"',
    "many numbers": b"[" + b"1," * (MEBIBYTE // 2 - 2) + b"1]",
    "many keys": b"{" + b",".join(b'"%d":1' % n for n in range(80_000)) + b"}",
    "surrogate bytes": b'{"a": "\xed\xa0\x80"}',
    "long UTF-8": b'{"a": "\xc0\xaf"}',
}

# The largest documents that are read, each as slow to read as can be.
LARGEST = 32 * 1024
HEAVY: dict[str, str] = {
    "nested lists": "[" + "[[[[1]]]]," * (LARGEST // 10 - 2) + "1]",
    "numbers": "[" + "1," * (LARGEST // 2 - 2) + "1]",
    "empty lists": "[" + "[]," * (LARGEST // 3 - 2) + "1]",
    "unknown keys": "{" + ",".join(f'"k{n}":1' for n in range(LARGEST // 11)) + "}",
    "batches": '{"limits":{"workers":"1..4","batch":[' + "1," * 16_000 + "1]}}",
    "words": '{"run":{"command":[' + "1," * 16_000 + "1]}}",
}

YAML: dict[str, str] = {
    **{f"heavy {name}": text for name, text in HEAVY.items()},
    "not a number": "name: .nan",
    "infinite": "name: -.inf",
    "alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "an alias of itself": "&a [*a]",
    "an alias of nothing": "a: *b",
    "merge": "a: &a {x: 1}\nb: {<<: *a}",
    "the same key twice": "name: a\nname: b",
    "python object": "!!python/object/apply:os.system ['true']",
    "binary": "name: !!binary gIGC",
    "timestamp": "name: 2001-12-14t21:59:43.10-05:00",
    "sexagesimal": "name: 190:20:30",
    "octal": "name: 0o777",
    "huge integer": "name: " + "9" * 5000,
    "huge exponent": "name: 1e999999999",
    "two documents": "a: 1\n---\nb: 2",
    "directive": "%YAML 9.9\n---\na: 1",
    "list as key": "? [a, b]\n: c",
    "mapping as key": "{{a: b}: c}",
    "tab": "a:\n\tb: 1",
    "escape out of range": '"\\UFFFFFFFF"',
    "surrogate": '"\\ud800"',
    "NUL": '"\\0"',
    "deep": "- " * 16_000,
    "deep flow": "[" * 30_000,
    "anchors": "[" + "&a 1," * 6_000 + "1]",
    "tags": "[" + "!a 1," * 6_000 + "1]",
    "repeated keys": "a: 1\n" * 6_500,
    "dashes": "-\n" * 16_000,
    "quotes": "'" * 32_000,
}

# Parts of a path or a query, percent-encoded.
PARTS: dict[str, str] = {
    name: quote_from_bytes(raw, safe="")
    for name, raw in {
        "NUL": b"\x00",
        "surrogate": b"\xed\xa0\x80",
        "no UTF-8": b"\xff\xfe",
        "right to left": "\u202egnp.exe".encode(),
        "line break": b"a\r\nSet-Cookie: x=1",
        "up": b"../../etc/passwd",
        "slash": b"/",
        "question": b"?x=1#y",
        "quote": b"'; DROP TABLE jobs; --",
        "percent": b"%00%",
        "number": b"1",
        "negative": b"-1",
        "2^63": b"9223372036854775808",
        "10^30": b"1" + b"0" * 30,
        "5000 digits": b"9" * 5000,
        "NaN": b"NaN",
        "infinity": b"1e999",
        "true": b"true",
        "list": b"[]",
        "job": b"job_\x00",
        "a job": b"job_zzz",
        "long": b"x" * 20_000,
    }.items()
} | {"a lone percent": "%", "half an escape": "%a", "empty": ""}

HEADERS: dict[str, bytes] = {
    "empty": b"",
    "latin-1": b"\xe9\xff",
    "right to left": "\u202e".encode(),
    "long": b"x" * 50_000,
    "quotes": b'"' * 1000,
    "many tags": b'"x",' * 8_000,
    "number": b"99999999999999999999999999",
    "negative": b"-1",
    "NaN": b"NaN",
    "star": b"*",
    "tabs": b"a\tb",
    "separators": b",;=,;=",
}


def poisoned(document: Any, one_in: int) -> Iterator[tuple[str, str]]:
    """Yield a document with each of its values replaced by poison, as text.

    Args:
        document: As it should be.
        one_in: Every piece of poison comes to one in so many places; to all of them if 1.
    """
    marker = "a place for poison"
    for number, path in enumerate(paths(document)):
        text = json.dumps(replaced(document, path, marker))
        pieces = list(JSON.items())[number % one_in :: one_in]
        for name, piece in pieces:
            yield f"{name} at {'.'.join(map(str, path))}", text.replace(f'"{marker}"', piece)


def corpus(message: Any) -> Iterator[tuple[str, bytes]]:
    """Yield bodies that are no message, and a message with poison in each of its places."""
    yield from BODIES.items()
    for name, text in poisoned(message, 3):
        yield name, text.encode()


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where every value of a document is, the whole first."""
    yield path
    entries = value.items() if isinstance(value, dict) else ()
    for part, item in enumerate(value) if isinstance(value, list) else entries:
        yield from paths(item, (*path, part))


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return new
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied
