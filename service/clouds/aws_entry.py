"""The entry of the clouds file that names a region of an AWS account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator, model_validator

from scavenger.client.profile import is_loopback
from service.clouds.object_store import BucketEntry

_Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z0-9]+)+$")]
_Subnet = Annotated[str, Field(pattern=r"^subnet-[0-9a-z]+$")]


class AwsEntry(BaseModel):
    """Machines in one region of an AWS account.

    Credentials are those that the AWS SDK finds: in the environment, in a profile, or the role of
    the controller's own machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    """Region, such as eu-central-1."""

    subnets: Mapping[_Zone, _Subnet] = Field(min_length=1)
    """Subnet for each zone in which machines may be launched, best zone first."""

    security_group: str = Field(pattern=r"^sg-[0-9a-z]+$")
    """Security group of the machines: all TCP from itself, nothing else in."""

    image: str = Field(pattern=r"^(ami-[0-9a-f]+|ssm:/aws/service/[A-Za-z0-9_./-]+)$")
    """Image that machines boot: ami-..., or ssm: and the name of a public parameter."""

    machine_type: str = ""
    """Type of the machines of jobs that name none, such as m7i.xlarge."""

    instance_profile: str | None = Field(default=None, pattern=r"^[\w+=,.@-]+$")
    """Name of the machines' instance profile, which needs no rights. Default: no profile."""

    profile: str | None = None
    """Profile in the configuration of the AWS SDK. Default: the one that the SDK chooses."""

    disk_gib: int = Field(default=30, ge=1, le=16384)
    """Size of each machine's disk in GiB."""

    public_address: bool = False
    """Give machines a public address; without one their subnets need another way out."""

    checkpoints: BucketEntry | None = None
    """Bucket of S3 in this region for checkpoints. Default: they stay on the machines."""

    endpoint: HttpUrl | None = Field(default=None, exclude=True, repr=False)
    """Where the APIs are served instead; only one on this computer is called without TLS."""

    @field_validator("subnets")
    @classmethod
    def _require_each_once(cls, subnets: Mapping[str, str]) -> Mapping[str, str]:
        if len(set(subnets.values())) < len(subnets):
            raise ValueError("a subnet is in one zone only, and one is named for two")
        return subnets

    @model_validator(mode="after")
    def _require_one_region(self) -> AwsEntry:
        for zone in self.subnets:
            if not zone.startswith(self.region):
                raise ValueError(f"zone {zone} is not in region {self.region}")
        return self

    @model_validator(mode="after")
    def _require_tls(self) -> AwsEntry:
        if self.endpoint is not None and self.endpoint.scheme != "https":
            host = (self.endpoint.host or "").strip("[]")
            if not is_loopback(host):
                raise ValueError(f"{self.endpoint} would show what machines boot with: use https")
        return self
