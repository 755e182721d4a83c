"""The outbound client: where it goes, where it does not, and how little it takes from there."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import httpx
import pytest

from service.errors import AddressRefused, Unanswered
from service.outbound import MAX_ANSWER_BYTES, OutboundAnswer, OutboundClient, resolve
from tests.controller_double import LONG

PUBLIC, OTHER = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"

# As a user might write them; this computer is asked what they mean, no network is needed.
LITERALS = [
    "127.0.0.1",
    "127.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0.0.0.0",
    "0",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "192.0.0.8",
    "192.0.0.10",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[2001:0:7f00:1::]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fec0::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[2002:c058:6301::]",
    "[ff02::1]",
    "localhost",
]
NOT_ADDRESSES = [
    "ftp://example.org/",
    "file:///etc/passwd",
    "gopher://example.org/",
    "//example.org/",
    "example.org",
    "http://",
    "http:///path",
    "http://user:word@example.org/",
    "http://[::1/",
    "http://example.org:99999/",
    "http://example.org:0/",
    "",
]


def names(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver by which every name has these addresses."""

    async def answer(host: str, port: int) -> Sequence[str]:
        return addresses

    return answer


class Seen(httpx.AsyncBaseTransport):
    """A network that notes who was connected to, and says yes."""

    def __init__(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.requests: list[httpx.Request] = []
        self.status, self.headers = status, headers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        body = httpx.ByteStream(b"thanks")
        return httpx.Response(self.status, headers=self.headers, stream=body)


def send(outbound: OutboundClient, url: str) -> OutboundAnswer:
    return asyncio.run(outbound.send("POST", url, b"news"))


@pytest.mark.parametrize("host", LITERALS)
def test_what_is_not_public_is_not_spoken_to(host: str) -> None:
    network = Seen()
    with pytest.raises(AddressRefused):
        send(OutboundClient(transport=network), f"http://{host}:8321/v1/jobs")
    assert network.requests == []


@pytest.mark.parametrize("url", NOT_ADDRESSES)
def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    network = Seen()
    with pytest.raises(AddressRefused):
        send(OutboundClient(names(PUBLIC), transport=network), url)
    assert network.requests == []


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), (PUBLIC, "10.0.0.1"), ("169.254.169.254", PUBLIC), (OTHER, "::1"), ()],
)
def test_one_address_of_a_name_that_is_not_public_spoils_them_all(addresses: list[str]) -> None:
    network = Seen()
    with pytest.raises(AddressRefused):
        send(OutboundClient(names(*addresses), transport=network), "https://hooks.example.org/")
    assert network.requests == []


@pytest.mark.parametrize(
    ("url", "address", "connected"),
    [
        ("https://hooks.example.org/a?b=c", PUBLIC, f"https://{PUBLIC}/a?b=c"),
        ("https://hooks.example.org:8443/", OTHER, f"https://[{OTHER}]:8443/"),
        ("http://hooks.example.org/", PUBLIC, f"http://{PUBLIC}/"),
    ],
)
def test_the_connection_goes_to_the_address_and_names_the_host(
    url: str, address: str, connected: str
) -> None:
    network = Seen()
    assert send(OutboundClient(names(address), transport=network), url) == OutboundAnswer(
        200, b"thanks"
    )
    [request] = network.requests
    assert str(request.url) == connected
    assert request.headers["host"] == url.split("/")[2]
    assert request.extensions["sni_hostname"] == "hooks.example.org"
    assert request.content == b"news"
    assert not {"authorization", "cookie"} & set(request.headers)


def test_a_name_that_changes_its_address_is_looked_up_once() -> None:
    looks = count()

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return [PUBLIC] if next(looks) == 0 else ["127.0.0.1"]

    network = Seen()
    outbound = OutboundClient(rebinding, transport=network)
    send(outbound, "http://rebind.example.org/")
    assert [request.url.host for request in network.requests] == [PUBLIC]
    with pytest.raises(AddressRefused):
        send(outbound, "http://rebind.example.org/")
    assert len(network.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    network = Seen(status, {"Location": "http://169.254.169.254/latest/meta-data/"})
    answer = send(OutboundClient(names(PUBLIC), transport=network), "http://example.org/")
    assert answer.status == status
    assert len(network.requests) == 1


@asynccontextmanager
async def served(*parts: bytes) -> AsyncIterator[int]:
    """A real server that answers with these parts and then hangs; its port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
            await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await ended.wait()
        server.close()


async def fetch_from(*parts: bytes, timeout: float = 60.0) -> OutboundAnswer:
    """Fetch over a real connection; here this computer counts as public."""
    async with served(*parts) as port:
        outbound = OutboundClient(resolve, is_allowed=lambda _: True, timeout=timeout)
        return await outbound.send("GET", f"http://127.0.0.1:{port}/")


def test_an_answer_is_read_over_a_real_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"
    assert asyncio.run(fetch_from(head, b"thanks")) == OutboundAnswer(200, b"thanks")


@pytest.mark.parametrize("size", [MAX_ANSWER_BYTES, MAX_ANSWER_BYTES + 1])
def test_no_more_is_read_than_is_allowed(size: int) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
    if size <= MAX_ANSWER_BYTES:
        assert len(asyncio.run(fetch_from(head, b"x" * size)).content) == size
        return
    with pytest.raises(Unanswered, match=f"more than {MAX_ANSWER_BYTES}"):
        asyncio.run(fetch_from(head, b"x" * size))


@pytest.mark.parametrize("parts", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"x")])
def test_a_server_that_hangs_is_not_waited_for(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(Unanswered, match="TimeoutError"):
        asyncio.run(fetch_from(*parts, timeout=0.2))


def test_what_is_no_answer_is_none() -> None:
    with pytest.raises(Unanswered):
        asyncio.run(fetch_from(b"SSH-2.0-OpenSSH\r\n\r\n"))


def test_a_name_that_is_looked_up_for_long_keeps_no_other_request_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing stops a lookup; the event loop must not wait for its thread either."""
    gate = threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example":
            gate.wait(LONG)
        return look_up("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    network = Seen()
    outbound = OutboundClient(transport=network, is_allowed=lambda _: True, timeout=0.5)

    async def both() -> list[object]:
        urls = ("http://slow.example/", "http://quick.example/")
        return await asyncio.gather(
            *(outbound.send("POST", url) for url in urls), return_exceptions=True
        )

    slow_one, quick_one = asyncio.run(both())
    assert not gate.is_set(), "the loop has ended though the lookup has not"
    gate.set()
    assert isinstance(slow_one, Unanswered)
    assert isinstance(quick_one, OutboundAnswer)
