"""Redaction: removes secrets from text before it is logged, stored or shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 6  # what is shorter occurs in words

SENSITIVE_NAMES = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credentials?|api[_-]?key|private[_-]?key)"
)
SENSITIVE_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(sc[csv]_)[\w-]+"), rf"\1{REDACTED}"),
    (re.compile(r"eyJ[\w-]+(?:\.[\w-]*)*"), REDACTED),
    # The URL of a signed request is enough to send it.
    (
        re.compile(r"(?i)(x-(?:amz|goog)-(?:signature|credential)(?:=|%3d))[\w%./@-]+"),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]+"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)(authorization\\*[\"']?\s*[:=,]\s*\\*[\"']?)[^\r\n\"']+"), rf"\1{REDACTED}"),
    (re.compile(r"(\w://[^\s/:@\"']*:)[^\s/\"']+(?=@)"), rf"\1{REDACTED}"),
    (
        re.compile(
            rf"(?i)({SENSITIVE_NAMES}\w*(?:=|\\*[\"']\s*[:,]\s*)\\*[\"']?)(?!\[redacted)[^\s\"',;)}}\]]+"
        ),
        rf"\1{REDACTED}",
    ),
)


class Redactor:
    """Knows the secrets of this controller, and how secrets look in general.

    Known secrets are removed anywhere; unknown ones only where a pattern matches: tokens of ours,
    signed tokens, headers, passwords of URLs, and values that stand beside a name such as
    ``password``.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: re.Pattern[str] | None = None
        self._secrets: set[str] = set()
        self.add_secrets(*secrets)

    def add_secrets(self, *secrets: str) -> None:
        """Take out these, too, from now on, also as they look in a URL or in JSON."""
        for secret in secrets:
            if len(secret) >= MIN_SECRET_LENGTH:
                self._secrets |= set(encodings_of(secret))
        # The longest first: of two secrets one may begin with the other.
        found = "|".join(re.escape(each) for each in sorted(self._secrets, key=len, reverse=True))
        self._known = re.compile(found) if found else None

    def clean(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for shape, mark in SENSITIVE_SHAPES:
            text = shape.sub(mark, text)
        return text


def encodings_of(secret: str) -> Iterable[str]:
    """Return a secret as programs write it."""
    yield secret
    yield quote(secret)
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
