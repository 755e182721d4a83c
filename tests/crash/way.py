"""Way: from a controller that may die at any line to the fake cloud, which goes on."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from tests.fakecloud.http_server import Answer

Ask = Callable[[str, bytes], Answer | None]


class Way(httpx.BaseTransport):
    """Carries what a provider asks; a request that was sent is done, whether or not anyone hears.

    Args:
        ask: Sends a request and waits for its answer; None for a connection that broke.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        answer = self._ask(request.url.path, content)
        if answer is None:
            raise httpx.ReadError("reset")
        status, kind, told = answer
        return httpx.Response(status, headers={"Content-Type": kind}, content=told)
