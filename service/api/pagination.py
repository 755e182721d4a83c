"""Pagination: signed cursors that mark where the next page of a list begins.

Every list pages the same way: ``limit`` and ``cursor`` go in, ``next_cursor`` comes out and is null
on the last page.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request
from pydantic import TypeAdapter

from service.api.problems import ApiProblem
from service.api.validation import TextRule

CURSOR_SIGNATURE_BYTES = 16
UNKNOWN_CURSOR = (
    "this is no cursor of this list; send the next_cursor of the page before as it is, "
    "or none to begin anew"
)

PositionT = TypeVar("PositionT")

PageLimit = Annotated[int, Query(description="Entries of a page at most", ge=1, le=200)]
PageCursor = Annotated[
    str | None,
    Query(
        description="The next_cursor of the page before",
        min_length=24,
        max_length=1000,
    ),
    TextRule("^[A-Za-z0-9_-]+$", UNKNOWN_CURSOR),
]


@dataclass(frozen=True, slots=True)
class CursorCodec:
    """Writes positions in lists and reads them back."""

    key: bytes = field(repr=False)

    def write(self, listed: str, *position: str | int) -> str:
        """Write a position in the list of that name."""
        content = json.dumps(position).encode()
        return urlsafe_b64encode(self._prove(listed, content) + content).decode().rstrip("=")

    def read(self, listed: str, cursor: str, adapter: TypeAdapter[PositionT]) -> PositionT:
        """Read a position in the list of that name.

        Raises:
            Refusal: Nobody was given this cursor, or for another list.
        """
        try:
            signed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            proof, content = signed[:CURSOR_SIGNATURE_BYTES], signed[CURSOR_SIGNATURE_BYTES:]
            is_ours = hmac.compare_digest(proof, self._prove(listed, content))
            # Decoding overlooks odd characters; what was given out has one spelling only.
            if is_ours and urlsafe_b64encode(signed).decode().rstrip("=") == cursor:
                return adapter.validate_json(content)
        except ValueError:
            pass
        raise ApiProblem("validation", UNKNOWN_CURSOR)

    def _prove(self, listed: str, content: bytes) -> bytes:
        return hmac.digest(self.key, f"{listed}\n".encode() + content, "sha256")[
            :CURSOR_SIGNATURE_BYTES
        ]


def cursor_codec_of(request: Request) -> CursorCodec:
    """Return what reads and writes the cursors of the application that was asked."""
    cursors = request.app.state.cursors
    assert isinstance(cursors, CursorCodec)
    return cursors


PageCursors = Annotated[CursorCodec, Depends(cursor_codec_of)]
