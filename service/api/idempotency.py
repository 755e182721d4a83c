"""Idempotency keys: a request that changes something takes effect once, however often it is sent.

The client names the request by the header Idempotency-Key. The effect and the answer are stored in
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
from service.auth.permissions import UserPrincipal
from service.db import idempotency
from service.db.idempotency import IdempotencyKey, StoredAnswer

REPLAYED = "Idempotent-Replayed"  # a header of answers that are repeated
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Name of this request, such as a UUID: sent again within a day, it gets the "
        "same answer and takes no effect again",
        min_length=1,
        max_length=255,
    ),
    TextRule(r"^[!-~]+$", "write visible characters of ASCII only, such as those of a UUID"),
]


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that may be sent again.

    Attributes:
        key: Its name; None when the client gave none.
        fingerprint: Differs between requests that differ.
    """

    key: IdempotencyKey | None
    fingerprint: str

    def run_once(
        self, app_state: AppState, effect: Callable[[Connection], StoredAnswer]
    ) -> Response:
        """Apply the effect and store the answer, or repeat the answer that is stored.

        Raises:
            ApiProblem: The same request is in progress, or the key belongs to another request.
        """
        with app_state.engine.begin() as connection:
            if self.key is None:
                return to_response(effect(connection))
            if not idempotency.lock_key(connection, self.key):
                raise ApiProblem("idempotency_in_progress", "try again in 1 s")
            known = idempotency.find_answer(connection, self.key, app_state.now())
            if known is None:
                answer = effect(connection)
                idempotency.store_answer(
                    connection, self.key, self.fingerprint, answer, app_state.now()
                )
                return to_response(answer)
        fingerprint, answer = known
        if fingerprint != self.fingerprint:
            detail = "this Idempotency-Key was used for another request; take a new one"
            raise ApiProblem("idempotency_mismatch", detail)
        return to_response(answer, {REPLAYED: "true"})


async def idempotent_request(
    request: Request, body: RequestBody, name: IdempotencyHeader = None
) -> IdempotentRequest:
    """Return what identifies a request."""
    principal = request.scope["principal"]
    # Part of the key, so that the keys of two principals never collide.
    sender = principal.token if isinstance(principal, UserPrincipal) else principal.worker
    media = request.headers.get("content-type", "")
    parts = [request.method, request.url.path, request.url.query, media, sha256(body).hexdigest()]
    fingerprint = sha256(json.dumps(parts).encode()).hexdigest()
    return IdempotentRequest(None if name is None else IdempotencyKey(sender, name), fingerprint)


def to_response(answer: StoredAnswer, more: dict[str, str] | None = None) -> Response:
    """Return a stored answer as a response, with more headers."""
    headers = {**answer.headers, **(more or {})}
    return Response(answer.content, answer.status, headers, media_type="application/json")


IdempotentRequestDep = Annotated[IdempotentRequest, Depends(idempotent_request)]
