"""Cursors: where the next page of a list begins, signed, so that only what was given out is read.

Every list pages the same way: ``limit`` and ``cursor`` go in, ``next_cursor`` comes out, and is
null on the last page.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request
from pydantic import TypeAdapter

from service.api.refusal import Refusal
from service.api.spelling import Spelling

PROOF = 16
FOREIGN = (
    "this is no cursor of this list; send the next_cursor of the page before as it is, "
    "or none to begin anew"
)

T = TypeVar("T")

Limit = Annotated[int, Query(description="Entries of a page at most", ge=1, le=200)]
Cursor = Annotated[
    str | None,
    Query(
        description="The next_cursor of the page before",
        min_length=24,
        max_length=1000,
    ),
    Spelling("^[A-Za-z0-9_-]+$", FOREIGN),
]


@dataclass(frozen=True, slots=True)
class Cursors:
    """Writes positions in lists and reads them back."""

    key: bytes = field(repr=False)

    def write(self, listed: str, *position: str | int) -> str:
        """Write a position in the list of that name."""
        content = json.dumps(position).encode()
        return urlsafe_b64encode(self._prove(listed, content) + content).decode().rstrip("=")

    def read(self, listed: str, cursor: str, adapter: TypeAdapter[T]) -> T:
        """Read a position in the list of that name.

        Raises:
            Refusal: Nobody was given this cursor, or for another list.
        """
        try:
            signed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            proof, content = signed[:PROOF], signed[PROOF:]
            is_ours = hmac.compare_digest(proof, self._prove(listed, content))
            # Decoding overlooks odd characters; what was given out has one spelling only.
            if is_ours and urlsafe_b64encode(signed).decode().rstrip("=") == cursor:
                return adapter.validate_json(content)
        except ValueError:
            pass
        raise Refusal("validation", FOREIGN)

    def _prove(self, listed: str, content: bytes) -> bytes:
        return hmac.digest(self.key, f"{listed}\n".encode() + content, "sha256")[:PROOF]


def cursors_of(request: Request) -> Cursors:
    """Return what reads and writes the cursors of the application that was asked."""
    cursors = request.app.state.cursors
    assert isinstance(cursors, Cursors)
    return cursors


Pages = Annotated[Cursors, Depends(cursors_of)]
