"""Keys: the first token people use and the secret that worker tokens are signed with.

Both lie in the home directory, readable by its owner only. Other tokens of people are in the
database, by their hashes; so is the first once a controller has started. Controllers of one
database share one secret, of which the database knows a fingerprint.

A machine is launched with a bootstrap token, which buys it one worker token and nothing else. That
opens the agent's endpoints for an hour, as long as the machine exists, and is renewed in time.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jwt

from service.caller import Machine, Newcomer
from service.credential import make_token
from service.errors import SecretRefused

AUDIENCE, BOOTSTRAP = "scavenger-agent", "scb_"
LIFE = 3600
SHORTEST = 32  # bytes, as the signatures made with it have
CLAIMS = ["sub", "job", "generation", "iat", "exp"]


@dataclass(frozen=True, slots=True)
class Keys:
    """The two secrets of a controller."""

    token: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def at(cls, home: Path, shared: Path | None = None) -> Keys:
        """Read the keys of a home directory; they are made the first time.

        Args:
            home: The directory.
            shared: File with the secret that other controllers of the database have too.

        Raises:
            SecretRefused: That file cannot be used.
        """
        token = read_or_make(home / "token", make_token())
        if shared is not None:
            return cls(token, read_shared(shared))
        return cls(token, read_or_make(home / "secret", secrets.token_urlsafe(48)))

    @property
    def fingerprint(self) -> str:
        """What tells the secret from others, and from which nobody can make it."""
        return hmac.digest(self.secret.encode(), b"fingerprint", "sha256").hex()

    def issue(self, worker: str, generation: int = 0, now: float | None = None) -> str:
        """Make the token of a machine, good for an hour.

        Args:
            worker: Its id, which begins with that of its job.
            generation: Generation its job is in.
            now: Seconds since 1970; the present moment if None.
        """
        moment = int(time.time() if now is None else now)
        claims = {
            "sub": worker,
            "aud": AUDIENCE,
            "job": worker.rpartition("-")[0],
            "generation": generation,
            "iat": moment,
            "exp": moment + LIFE,
        }
        return jwt.encode(claims, self.secret, algorithm="HS256")

    def bootstrap(self, worker: str) -> str:
        """Make what a machine is launched with, the same at every attempt to launch it."""
        proof = hmac.digest(self.secret.encode(), f"bootstrap {worker}".encode(), "sha256").hex()
        return f"{BOOTSTRAP}{worker}_{proof}"

    def share(self, job: str) -> str:
        """Make the secret that workers and parameter servers of one job know each other by."""
        return hmac.digest(self.secret.encode(), f"job {job}".encode(), "sha256").hex()

    def ownership(self) -> bytes:
        """Make the secret that machines of this installation are proven with."""
        return hmac.digest(self.secret.encode(), b"ownership", "sha256")

    def cursors(self) -> bytes:
        """Make the secret that positions in lists are signed with."""
        return hmac.digest(self.secret.encode(), b"cursors", "sha256")

    def machine(self, token: str, now: float | None = None) -> Machine | None:
        """Return the machine whose token this is; None if it is no machine's, or too old.

        Args:
            token: What was shown.
            now: Seconds since 1970; the present moment if None.
        """
        try:
            claims = jwt.decode(
                token,
                self.secret,
                algorithms=["HS256"],
                audience=AUDIENCE,
                # The clock of this computer is not the one it was issued by.
                options={"require": CLAIMS, "verify_exp": False, "verify_iat": False},
            )
        except (jwt.InvalidTokenError, UnicodeError):
            return None
        if claims["exp"] <= (time.time() if now is None else now):
            return None
        return Machine(claims["sub"], claims["job"], claims["generation"], claims["iat"])

    def newcomer(self, token: str) -> Newcomer | None:
        """Return the machine that was launched with this; None if none was."""
        worker = token.removeprefix(BOOTSTRAP).rpartition("_")[0]
        is_ours = hmac.compare_digest(token.encode(), self.bootstrap(worker).encode())
        return Newcomer(worker) if is_ours else None


def read_shared(path: Path) -> str:
    """Return the secret that several controllers share.

    Raises:
        SecretRefused: There is none in the file, or one that can be guessed.
    """
    try:
        secret = path.read_text().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise SecretRefused(
            f"cannot read --secret-file {path}: {why}; copy the file `secret` there from the home "
            "of the first controller of this database"
        ) from error
    if len(secret.encode()) < SHORTEST:
        raise SecretRefused(
            f"--secret-file {path} holds {len(secret.encode())} bytes, and at least {SHORTEST} are "
            "needed: copy the file `secret` there from the home of the first controller of this "
            "database"
        )
    return secret


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
