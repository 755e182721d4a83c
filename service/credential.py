"""Credential: a person's token taken apart, so that it can be known again without being kept.

A token is ``scv_``, the id it goes by, and 32 random bytes. What is stored is a hash of the whole.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256

TOKEN = re.compile(r"scv_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Credential:
    """What a token is known by.

    Attributes:
        id: What it is called; no secret.
        digest: SHA-256 of all of it, in hexadecimal.
    """

    id: str
    digest: str = field(repr=False)

    @classmethod
    def of(cls, token: str) -> Credential:
        """Take a token apart; one of another form, as made before, is named by its hash.

        >>> Credential.of("scv_0123456789ab_" + "x" * 43).id
        '0123456789ab'
        >>> Credential.of("a word from before").id
        '9c7334c343a8'
        """
        digest = sha256(token.encode()).hexdigest()
        found = TOKEN.fullmatch(token)
        return cls(digest[:12] if found is None else found[1], digest)

    def is_of(self, digest: str) -> bool:
        """Tell whether this is the token of a stored hash, in the same time whatever it is."""
        return hmac.compare_digest(self.digest, digest)


def make_token() -> str:
    """Make the token of a person."""
    return f"scv_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
