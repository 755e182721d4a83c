"""Tokens of users and of machines, and the two secret files in the home directory.

A user's token is ``scv_``, an id, and 32 random bytes; the database stores its SHA-256 hash. The
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

from service.auth.permissions import BootstrapPrincipal, WorkerPrincipal
from service.errors import SecretRefused

TOKEN_PATTERN = re.compile(r"scv_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class TokenDigest:
    """The id and the hash of a user's token; the token itself is never kept.

    Attributes:
        id: Names the token in lists and in the audit trail; no secret.
        digest: SHA-256 of the whole token, in hexadecimal.
    """

    id: str
    digest: str = field(repr=False)

    @classmethod
    def of(cls, token: str) -> TokenDigest:
        """Return id and hash of a token; the id of one in an older format is part of its hash.

        >>> TokenDigest.of("scv_0123456789ab_" + "x" * 43).id
        '0123456789ab'
        >>> TokenDigest.of("a word from before").id
        '9c7334c343a8'
        """
        digest = sha256(token.encode()).hexdigest()
        found = TOKEN_PATTERN.fullmatch(token)
        return cls(digest[:12] if found is None else found[1], digest)

    def matches(self, digest: str) -> bool:
        """Compare with a stored hash, in constant time."""
        return hmac.compare_digest(self.digest, digest)


def make_token() -> str:
    """Make the token of a user."""
    return f"scv_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


WORKER_AUDIENCE, BOOTSTRAP_PREFIX = "scavenger-agent", "scb_"
WORKER_TOKEN_LIFETIME = 3600
MIN_SECRET_BYTES = 32  # as long as the signatures that are made with it
REQUIRED_CLAIMS = ["sub", "job", "generation", "iat", "exp"]


@dataclass(frozen=True, slots=True)
class ControllerKeys:
    """The first token and the signing secret of a controller.

    Every other secret is derived from the signing secret with a purpose of its own, so that a
    signature made for one purpose is worthless for another.
    """

    home_token: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def at(cls, home: Path, shared: Path | None = None) -> ControllerKeys:
        """Read the keys of a home directory; the first start creates them.

        Args:
            home: The directory.
            shared: File with the secret that all controllers of the database share.

        Raises:
            SecretRefused: That file cannot be used.
        """
        token = read_or_create(home / "token", make_token())
        if shared is not None:
            return cls(token, read_shared_secret(shared))
        return cls(token, read_or_create(home / "secret", secrets.token_urlsafe(48)))

    @property
    def fingerprint(self) -> str:
        """Tells the secret from others without revealing it."""
        return self._derive("fingerprint").hex()

    def issue_worker_token(self, worker: str, generation: int = 0, now: float | None = None) -> str:
        """Issue the token of a machine, valid for an hour.

        Args:
            worker: Its id, which begins with the id of its job.
            generation: Generation of the job.
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
        """Make what a machine is launched with.

        It is the same at every attempt: clouds refuse a repeated launch request that differs.
        """
        return f"{BOOTSTRAP_PREFIX}{worker}_{self._derive(f'bootstrap {worker}').hex()}"

    def job_secret(self, job: str) -> str:
        """Make the secret by which workers and parameter servers of one job know each other."""
        return self._derive(f"job {job}").hex()

    def bundle_secret(self, project: str) -> str:
        """Make the secret by which machines of one project know compiled code of each other."""
        return self._derive(f"bundles {project}").hex()

    def label_secret(self) -> bytes:
        """Make the secret that signs the labels of this installation's machines."""
        # Machines carry the signature: another word here, and running machines of an older version
        # would count as foreign, so that neither the reconciler nor the collector ended them.
        return self._derive("ownership")

    def cursor_secret(self) -> bytes:
        """Make the secret that signs the cursors of lists."""
        return self._derive("cursors")

    def csrf_token(self, session: str) -> str:
        """Make what a page must send along in a session, by the session's digest.

        A page of another origin can make a browser send the cookie, but never read this.
        """
        return self._derive(f"csrf {session}").hex()

    def webhook_secret(self, webhook: str, rotations: int) -> bytes:
        """Make the secret that signs what a webhook is sent; no table holds it."""
        return self._derive(f"webhook {webhook} {rotations}")

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self.secret.encode(), purpose.encode(), "sha256")

    def read_worker_token(self, token: str, now: float | None = None) -> WorkerPrincipal | None:
        """Return the machine a token belongs to; None if it is no worker token, or has expired.

        Args:
            token: The text after ``Bearer``.
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
        """Return the machine that was launched with a token; None if there is none."""
        worker = token.removeprefix(BOOTSTRAP_PREFIX).rpartition("_")[0]
        is_ours = hmac.compare_digest(token.encode(), self.bootstrap_token(worker).encode())
        return BootstrapPrincipal(worker) if is_ours else None


def read_shared_secret(path: Path) -> str:
    """Return the secret that several controllers share.

    Raises:
        SecretRefused: The file is missing, or its content is short enough to be guessed.
    """
    remedy = "copy the file `secret` there from the home of the first controller of this database"
    try:
        secret = path.read_text().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SecretRefused(f"cannot read --secret-file {path}: {reason}; {remedy}") from error
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise SecretRefused(
            f"--secret-file {path} holds {len(secret.encode())} bytes, and at least "
            f"{MIN_SECRET_BYTES} are needed: {remedy}"
        )
    return secret


def read_or_create(path: Path, fresh: str) -> str:
    """Return a file's content; write it first, for its owner only, if it is missing or empty."""
    with suppress(FileNotFoundError):
        if kept := path.read_text().strip():
            return kept
    # The file appears whole or not at all: with an empty key, any request could sign a token.
    unfinished = path.with_suffix(".new")
    handle = os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(fresh)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return fresh
