"""Tokens of people and of machines, and the two secret files in the home directory.

A person's token is ``scv_``, an id, and 32 random bytes; the database stores its SHA-256 hash. The
home directory holds the first token and the signing secret, both readable by their owner only.
Controllers that share a database share the secret; the database stores its fingerprint.

A machine is launched with a bootstrap token. It exchanges that once for a worker token, a JWT that
is valid for an hour and is renewed as long as the machine exists.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import jwt

from service.auth.principals import BootstrapPrincipal, WorkerPrincipal
from service.errors import SecretRefused

TOKEN_PATTERN = re.compile(r"scv_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What a token is known by.

    Attributes:
        id: What it is called; no secret.
        digest: SHA-256 of all of it, in hexadecimal.
    """

    id: str
    digest: str = field(repr=False)

    @classmethod
    def of(cls, token: str) -> ApiToken:
        """Take a token apart; one of another form, as made before, is named by its hash.

        >>> Credential.of("scv_0123456789ab_" + "x" * 43).id
        '0123456789ab'
        >>> Credential.of("a word from before").id
        '9c7334c343a8'
        """
        digest = sha256(token.encode()).hexdigest()
        found = TOKEN_PATTERN.fullmatch(token)
        return cls(digest[:12] if found is None else found[1], digest)

    def is_of(self, digest: str) -> bool:
        """Tell whether this is the token of a stored hash, in the same time whatever it is."""
        return hmac.compare_digest(self.digest, digest)


def make_token() -> str:
    """Make the token of a person."""
    return f"scv_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


WORKER_AUDIENCE, BOOTSTRAP_PREFIX = "scavenger-agent", "scb_"
WORKER_TOKEN_LIFETIME = 3600
MIN_SECRET_BYTES = 32  # bytes, as the signatures made with it have
REQUIRED_CLAIMS = ["sub", "job", "generation", "iat", "exp"]


@dataclass(frozen=True, slots=True)
class ControllerKeys:
    """The two secrets of a controller."""

    token: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def at(cls, home: Path, shared: Path | None = None) -> ControllerKeys:
        """Read the keys of a home directory; they are made the first time.

        Args:
            home: The directory.
            shared: File with the secret that other controllers of the database have too.

        Raises:
            SecretRefused: That file cannot be used.
        """
        token = read_or_create(home / "token", make_token())
        if shared is not None:
            return cls(token, read_shared_secret(shared))
        return cls(token, read_or_create(home / "secret", secrets.token_urlsafe(48)))

    @property
    def fingerprint(self) -> str:
        """What tells the secret from others, and from which nobody can make it."""
        return hmac.digest(self.secret.encode(), b"fingerprint", "sha256").hex()

    def issue_worker_token(self, worker: str, generation: int = 0, now: float | None = None) -> str:
        """Make the token of a machine, good for an hour.

        Args:
            worker: Its id, which begins with that of its job.
            generation: Generation its job is in.
            now: Seconds since 1970; the present moment if None.
        """
        moment = int(time.time() if now is None else now)
        claims = {
            "sub": worker,
            "aud": WORKER_AUDIENCE,
            "job": worker.rpartition("-")[0],
            "generation": generation,
            "iat": moment,
            "exp": moment + WORKER_TOKEN_LIFETIME,
        }
        return jwt.encode(claims, self.secret, algorithm="HS256")

    def bootstrap_token(self, worker: str) -> str:
        """Make what a machine is launched with, the same at every attempt to launch it."""
        proof = hmac.digest(self.secret.encode(), f"bootstrap {worker}".encode(), "sha256").hex()
        return f"{BOOTSTRAP_PREFIX}{worker}_{proof}"

    def job_secret(self, job: str) -> str:
        """Make the secret that workers and parameter servers of one job know each other by."""
        return hmac.digest(self.secret.encode(), f"job {job}".encode(), "sha256").hex()

    def label_secret(self) -> bytes:
        """Make the secret that machines of this installation are proven with."""
        return hmac.digest(self.secret.encode(), b"label_secret", "sha256")

    def cursor_secret(self) -> bytes:
        """Make the secret that positions in lists are signed with."""
        return hmac.digest(self.secret.encode(), b"cursors", "sha256")

    def read_worker_token(self, token: str, now: float | None = None) -> WorkerPrincipal | None:
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
                audience=WORKER_AUDIENCE,
                # The clock of this computer is not the one it was issued by.
                options={"require": REQUIRED_CLAIMS, "verify_exp": False, "verify_iat": False},
            )
        except (jwt.InvalidTokenError, UnicodeError):
            return None
        if claims["exp"] <= (time.time() if now is None else now):
            return None
        return WorkerPrincipal(claims["sub"], claims["job"], claims["generation"], claims["iat"])

    def read_bootstrap_token(self, token: str) -> BootstrapPrincipal | None:
        """Return the machine that was launched with this; None if none was."""
        worker = token.removeprefix(BOOTSTRAP_PREFIX).rpartition("_")[0]
        is_ours = hmac.compare_digest(token.encode(), self.bootstrap_token(worker).encode())
        return BootstrapPrincipal(worker) if is_ours else None


def read_shared_secret(path: Path) -> str:
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
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise SecretRefused(
            f"--secret-file {path} holds {len(secret.encode())} bytes, and at least "
            f"{MIN_SECRET_BYTES} are needed: "
            "copy the file `secret` there from the home of the first controller of this "
            "database"
        )
    return secret


def read_or_create(path: Path, fresh: str) -> str:
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
