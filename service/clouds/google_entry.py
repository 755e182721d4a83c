"""The entry of the clouds file that names a project and region of Google Cloud."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator, model_validator

from scavenger.client.profile import is_loopback
from service.clouds.object_store import BucketEntry


class GoogleEntry(BaseModel):
    """Machines in one region of a Google Cloud project.

    Credentials are those that Google's libraries find: a key file named in the environment, a login
    of gcloud, or the service account of the controller's own machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    project: str = Field(pattern=r"^[a-z][a-z0-9.:-]*$")
    """Id of the project."""

    region: str = Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$")
    """Region, such as europe-west3."""

    zones: tuple[str, ...] = Field(min_length=1)
    """Zones in which machines may be launched, best first, such as europe-west3-a."""

    subnetwork: str = Field(pattern=r"^([a-z][a-z0-9-]*|projects/\S+/subnetworks/\S+)$")
    """Name of the machines' subnetwork, or its path if another project owns it."""

    image: str = Field(pattern=r"^projects/[^/\s]+/global/images/(family/)?[^/\s]+$")
    """Image that machines boot: projects/.../global/images/..., or .../images/family/..."""

    machine_type: str = ""
    """Type of the machines of jobs that name none, such as n2-standard-4."""

    service_account: str | None = None
    """Email of the machines' service account, which needs no role. Default: no account."""

    disk_gib: int = Field(default=20, ge=10, le=65536)
    """Size of each machine's disk in GiB."""

    disk_type: str = "pd-balanced"
    """Type of that disk; newer families, such as C4 and N4, take only hyperdisk-balanced."""

    public_address: bool = False
    """Give machines a public address; without one their subnetwork needs another way out."""

    checkpoints: BucketEntry | None = None
    """Bucket of Cloud Storage for checkpoints. Default: they stay on the machines."""

    endpoint: HttpUrl | None = Field(default=None, exclude=True, repr=False)
    """Where the API is served instead; only one on this computer is called without credentials."""

    @property
    def is_local(self) -> bool:
        """Whether the API is served on this computer, by a test."""
        return self.endpoint is not None and is_loopback((self.endpoint.host or "").strip("[]"))

    @field_validator("zones")
    @classmethod
    def _require_each_once(cls, zones: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(zones)) < len(zones):
            raise ValueError("a zone is named twice")
        return zones

    @model_validator(mode="after")
    def _require_one_region(self) -> GoogleEntry:
        for zone in self.zones:
            if not re.fullmatch(f"{self.region}-[a-z]", zone):
                raise ValueError(f"zone {zone} is not in region {self.region}")
        return self

    @model_validator(mode="after")
    def _require_tls(self) -> GoogleEntry:
        if self.endpoint is not None and self.endpoint.scheme != "https" and not self.is_local:
            raise ValueError(f"{self.endpoint} would show the credentials: use https")
        return self
