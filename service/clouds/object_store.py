"""Buckets: where checkpoints are kept that must outlive all machines of a job.

The controller signs requests, looks whether an object is there, and deletes old ones. It never
reads or writes an object: machines do, with signed requests.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator

from scavenger.checkpoints import SignedRequest
from scavenger.client.profile import is_loopback

# A request must begin before its signature has expired; how long it then takes does not matter.
SIGNATURE_SECONDS = 900


class BucketEntry(BaseModel):
    """The bucket of an entry of the clouds file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$")
    """Name of the bucket: lower-case letters, digits and dashes."""

    prefix: str = Field(
        default="scavenger", pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", max_length=256
    )
    """Folder in it; the controller touches nothing else."""

    endpoint: HttpUrl | None = Field(default=None, exclude=True, repr=False)
    """Where it is served instead; only one on this computer is called without TLS."""

    @field_validator("endpoint")
    @classmethod
    def _require_tls(cls, endpoint: HttpUrl | None) -> HttpUrl | None:
        if endpoint is None or endpoint.scheme == "https":
            return endpoint
        if not is_loopback((endpoint.host or "").strip("[]")):
            raise ValueError(f"{endpoint} would show checkpoints: use https")
        return endpoint

    def key(self, name: str) -> str:
        """Return the key of an object in the prefix."""
        return f"{self.prefix}/{name}"


class ObjectStore(Protocol):
    """One prefix of a bucket; names are paths within it.

    Every call may raise a ``CloudError``, and all are safe to repeat and to run concurrently.
    None takes longer than half a minute.
    """

    @property
    def url(self) -> str:
        """What people call it, such as ``s3://bucket/prefix``."""

    def sign_upload(self, name: str, size: int, sha256: str) -> SignedRequest:
        """Return a PUT that makes an object of this size, unless there is one of that name.

        Where the cloud can check the hash, it refuses other content.
        """

    def sign_download(self, name: str) -> SignedRequest:
        """Return a GET of an object."""

    def holds(self, name: str, size: int, sha256: str) -> bool:
        """Whether an object is there, of this size and, where the cloud knows it, this hash."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is a success too."""


@runtime_checkable
class HasObjectStore(Protocol):
    """A provider whose entry may name a bucket."""

    @property
    def object_store(self) -> ObjectStore | None:
        """The bucket; None where the entry names none."""
