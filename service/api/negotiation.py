"""What a request takes: media types of the header Accept, and codings of Accept-Encoding."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Receive, Scope, Send


def accept_weights(header: str) -> Mapping[str, float]:
    """Return the weight of each part of such a header; one that is no number counts 0.

    >>> accept_weights("text/html, image/*;q=0.5, gzip;q=x")
    {'text/html': 1.0, 'image/*': 0.5, 'gzip': 0.0}
    """
    return dict(read_weighted(part) for part in header.lower().split(",") if part.strip())


def read_weighted(text: str) -> tuple[str, float]:
    """Return one part of such a header and its weight."""
    name, *parameters = (part.strip() for part in text.split(";"))
    weights = [value for key, _, value in (p.partition("=") for p in parameters) if key == "q"]
    is_number = not weights or re.fullmatch(r"[01](\.[0-9]{0,3})?", weights[0])
    return name, (float(weights[0]) if weights else 1.0) if is_number else 0.0


def prefers(accept: str, media: str, other: str = "application/json") -> bool:
    """Tell whether a request asks for one media type rather than for another.

    >>> [prefers(accept, "image/png") for accept in ("image/png", "*/*", "image/*, */*;q=0")]
    [True, False, True]
    """
    weights = accept_weights(accept)
    everything = weights.get("*/*", 0.0)

    def weight(name: str) -> float:
        return weights.get(name, weights.get(f"{name.partition('/')[0]}/*", everything))

    return weight(media) > weight(other)


def names_media(accept: str, media: str) -> bool:
    """Tell whether a request asks for a media type by its name."""
    return accept_weights(accept).get(media, 0.0) > 0


def takes_gzip(headers: Headers) -> bool:
    """Tell whether an answer may be compressed.

    >>> [takes_gzip(Headers({"accept-encoding": each})) for each in ("br, gzip", "gzip;q=0", "*")]
    [True, False, False]
    """
    return accept_weights(headers.get("accept-encoding", "")).get("gzip", 0.0) > 0


class CompressionMiddleware(GZipMiddleware):
    """Compresses answers where the request allows it; the class above overlooks a weight of 0."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not takes_gzip(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        await super().__call__(scope, receive, send)
