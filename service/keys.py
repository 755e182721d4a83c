"""Keys: the first token people use and the secret that worker tokens are signed with.

Both lie in the home directory, readable by its owner only. Other tokens of people are in the
database, by their hashes; so is the first once a controller has started. A worker token names its
machine and opens the agent endpoints only, for as long as that machine exists.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jwt

from service.caller import Machine
from service.credential import make_token

AUDIENCE = "scavenger-agent"


@dataclass(frozen=True, slots=True)
class Keys:
    """The two secrets of a controller."""

    token: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def at(cls, home: Path) -> Keys:
        """Read the keys of a home directory; they are made the first time."""
        token = read_or_make(home / "token", make_token())
        return cls(token, read_or_make(home / "secret", secrets.token_urlsafe(48)))

    def issue(self, worker: str) -> str:
        """Make the token of a machine."""
        return jwt.encode({"sub": worker, "aud": AUDIENCE}, self.secret, algorithm="HS256")

    def share(self, job: str) -> str:
        """Make the secret that workers and parameter servers of one job know each other by."""
        return hmac.digest(self.secret.encode(), f"job {job}".encode(), "sha256").hex()

    def ownership(self) -> bytes:
        """Make the secret that machines of this installation are proven with."""
        return hmac.digest(self.secret.encode(), b"ownership", "sha256")

    def cursors(self) -> bytes:
        """Make the secret that positions in lists are signed with."""
        return hmac.digest(self.secret.encode(), b"cursors", "sha256")

    def machine(self, token: str) -> Machine | None:
        """Return the machine whose token this is; None if it is no machine's."""
        try:
            claims = jwt.decode(token, self.secret, algorithms=["HS256"], audience=AUDIENCE)
        except (jwt.InvalidTokenError, UnicodeError):
            return None
        return Machine(str(claims["sub"]))


def read_or_make(path: Path, fresh: str) -> str:
    """Return a file's content; write it first, for its owner only, when there is none.

    The file appears whole or not at all: an empty key would let everybody in.
    """
    with suppress(FileNotFoundError):
        kept = path.read_text().strip()
        if kept:
            return kept
    unfinished = path.with_suffix(".new")
    handle = os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(fresh)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return fresh
