"""Sessions of browsers: how long they last, and the secrets that stand for them.

A browser holds a session as a cookie that scripts cannot read, and the database its SHA-256. A code
begins a session without a token in the address bar: it works once, for a minute.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from hashlib import sha256

SESSION_COOKIE = "scavenger"
SESSION_LIFETIME = timedelta(days=7)
SESSION_SILENCE = timedelta(hours=12)  # after which a session that is not used has ended
CODE_LIFETIME = timedelta(seconds=60)


def make_session_secret() -> str:
    """Make the content of a cookie."""
    return f"scs_{secrets.token_urlsafe(32)}"


def make_sign_in_code() -> str:
    """Make a code that begins a session."""
    return f"scc_{secrets.token_urlsafe(32)}"


def secret_digest(secret: str) -> str:
    """Return what the database keeps of a session or a code: its SHA-256.

    Both are 32 random bytes, so no salt is needed, and none can be guessed from its hash.
    """
    return sha256(secret.encode(errors="replace")).hexdigest()


def session_end(
    created_at: datetime, last_used_at: datetime, token_expires_at: datetime | None
) -> datetime:
    """Return when a session ends that is not used again; never after its token."""
    ends = [created_at + SESSION_LIFETIME, last_used_at + SESSION_SILENCE]
    return min(ends if token_expires_at is None else [*ends, token_expires_at])
