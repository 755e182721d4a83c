"""Pagination: signed cursors that mark where the next page of a list begins.

Every list pages the same way: ``limit`` and ``cursor`` go in, ``next_cursor`` comes out and is null
on the last page.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Query
from pydantic import TypeAdapter

from service.api.dependencies import FromApp
from service.api.problems import ApiProblem
from service.api.validation import TextRule

CURSOR_SIGNATURE_BYTES = 16
NUMBER_POSITION = TypeAdapter(tuple[int])
UNKNOWN_CURSOR = (
    "this is no cursor of this list; send the next_cursor of the page before as it is, "
    "or none to begin anew"
)

PositionT = TypeVar("PositionT")
ItemT = TypeVar("ItemT")

PageLimit = Annotated[int, Query(description="Maximum number of entries", ge=1, le=200)]
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
    """Writes and reads cursors.

    A signature keeps clients from making cursors up: the position inside reaches a query.
    """

    key: bytes = field(repr=False)

    def write(self, name: str, *position: str | int) -> str:
        content = json.dumps(position).encode()
        return urlsafe_b64encode(self._sign(name, content) + content).decode().rstrip("=")

    def read(self, name: str, cursor: str, adapter: TypeAdapter[PositionT]) -> PositionT:
        """Return the position of a cursor of the list of that name.

        Raises:
            ApiProblem: This controller did not issue the cursor, or for another list.
        """
        try:
            signed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            signature, content = signed[:CURSOR_SIGNATURE_BYTES], signed[CURSOR_SIGNATURE_BYTES:]
            is_ours = hmac.compare_digest(signature, self._sign(name, content))
            # Decoding overlooks odd characters; a cursor has one spelling only.
            if is_ours and urlsafe_b64encode(signed).decode().rstrip("=") == cursor:
                return adapter.validate_json(content)
        except ValueError:
            pass
        raise ApiProblem("validation", UNKNOWN_CURSOR)

    def _sign(self, name: str, content: bytes) -> bytes:
        # The name is part of it: a cursor of one list must not mean a position in another.
        signature = hmac.digest(self.key, f"{name}\n".encode() + content, "sha256")
        return signature[:CURSOR_SIGNATURE_BYTES]


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The part of a list that a request asks for."""

    codec: CursorCodec
    limit: int
    cursor: str | None

    def position(self, name: str, adapter: TypeAdapter[PositionT]) -> PositionT | None:
        """Return where the page begins in the list of that name; None for the first page.

        Raises:
            ApiProblem: The cursor is no cursor of this list.
        """
        return None if self.cursor is None else self.codec.read(name, self.cursor, adapter)

    def number(self, name: str) -> int | None:
        """Return the number at which the page begins, in a list that is in the order of one.

        Raises:
            ApiProblem: The cursor is no cursor of this list.
        """
        position = self.position(name, NUMBER_POSITION)
        return None if position is None else position[0]

    def split(
        self,
        name: str,
        found: Sequence[ItemT],
        position_of: Callable[[ItemT], Sequence[str | int]],
    ) -> tuple[Sequence[ItemT], str | None]:
        """Return the entries of the page, and the cursor of the next.

        Args:
            name: Name of the list.
            found: One entry more than the limit, if there are as many.
            position_of: Returns the position that follows an entry.
        """
        shown = found[: self.limit]
        if len(found) == len(shown):
            return shown, None
        return shown, self.codec.write(name, *position_of(shown[-1]))


Cursors = Annotated[CursorCodec, Depends(FromApp("cursors"))]


async def page_query(codec: Cursors, limit: PageLimit = 50, cursor: PageCursor = None) -> PageQuery:
    """Return the page that a request asks for, of 50 entries unless it says otherwise."""
    return PageQuery(codec, limit, cursor)


async def long_page_query(
    codec: Cursors, limit: PageLimit = 100, cursor: PageCursor = None
) -> PageQuery:
    """Return the page that a request asks for, of 100 entries unless it says otherwise."""
    return PageQuery(codec, limit, cursor)


async def log_page_query(
    codec: Cursors, limit: PageLimit = 200, cursor: PageCursor = None
) -> PageQuery:
    """Return the page that a request asks for, of 200 entries unless it says otherwise."""
    return PageQuery(codec, limit, cursor)


Page = Annotated[PageQuery, Depends(page_query)]
LogPage = Annotated[PageQuery, Depends(log_page_query)]
LongPage = Annotated[PageQuery, Depends(long_page_query)]
