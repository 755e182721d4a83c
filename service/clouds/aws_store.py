"""Checkpoints in a bucket of S3; signing asks nothing of AWS.

The signature of an upload covers its length, its hash and the condition that no object of that name
exists, so S3 itself refuses other content and a second version.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from botocore.exceptions import ClientError

from scavenger.checkpoints import SignedRequest
from service.clouds.object_store import SIGNATURE_SECONDS, BucketEntry
from service.errors import CredentialsRefused, ProviderUnavailable

_ABSENT = {"404", "NoSuchKey", "NoSuchBucket"}
_ELSEWHERE = {"301", "307", "400", "PermanentRedirect"}


class AwsObjectStore:
    """One prefix of a bucket.

    Args:
        client: Of the SDK, for S3.
        entry: Which bucket.
        translated: Turns the SDK's errors into the controller's, given what is called.
    """

    def __init__(
        self,
        client: Any,
        entry: BucketEntry,
        translated: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._client, self._entry, self._translated = client, entry, translated

    @property
    def url(self) -> str:
        return f"s3://{self._entry.bucket}/{self._entry.prefix}"

    def sign_upload(self, name: str, size: int, sha256: str) -> SignedRequest:
        checksum = _checksum(sha256)
        url = self._sign(
            "put_object", name, ContentLength=size, ChecksumSHA256=checksum, IfNoneMatch="*"
        )
        signed = {
            "Content-Length": str(size),
            "If-None-Match": "*",
            "x-amz-checksum-sha256": checksum,
        }
        return SignedRequest(url, signed)

    def sign_download(self, name: str) -> SignedRequest:
        return SignedRequest(self._sign("get_object", name))

    def holds(self, name: str, size: int, sha256: str) -> bool:
        with self._translated(f"look for {self.url}/{name}"):
            try:
                found = self._client.head_object(**self._place(name), ChecksumMode="ENABLED")
            except ClientError as error:
                if _code_of(error) in _ABSENT:
                    return False
                raise self._refusal(error) or error from error
        checksum = _checksum(sha256)
        is_same = found.get("ChecksumSHA256", checksum) == checksum
        return bool(is_same and found.get("ContentLength") == size)

    def delete(self, name: str) -> None:
        with self._translated(f"delete {self.url}/{name}"):
            try:
                self._client.delete_object(**self._place(name))
            except ClientError as error:
                if _code_of(error) not in _ABSENT:
                    raise self._refusal(error) or error from error

    def _sign(self, operation: str, name: str, **parameters: Any) -> str:
        with self._translated(f"sign a request to {self.url}"):
            url = self._client.generate_presigned_url(
                operation, Params={**self._place(name), **parameters}, ExpiresIn=SIGNATURE_SECONDS
            )
        return str(url)

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._entry.bucket, "Key": self._entry.key(name)}

    def _refusal(self, error: ClientError) -> Exception | None:
        """Return what an answer without a body means: one to HEAD has a status and no code."""
        code = _code_of(error)
        if code == "403":
            # What is missing is answered so too, where the bucket may not be listed.
            why = (
                "allow s3:PutObject, s3:GetObject and s3:DeleteObject on it to the controller, "
                "and s3:ListBucket on the bucket, or create the bucket"
            )
            return CredentialsRefused(f"{self.url}: S3 answers 403: {why}")
        if code in _ELSEWHERE:
            why = "the bucket must be in the region of its entry"
            return ProviderUnavailable(f"{self.url}: S3 answers {code}: {why}")
        return None


def _checksum(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
