"""Idempotency keys: a request that changes something is done once, however often it is sent.

The sender names the request by the header Idempotency-Key. The effect and the answer are stored in
one transaction, so that neither exists without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from sqlalchemy import Connection

from service.api.dependencies import AppState, RequestBody
from service.api.problems import ApiProblem
from service.api.validation import TextRule
from service.auth.principals import Principal, UserPrincipal
from service.db import access
from service.db.access import IdempotencyKey, StoredAnswer

IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A word for this request, such as a UUID: sent again within a day, it gets "
        "the same answer and nothing is done twice",
        min_length=1,
        max_length=255,
    ),
    TextRule(r"^[!-~]+$", "write visible characters of ASCII only, such as those of a UUID"),
]


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """What is asked for, and by whom.

    Attributes:
        key: What the sender will repeat it by; None when it does not say.
        fingerprint: Differs between requests that differ.
    """

    key: IdempotencyKey | None
    fingerprint: str

    def run(self, app_state: AppState, effect: Callable[[Connection], StoredAnswer]) -> Response:
        """Do it, or answer as before where it has been done."""
        with app_state.engine.begin() as connection:
            if self.key is None:
                return to_response(effect(connection))
            if not access.lock_key(connection, self.key):
                raise ApiProblem("idempotency_in_progress", "send it again in a second")
            known = access.find_answer(connection, self.key, app_state.now())
            if known is None:
                answer = effect(connection)
                access.store_answer(connection, self.key, self.fingerprint, answer, app_state.now())
                return to_response(answer)
        fingerprint, answer = known
        if fingerprint != self.fingerprint:
            why = "this Idempotency-Key was used for another request; take a new one"
            raise ApiProblem("idempotency_mismatch", why)
        return to_response(answer, {"Idempotent-Replayed": "true"})


def read_idempotent_request(
    request: Request, body: RequestBody, word: IdempotencyHeader = None
) -> IdempotentRequest:
    """Read who asks for what."""
    caller = principal_id(request.scope["caller"])
    media = request.headers.get("content-type", "")
    asked = [request.method, request.url.path, request.url.query, media, sha256(body).hexdigest()]
    fingerprint = sha256(json.dumps(asked).encode()).hexdigest()
    return IdempotentRequest(None if word is None else IdempotencyKey(caller, word), fingerprint)


def principal_id(caller: Principal) -> str:
    """Name who asks; keys of different callers never meet."""
    return caller.token if isinstance(caller, UserPrincipal) else caller.worker


def to_response(answer: StoredAnswer, more: dict[str, str] | None = None) -> Response:
    """Send an answer."""
    headers = {**answer.headers, **(more or {})}
    return Response(answer.content, answer.status, headers, media_type="application/json")


OncePerKey = Annotated[IdempotentRequest, Depends(read_idempotent_request)]
