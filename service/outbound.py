"""HTTP client for addresses that users choose, such as webhooks.

It connects to the public internet only. A name is resolved once, every address found must be
public, and the connection goes to exactly the address that was checked. A second lookup could
return another address (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

from service.errors import AddressRefused, Unanswered

REQUEST_TIMEOUT = 5.0
MAX_ANSWER_BYTES = 64 << 10
LAST_PORT = 65535
USER_AGENT = "scavenger-webhooks"
NAT64 = IPv6Network("64:ff9b::/96")
IPV4_COMPATIBLE = IPv6Network("::/96")
# Special by the registries of IANA, though ``ipaddress`` counts (a part of) them as global.
SPECIAL_NETWORKS = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # relays to IPv6, deprecated
    IPv6Network("3fff::/20"),  # documentation
    IPv6Network("5f00::/16"),  # segment routing
    IPv6Network("fec0::/10"),  # site-local
)

IpAddress = IPv4Address | IPv6Address
NameResolver = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class OutboundAnswer:
    """What came back; a redirect is an answer too, and is not followed."""

    status: int
    content: bytes


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return every address of a host, as the computer looks it up.

    In a thread that is left alone when the time is over: nothing stops a lookup, and a pool of
    threads would let all others wait for it.
    """
    loop, looked_up = asyncio.get_running_loop(), asyncio.Event()
    found: list[str] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(str(address[0]) for *_, address in known)
        except OSError as error:
            errors.append(error)
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(looked_up.set)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    await looked_up.wait()
    if errors:
        raise errors[0]
    return found


def is_global(address: IpAddress) -> bool:
    """Whether an address, and every other that it stands for, is one of the public internet.

    >>> [is_global(ip_address(text)) for text in ("1.1.1.1", "10.0.0.1", "::ffff:127.0.0.1")]
    [True, False, False]
    """
    return all(
        one.is_global
        and not (one.is_multicast or one.is_reserved)
        and not any(one in special for special in SPECIAL_NETWORKS)
        for one in _meanings(address)
    )


@dataclass(frozen=True, slots=True)
class OutboundClient:
    """Fetches addresses that a user chose, without proxies, cookies or redirects.

    Attributes:
        resolver: Looks names up.
        is_allowed: Tells which addresses may be spoken to.
        transport: What carries a request; the network if None.
        timeout: Seconds for all of one request.
    """

    resolver: NameResolver = resolve
    is_allowed: Callable[[IpAddress], bool] = is_global
    transport: httpx.AsyncBaseTransport | None = None
    timeout: float = REQUEST_TIMEOUT

    async def check(self, url: str) -> None:
        """Check that ``send`` would connect to an address, now at least.

        Raises:
            AddressRefused: It would not.
            Unanswered: The name of its host could not be looked up.
        """
        async with self._translate_errors():
            await self._place_of(httpx.URL(url))

    async def send(
        self,
        method: str,
        url: str,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> OutboundAnswer:
        """Send one request and return its answer.

        Raises:
            AddressRefused: The controller does not go there; it will not later either.
            Unanswered: Nothing usable came back within 5 s and 64 KiB; try again later.
        """
        async with self._translate_errors():
            return await self._send(method, httpx.URL(url), content, headers or {})

    @asynccontextmanager
    async def _translate_errors(self) -> AsyncIterator[None]:
        """Give what happens inside its time, and translate what it raises."""
        try:
            async with asyncio.timeout(self.timeout):
                yield
        except (httpx.InvalidURL, UnicodeError) as error:
            raise AddressRefused(f"this is no address: {error}") from None
        except socket.gaierror as error:
            raise Unanswered("no address is known of this host name") from error
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise Unanswered(f"nothing usable came back: {type(error).__name__}") from error

    async def _send(
        self, method: str, url: httpx.URL, content: bytes, headers: Mapping[str, str]
    ) -> OutboundAnswer:
        address = await self._place_of(url)
        request = httpx.Request(
            method,
            url.copy_with(host=str(address)),
            # Else a few bytes that unpack to gigabytes would pass the limit on the answer.
            headers={
                **headers,
                "Host": url.netloc.decode("ascii"),
                "Accept-Encoding": "identity",
                "User-Agent": USER_AGENT,
            },
            content=content,
            # The URL holds an address by now, and TLS must check the certificate of the name.
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        client = httpx.AsyncClient(
            transport=self.transport,
            trust_env=False,
            timeout=self.timeout,
            verify=read_certificates(),
        )
        async with client:
            response = await client.send(request, stream=True, follow_redirects=False)
            return OutboundAnswer(response.status_code, await _content_of(response))

    async def _place_of(self, url: httpx.URL) -> IpAddress:
        """Return the address to connect to for a URL."""
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise AddressRefused("write http:// or https://, a host, and no user or password")
        port = (443 if url.scheme == "https" else 80) if url.port is None else url.port
        if not 0 < port <= LAST_PORT:
            raise AddressRefused(f"there is no port {port}")
        return await self._address_of(url.host, port)

    async def _address_of(self, host: str, port: int) -> IpAddress:
        """Return the address to connect to; one that is not allowed spoils all others."""
        found = [ip_address(text) for text in await self.resolver(host, port)]
        if not found or not all(self.is_allowed(address) for address in found):
            raise AddressRefused(f"{host} is no host of the public internet")
        return found[0]


# What a controller uses; only tests make others.
PUBLIC_INTERNET = OutboundClient()


@cache
def read_certificates() -> ssl.SSLContext:
    """Read the certificate authorities, once: it takes longer than all else about a request."""
    return httpx.create_ssl_context(trust_env=False)


async def _content_of(response: httpx.Response) -> bytes:
    content = b""
    async for part in response.aiter_raw():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            raise Unanswered(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return content


def _meanings(address: IpAddress) -> Iterator[IpAddress]:
    """Yield an address and those of version 4 that it carries to translators."""
    yield address
    if isinstance(address, IPv4Address):
        return
    carried = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped or address in NAT64 or address in IPV4_COMPATIBLE:
        yield carried
    if address.sixtofour:
        yield address.sixtofour
    yield from address.teredo or ()
