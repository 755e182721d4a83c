"""Whether a request to a bucket is signed: version 4 of AWS, and version 4 of Google.

Written from the vendors' descriptions, and independent of what signs in the product.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

UNSIGNED = "UNSIGNED-PAYLOAD"


class SignatureRefused(Exception):
    """A request is not signed, not any more, or not as it was sent."""


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """A request without its body.

    Attributes:
        target: Path and query, as sent.
        headers: By names in lower case.
    """

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def is_google(self) -> bool:
        return "X-Goog-Signature" in self.query

    def canonical(self, signed: str, payload: str, signature: str) -> str:
        """Return the hash of what is signed of it, beside the moment."""
        query = {key: value for key, value in self.query.items() if key != signature}
        pairs = sorted(
            (quote(key, safe="~"), quote(value, safe="~")) for key, value in query.items()
        )
        asked = "&".join(f"{key}={value}" for key, value in pairs)
        names = signed.split(";")
        if "host" not in names:
            raise SignatureRefused("the host is not signed")
        told = "".join(f"{name}:{self.headers.get(name, '').strip()}\n" for name in names)
        path = urlsplit(self.target).path
        text = f"{self.method}\n{path}\n{asked}\n{told}\n{signed}\n{payload}"
        return sha256(text.encode()).hexdigest()


Verify = Callable[[ObjectRequest, datetime], None]


def verify_aws(key_id: str, secret: str) -> Verify:
    """Return what judges requests that are signed with one key of AWS, in query or header."""

    def verify(asked: ObjectRequest, now: datetime) -> None:
        query, header = asked.query, asked.headers.get("authorization", "")
        if "X-Amz-Signature" in query:
            moment, credential = query["X-Amz-Date"], query["X-Amz-Credential"]
            signed, signature = query["X-Amz-SignedHeaders"], query["X-Amz-Signature"]
            check_moment(moment, int(query["X-Amz-Expires"]), now)
            payload = UNSIGNED
        elif header.startswith("AWS4-HMAC-SHA256 "):
            parts = dict(part.strip().split("=", 1) for part in header.split(" ", 1)[1].split(","))
            credential, signed = parts["Credential"], parts["SignedHeaders"]
            moment, signature = asked.headers["x-amz-date"], parts["Signature"]
            payload = asked.headers["x-amz-content-sha256"]
        else:
            raise SignatureRefused("it is not signed")
        check_headers(asked, signed, "x-amz-")
        named, scope = credential.split("/", 1)
        if named != key_id:
            raise SignatureRefused(f"there is no key {named}")
        digest = asked.canonical(signed, payload, "X-Amz-Signature")
        key = f"AWS4{secret}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        told = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        if not hmac.compare_digest(hmac.digest(key, told.encode(), "sha256").hex(), signature):
            raise SignatureRefused("the signature is of another request")

    return verify


def verify_google(email: str, key: RSAPublicKey) -> Verify:
    """Return what judges requests that are signed with the key of one account of Google."""

    def verify(asked: ObjectRequest, now: datetime) -> None:
        query = asked.query
        if "X-Goog-Signature" not in query:
            raise SignatureRefused("it is not signed")
        moment, signed = query["X-Goog-Date"], query["X-Goog-SignedHeaders"]
        check_moment(moment, int(query["X-Goog-Expires"]), now)
        check_headers(asked, signed, "x-goog-")
        named, scope = query["X-Goog-Credential"].split("/", 1)
        if named != email or scope != f"{moment[:8]}/auto/storage/goog4_request":
            raise SignatureRefused(f"there is no account {named} for {scope}")
        digest = asked.canonical(signed, UNSIGNED, "X-Goog-Signature")
        told = f"GOOG4-RSA-SHA256\n{moment}\n{scope}\n{digest}"
        try:
            key.verify(
                bytes.fromhex(query["X-Goog-Signature"]), told.encode(), PKCS1v15(), SHA256()
            )
        except InvalidSignature as error:
            raise SignatureRefused("the signature is of another request") from error

    return verify


def check_moment(moment: str, seconds: int, now: datetime) -> None:
    """Refuse a signature that has expired."""
    began = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if not began - timedelta(minutes=15) <= now < began + timedelta(seconds=seconds):
        raise SignatureRefused("the signature has expired")


def check_headers(asked: ObjectRequest, signed: str, prefix: str) -> None:
    """Refuse headers of the vendor that the signature does not cover."""
    loose = {name for name in asked.headers if name.startswith(prefix)} - set(signed.split(";"))
    if loose:
        raise SignatureRefused(f"not signed: {', '.join(sorted(loose))}")
