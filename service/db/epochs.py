"""The epochs table: how many launches of each stretch of this database's life it remembers.

Every launch is stamped before it is asked for, and the machine carries the stamp. So a database
that was restored from a backup does not know the stamps of what was launched since, however many
launches it counts anew: whoever finds a count that is not the own goes on under another token.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from uuid import uuid4

from sqlalchemy import Connection, insert, select, update

from service.db.schema import epochs


class Epoch:
    """Launches of one controller, as long as its database remembers all of them."""

    def __init__(self) -> None:
        self._token, self._launches = uuid4().hex, 0
        self._turn = threading.Lock()

    def stamp(self, connection: Connection) -> str:
        """Count a launch, and return what its machine will carry."""
        with self._turn:
            if not self._count(connection):
                self._token, self._launches = uuid4().hex, 1
                row = {"token": self._token, "launches": self._launches}
                connection.execute(insert(epochs).values(row))
            return f"{self._token}-{self._launches}"

    def _count(self, connection: Connection) -> bool:
        mine = (epochs.c.token == self._token, epochs.c.launches == self._launches)
        self._launches += 1
        # Another thread's count may not be committed yet: wait for it, then compare.
        connection.execute(select(epochs).where(mine[0]).with_for_update())
        query = update(epochs).where(*mine).values(launches=self._launches)
        return connection.execute(query).rowcount == 1


def launches(connection: Connection, tokens: Iterable[str]) -> Mapping[str, int]:
    """Return how many launches are remembered of each of these epochs that is known at all."""
    query = select(epochs.c.token, epochs.c.launches).where(epochs.c.token.in_(set(tokens)))
    return {row.token: row.launches for row in connection.execute(query)}


def token_of(stamp: str) -> str:
    """Return the epoch a stamp belongs to.

    >>> token_of("5ca7e26e-12")
    '5ca7e26e'
    """
    return stamp.rpartition("-")[0]


def is_remembered(stamp: str, known: Mapping[str, int]) -> bool:
    """Tell whether a launch was before the last thing the database remembers.

    >>> [is_remembered(stamp, {"a": 2}) for stamp in ("a-2", "a-3", "b-1", "a-x", "")]
    [True, False, False, False, False]
    """
    token, _, number = stamp.rpartition("-")
    is_number = number.isascii() and number.isdigit()
    return is_number and int(number) <= known.get(token, 0)
