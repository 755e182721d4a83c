"""Load: clients that send as fast as they are answered, or at a fixed pace."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from select import select
from typing import Any

Send = Callable[[], int]  # sends one batch; returns how many records it held


class Caller:
    """One connection to a server on this machine, kept open."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.port, self.headers = port, {"Content-Type": "application/json", **headers}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: bytes) -> Any:
        try:
            self.connection.request("POST", path, body, self.headers)
        except ConnectionError:  # a server may hang up on who was silent for a while
            self.connection.close()
            self.connection.request("POST", path, body, self.headers)
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content[:500]
        return json.loads(content)

    def abandon(self, path: str, body: bytes) -> None:
        """Send, and hang up when the answer comes."""
        self.connection.request("POST", path, body, self.headers)
        select([self.connection.sock], [], [])
        self.connection.close()


@dataclass
class Client:
    """Sends batches, some of them twice, some without hearing the answer.

    Attributes:
        send: Sends the next batch.
        again: Sends the last batch once more.
        lose: Sends the next batch and hears no answer.
        seed: Of its faults. With one seed for all, every client would send three batches at once.
    """

    send: Send
    again: Send | None = None
    lose: Send | None = None
    seed: int = 0
    faults: dict[str, int] = field(default_factory=lambda: {"twice": 0, "lost": 0})

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def step(self) -> int:
        """Send a batch until it is answered; returns its records."""
        if self.lose is not None and self.chance.random() < 0.05:
            self.faults["lost"] += 1
            self.lose()
        return self.send()

    def repeat(self) -> None:
        """Send a batch that was answered once more, one time in five."""
        if self.again is not None and self.chance.random() < 0.2:
            self.faults["twice"] += 1
            self.again()


def at_once(drive: Callable[[int], None], clients: int) -> None:
    """Drive each client on a thread of its own, until all are done."""
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(drive, place) for place in range(clients)]:
            done.result()


def closed_loop(clients: Sequence[Client], seconds: float) -> float:
    """Return records per second when each client sends as soon as it is answered."""
    sent = [0] * len(clients)
    began = time.perf_counter()

    def drive(place: int) -> None:
        while time.perf_counter() - began < seconds:
            sent[place] += clients[place].step()
            clients[place].repeat()

    at_once(drive, len(clients))
    return sum(sent) / (time.perf_counter() - began)


def best_rate(clients: Sequence[Client], seconds: float) -> float:
    """Return the best of three rates, as other programs may be in the way of one."""
    closed_loop(clients, 1.0)  # warm
    return max(closed_loop(clients, seconds / 3) for _ in range(3))


def open_loop(clients: Sequence[Client], per_second: float, seconds: float) -> list[float]:
    """Return how long after its time each batch was answered, sorted.

    A batch that waits because the one before it is late has taken that long too.
    """
    latencies: list[float] = []
    began = time.perf_counter() + 0.1
    pause = len(clients) / per_second

    def drive(place: int) -> None:
        due = began + pause * place / len(clients)
        while due < began + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            clients[place].step()
            latencies.append(time.perf_counter() - due)
            clients[place].repeat()
            due += pause

    at_once(drive, len(clients))
    return sorted(latencies)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all do not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]
