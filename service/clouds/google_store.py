"""Checkpoints in a bucket of Cloud Storage, by signed URLs of version 4.

``google-cloud-storage`` is not needed: a signature is a few lines over what ``google.auth`` signs,
with the key of a service account, or with one call of IAM where the controller's account has none.
The signature of an upload covers its length and the condition that no object of that name exists.
Google checks no SHA-256: the machine compares it while it sends, and again while it fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256 as new_digest
from typing import Any
from urllib.parse import quote, urlsplit

import google.auth
import requests
from google.auth import compute_engine, iam
from google.auth import exceptions as auth_exceptions
from google.auth.credentials import Signing
from google.auth.transport.requests import Request

from scavenger.checkpoints import SignedRequest
from service.clouds.google_compute import finding_credentials
from service.clouds.object_store import SIGNATURE_SECONDS, BucketEntry
from service.errors import CloudError, CredentialsRefused, ProviderUnavailable, Throttled

_HOST = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ALGORITHM = "GOOG4-RSA-SHA256"
_REQUEST_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Signer:
    """What signs URLs.

    Attributes:
        email: Account that URLs act for.
        sign: Returns the RSA signature of bytes, with SHA-256.
    """

    email: str
    sign: Callable[[bytes], bytes]


class GoogleObjectStore:
    """One prefix of a bucket.

    Args:
        entry: Which bucket.
        find_signer: Looks for credentials that can sign; asked at the first call.
        now: Returns the time.
    """

    def __init__(
        self,
        entry: BucketEntry,
        find_signer: Callable[[], Signer] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._entry, self._now = entry, now
        self._find_signer = find_signer or _find_signer
        self._host = str(entry.endpoint or _HOST).rstrip("/")

    @property
    def url(self) -> str:
        return f"gs://{self._entry.bucket}/{self._entry.prefix}"

    def sign_upload(self, name: str, size: int, sha256: str) -> SignedRequest:
        headers = {
            # 0 is the generation of an object that does not exist.
            "x-goog-if-generation-match": "0",
            "x-goog-content-length-range": f"{size},{size}",
        }
        sent = {**headers, "Content-Length": str(size)}
        return SignedRequest(self._sign("PUT", name, headers), sent)

    def sign_download(self, name: str) -> SignedRequest:
        return SignedRequest(self._sign("GET", name))

    def holds(self, name: str, size: int, sha256: str) -> bool:
        answer = self._ask("HEAD", name)
        return answer is not None and answer.get("Content-Length") == str(size)

    def delete(self, name: str) -> None:
        self._ask("DELETE", name)

    def _ask(self, method: str, name: str) -> Mapping[str, str] | None:
        """Return the headers of an answer; None where there is no such object."""
        what = f"{method} {self.url}/{name}"
        url = self._sign(method, name)
        with _translated(what):
            answer = requests.request(
                method,
                url,
                # Of what is stored as it is, the length is told only without compression.
                headers={"Accept-Encoding": "identity"},
                timeout=_REQUEST_SECONDS,
                allow_redirects=False,
            )
        if answer.status_code == 404:
            return None
        if not answer.ok or answer.is_redirect:
            raise _error_of(answer.status_code, what)
        return dict(answer.headers)

    def _sign(self, method: str, name: str, headers: Mapping[str, str] | None = None) -> str:
        with _translated(f"sign a request to {self.url}"):
            path = f"/{self._entry.bucket}/{self._entry.key(name)}"
            return sign_url(self._signer, method, f"{self._host}{path}", headers or {}, self._now())

    @cached_property
    def _signer(self) -> Signer:
        return self._find_signer()


def sign_url(
    signer: Signer,
    method: str,
    url: str,
    headers: Mapping[str, str],
    now: datetime,
    seconds: int = SIGNATURE_SECONDS,
) -> str:
    """Return a URL for one request, by Google's signing process of version 4.

    Args:
        signer: Signs in the name of an account.
        method: Of HTTP.
        url: Of the object, not encoded.
        headers: What must be sent, with names in lower case.
        now: When the signature begins to hold.
        seconds: For how long it does.
    """
    host, path = urlsplit(url).netloc, urlsplit(url).path
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/auto/storage/goog4_request"
    covered = {"host": host, **headers}
    names = ";".join(sorted(covered))
    query = {
        "X-Goog-Algorithm": _ALGORITHM,
        "X-Goog-Credential": f"{signer.email}/{scope}",
        "X-Goog-Date": moment,
        "X-Goog-Expires": str(seconds),
        "X-Goog-SignedHeaders": names,
    }
    asked = "&".join(f"{key}={quote(value, safe='')}" for key, value in sorted(query.items()))
    place = quote(path, safe="/~")
    told = "".join(f"{key}:{value}\n" for key, value in sorted(covered.items()))
    request = f"{method}\n{place}\n{asked}\n{told}\n{names}\nUNSIGNED-PAYLOAD"
    digest = new_digest(request.encode()).hexdigest()
    signature = signer.sign(f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode())
    return f"{urlsplit(url).scheme}://{host}{place}?{asked}&X-Goog-Signature={signature.hex()}"


def _find_signer() -> Signer:
    """Return what signs for this computer's account.

    Raises:
        CredentialsRefused: There are no credentials, or they cannot sign, as a person's cannot.
    """
    with finding_credentials("requests to a bucket"):
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    if isinstance(credentials, Signing):
        return Signer(credentials.signer_email, credentials.sign_bytes)
    if isinstance(credentials, compute_engine.Credentials):
        asker = _timed_request()
        credentials.refresh(asker)  # before it, an account calls itself "default"
        email = credentials.service_account_email
        return Signer(email, iam.Signer(asker, credentials, email).sign)
    raise CredentialsRefused(
        "these credentials of Google cannot sign requests to a bucket: run the controller with "
        "the key file of a service account, or on a machine that has one"
    )


def _timed_request() -> Any:
    """Return what google.auth asks by, with a time-out below that of a call."""
    asker = Request()

    def ask(*arguments: Any, **named: Any) -> Any:
        return asker(*arguments, **{**named, "timeout": _REQUEST_SECONDS})

    return ask


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the libraries' exceptions into the controller's; none of them may show a URL."""
    try:
        yield
    except requests.RequestException as error:
        raise ProviderUnavailable(f"{what}: no answer: {type(error).__name__}") from None
    except auth_exceptions.GoogleAuthError as error:
        kind = ProviderUnavailable if error.retryable else CredentialsRefused
        raise kind(f"{what}: {error}") from error


def _error_of(status: int, what: str) -> CloudError:
    told = f"{what}: Cloud Storage answers {status}"
    match status:
        case 401 | 403:
            rights = "storage.objects.create, .get and .delete"
            return CredentialsRefused(f"{told}: allow {rights} on the bucket to the controller")
        case 429:
            return Throttled(told)
        case _:
            return ProviderUnavailable(told)
