"""Carries the client's conversations out over HTTP: one driver blocks, the other awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from typing import Any, Self, TypeVar

import httpx

from scavenger.client.core import (
    AgreedT,
    Conversation,
    EventStream,
    Found,
    ListedT,
    Listing,
    Sleep,
    Step,
    StepOutcome,
)
from scavenger.client.errors import Unreachable
from scavenger.client.profile import ConnectionProfile, find_profile, is_loopback

StepT = TypeVar("StepT")
CONNECT_TIMEOUT = 5.0
EVENT_STREAM = "text/event-stream"
STREAM_SILENCE = 45.0  # three times the interval of the controller's comments
FAILURES = (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL)


class Driver:
    """What both drivers know: the controller's address and token, and how long they pause.

    Attributes:
        url: Base address of the controller.
        retry_pause: Seconds before a request whose answer was lost is sent again.
    """

    def __init__(self, url: str | None, token: str | None, pause: float) -> None:
        profile = ConnectionProfile(url, token) if url and token else find_profile(url, token)
        self.url, self.retry_pause, self._token = profile.url, pause, profile.token

    def _http_options(self) -> dict[str, Any]:
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise Unreachable(self.url, f"this is no address: {error}") from None
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self._token}"},
            # A proxy cannot reach this machine's own loopback address.
            "trust_env": not is_loopback(address.host),
            # An address without TLS needs no certificates, and reading them takes a while.
            "verify": address.scheme != "http",
        }

    def _failure(self, error: Exception) -> Unreachable:
        failure = Unreachable(self.url, str(error) or type(error).__name__)
        failure.__cause__ = error
        return failure

    def _seconds(self, pause: Sleep) -> float:
        return max(pause.seconds, pause.turns * self.retry_pause)


class BlockingDriver(Driver):
    """Carries conversations out in the calling thread."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        pause: float = 1.0,
    ) -> None:
        """Open a client; the first method sends the first request.

        Without arguments it finds the controller as the command line does: by ``SCAVENGER_URL`` and
        ``SCAVENGER_TOKEN``, or else the one that runs on this computer.

        Args:
            url: Base address, such as ``http://127.0.0.1:8321``.
            token: Bearer token.
            transport: Transport of httpx; the network if None.
            pause: Seconds before a request whose answer was lost is sent again.

        Raises:
            Unreachable: No controller is known.
            NoToken: A controller is known, but no token for it.
        """
        super().__init__(url, token, pause)
        self._http = httpx.Client(**self._http_options(), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def converse(self, conversation: Conversation[AgreedT]) -> AgreedT:
        """Carry a conversation out and return its result."""
        outcome: StepOutcome | Unreachable = None
        with closing(BlockingLines(self._http)) as lines:
            while True:
                try:
                    step = advance(conversation, outcome)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                outcome = self._perform(step, lines)

    def iterate(self, items: Listing[ListedT]) -> Iterator[ListedT]:
        """Carry a conversation out and yield the items it finds."""
        outcome: StepOutcome | Unreachable = None
        with closing(BlockingLines(self._http)) as lines:
            while True:
                try:
                    step = advance(items, outcome)
                except StopIteration:
                    return
                if isinstance(step, Found):
                    outcome = None
                    yield step.item
                else:
                    outcome = self._perform(step, lines)

    def _perform(self, step: Step, lines: BlockingLines) -> StepOutcome | Unreachable:
        if isinstance(step, Sleep):
            time.sleep(self._seconds(step))
            return None
        try:
            if isinstance(step, EventStream):
                return lines.next_of(step)
            content = step.content if isinstance(step.content, bytes) else step.content()
            return self._http.request(
                step.method,
                step.path,
                params=step.parameters,
                content=content,
                headers=step.headers,
                timeout=httpx.Timeout(step.timeout, connect=CONNECT_TIMEOUT),
            )
        except FAILURES as error:
            return self._failure(error)


class AwaitingDriver(Driver):
    """Carries conversations out in an event loop."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: float = 1.0,
    ) -> None:
        """Open a client, as ``Client`` does; arguments and errors are the same."""
        super().__init__(url, token, pause)
        self._http = httpx.AsyncClient(**self._http_options(), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def converse(self, conversation: Conversation[AgreedT]) -> AgreedT:
        """Carry a conversation out and return its result."""
        outcome: StepOutcome | Unreachable = None
        async with aclosing(AwaitedLines(self._http)) as lines:
            while True:
                try:
                    step = advance(conversation, outcome)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                outcome = await self._perform(step, lines)

    async def iterate(self, items: Listing[ListedT]) -> AsyncIterator[ListedT]:
        """Carry a conversation out and yield the items it finds."""
        outcome: StepOutcome | Unreachable = None
        async with aclosing(AwaitedLines(self._http)) as lines:
            while True:
                try:
                    step = advance(items, outcome)
                except StopIteration:
                    return
                if isinstance(step, Found):
                    outcome = None
                    yield step.item
                else:
                    outcome = await self._perform(step, lines)

    async def _perform(self, step: Step, lines: AwaitedLines) -> StepOutcome | Unreachable:
        if isinstance(step, Sleep):
            await asyncio.sleep(self._seconds(step))
            return None
        try:
            if isinstance(step, EventStream):
                return await lines.next_of(step)
            content = step.content if isinstance(step.content, bytes) else chunks(step.content())
            return await self._http.request(
                step.method,
                step.path,
                params=step.parameters,
                content=content,
                headers=step.headers,
                timeout=httpx.Timeout(step.timeout, connect=CONNECT_TIMEOUT),
            )
        except FAILURES as error:
            return self._failure(error)


class BlockingLines:
    """The stream that a conversation has open, line by line."""

    def __init__(self, http: httpx.Client) -> None:
        self._http, self._opened = http, ExitStack()
        self._wanted: EventStream | None = None
        self._lines: Iterator[str] = iter(())

    def next_of(self, wanted: EventStream) -> StepOutcome:
        """Return the next line of a stream, None at its end, or an answer that is no stream."""
        if wanted is not self._wanted:
            self.close()
            request = self._http.stream("GET", wanted.path, **stream_options(wanted))
            response = self._opened.enter_context(request)
            if not is_stream(response):
                response.read()
                return response
            self._wanted, self._lines = wanted, response.iter_lines()
        return next(self._lines, None)

    def close(self) -> None:
        """Close the stream."""
        self._wanted = None
        self._opened.close()


class AwaitedLines:
    """The stream that a conversation has open, line by line, in an event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http, self._opened = http, AsyncExitStack()
        self._wanted: EventStream | None = None
        self._lines: AsyncIterator[str]

    async def next_of(self, wanted: EventStream) -> StepOutcome:
        """Return the next line of a stream, None at its end, or an answer that is no stream."""
        if wanted is not self._wanted:
            await self.aclose()
            request = self._http.stream("GET", wanted.path, **stream_options(wanted))
            response = await self._opened.enter_async_context(request)
            if not is_stream(response):
                await response.aread()
                return response
            self._wanted, self._lines = wanted, response.aiter_lines()
        return await anext(self._lines, None)

    async def aclose(self) -> None:
        """Close the stream."""
        self._wanted = None
        await self._opened.aclose()


def stream_options(stream: EventStream) -> dict[str, Any]:
    """Return how a stream is asked for; the controller is never silent for as long."""
    timeout = httpx.Timeout(STREAM_SILENCE, connect=CONNECT_TIMEOUT)
    headers = {"Accept": EVENT_STREAM}
    return {"params": stream.parameters, "headers": headers, "timeout": timeout}


def is_stream(response: httpx.Response) -> bool:
    """Tell whether an answer is the stream that was asked for."""
    kind = response.headers.get("content-type", "")
    return response.is_success and kind.startswith(EVENT_STREAM)


def advance(
    conversation: Generator[StepT, StepOutcome, Any], outcome: StepOutcome | Unreachable
) -> StepT:
    """Tell a conversation how its last step went, and return its next one."""
    if isinstance(outcome, Unreachable):
        return conversation.throw(outcome)
    return conversation.send(outcome)


async def chunks(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body; they come from a file on a local disk, which is not awaited."""
    for part in parts:
        yield part
