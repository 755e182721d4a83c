"""Errand: a request that changes something, done once however often it is sent.

Its sender names it by a word of its own, the header Idempotency-Key. The effect and the answer are
stored in one transaction, so that neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from sqlalchemy import Connection

from service.api.refusal import Refusal
from service.api.spelling import Spelling
from service.api.world import Body, World
from service.caller import Caller, Person
from service.db import requests
from service.db.requests import Answer, Key

Word = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A word for this request, such as a UUID: sent again within a day, it gets "
        "the same answer and nothing is done twice",
        min_length=1,
        max_length=255,
    ),
    Spelling(r"^[!-~]+$", "write visible characters of ASCII only, such as those of a UUID"),
]


@dataclass(frozen=True, slots=True)
class Errand:
    """What is asked for, and by whom.

    Attributes:
        key: What the sender will repeat it by; None when it does not say.
        fingerprint: Differs between requests that differ.
    """

    key: Key | None
    fingerprint: str

    def run(self, world: World, effect: Callable[[Connection], Answer]) -> Response:
        """Do it, or answer as before where it has been done."""
        with world.engine.begin() as connection:
            if self.key is None:
                return respond(effect(connection))
            if not requests.hold(connection, self.key):
                raise Refusal("idempotency_in_progress", "send it again in a second")
            known = requests.find(connection, self.key, world.now())
            if known is None:
                answer = effect(connection)
                requests.store(connection, self.key, self.fingerprint, answer, world.now())
                return respond(answer)
        fingerprint, answer = known
        if fingerprint != self.fingerprint:
            why = "this Idempotency-Key was used for another request; take a new one"
            raise Refusal("idempotency_mismatch", why)
        return respond(answer, {"Idempotent-Replayed": "true"})


def errand_of(request: Request, body: Body, word: Word = None) -> Errand:
    """Read who asks for what."""
    caller = caller_of(request.scope["caller"])
    media = request.headers.get("content-type", "")
    asked = [request.method, request.url.path, request.url.query, media, sha256(body).hexdigest()]
    fingerprint = sha256(json.dumps(asked).encode()).hexdigest()
    return Errand(None if word is None else Key(caller, word), fingerprint)


def caller_of(caller: Caller) -> str:
    """Name who asks; keys of different callers never meet."""
    return caller.token if isinstance(caller, Person) else caller.worker


def respond(answer: Answer, more: dict[str, str] | None = None) -> Response:
    """Send an answer."""
    headers = {**answer.headers, **(more or {})}
    return Response(answer.content, answer.status, headers, media_type="application/json")


Once = Annotated[Errand, Depends(errand_of)]
