"""Door: stands between those who speak over TCP, and spoils what passes as bad networks do.

A ``Relay`` passes bytes on, to wherever its target is at the moment. A ``Door`` knows where a
request ends, so that it can lose one or its answer, cut one or its answer in half, pass one on
twice, or once more when newer ones have overtaken it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from itertools import cycle

GONE = (OSError, EOFError, asyncio.IncompleteReadError, ValueError)


class Fault(StrEnum):
    """What may befall a request."""

    LOST = "request lost"
    UNANSWERED = "answer lost"
    HALF_SENT = "request cut"
    HALF_ANSWERED = "answer cut"
    TWICE = "request passed twice"
    LATE = "request passed again, late"


class Listener(ABC):
    """A server on a thread of its own."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Listener:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._greet, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was aborted is closed in the next turns of the loop

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            with suppress(*GONE):
                await self._serve(reader, writer)
            await writer.drain()
            writer.close()
        except (*GONE, asyncio.CancelledError):
            writer.transport.abort()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""


class Relay(Listener):
    """Passes bytes on both ways."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._open()
        ways = [
            asyncio.ensure_future(pump(reader, back)),
            asyncio.ensure_future(pump(there, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            back.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.target)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(*GONE):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


class Door(Listener):
    """Passes requests on, or does to one what a bad network does.

    Args:
        target: Port of the server.
        share: Of the requests that meet a fault.
        chance: Draws which; every kind in its turn.

    Attributes:
        faults: What happened how often.
    """

    def __init__(self, target: int, share: float, chance: random.Random) -> None:
        super().__init__(target)
        self.share, self.chance = share, chance
        self.faults: Counter[Fault] = Counter()
        self._next = cycle(Fault)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await one_message(reader)
            fault = next(self._next) if self.chance.random() < self.share else None
            answer = await self._pass(request, fault)
            if fault is not None:
                self.faults[fault] += 1
            if fault is Fault.HALF_ANSWERED:
                writer.write(answer[: len(answer) // 2])
                await writer.drain()
            if fault in (Fault.LOST, Fault.HALF_SENT, Fault.UNANSWERED, Fault.HALF_ANSWERED):
                return
            writer.write(answer)
            await writer.drain()

    async def _pass(self, request: bytes, fault: Fault | None) -> bytes:
        match fault:
            case Fault.LOST:
                return b""
            case Fault.HALF_SENT:
                _, back = await asyncio.open_connection("127.0.0.1", self.target)
                back.write(request[: len(request) // 2])
                await back.drain()
                back.close()
                return b""
            case Fault.TWICE:
                both = await asyncio.gather(self._ask(request), self._ask(request))
                return both[0]
            case Fault.LATE:
                self._keep(asyncio.ensure_future(self._ask_late(request)))
        return await self._ask(request)

    async def _ask(self, request: bytes) -> bytes:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            back.write(request)
            await back.drain()
            return await one_message(there)
        finally:
            back.transport.abort()

    async def _ask_late(self, request: bytes) -> None:
        await asyncio.sleep(self.chance.uniform(0.1, 1.5))
        with suppress(*GONE):
            await self._ask(request)


async def one_message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or an answer to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head + await reader.readexactly(length)
