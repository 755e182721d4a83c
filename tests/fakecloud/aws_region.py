"""What one account has in one AWS region before a machine is started in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROOT_DEVICE = "/dev/xvda"
IMAGE_PARAMETER = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
IMAGE, GROUP, VPC, PROFILE = "ami-0a1b2c3d4e5f60718", "sg-0001", "vpc-0001", "worker"
WORKER_ROLE = "worker-role"


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """What a machine of one type consists of.

    Attributes:
        zones: Where it is sold; None for all.
    """

    vcpus: int = 2
    memory_mib: int = 4096
    accelerator: str | None = None
    accelerators: int = 0
    accelerator_mib: int = 0
    zones: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class AwsRegion:
    """An account in a region; prices and capacity are the fake cloud's.

    Attributes:
        subnets: Zone by subnet.
        images: Name of the root device by image.
        profiles: Role by instance profile.
        hardware: By machine type; types without an entry are all alike.
        epoch: What a calendar shows when the cloud's clock begins.
        price_delay: Seconds after which a change of a spot price is told.
    """

    name: str = "eu-central-1"
    account: str = "123456789012"
    subnets: Mapping[str, str] = field(
        default_factory=lambda: {f"subnet-000{zone}": f"eu-central-1{zone}" for zone in "abc"}
    )
    images: Mapping[str, str] = field(default_factory=lambda: {IMAGE: ROOT_DEVICE})
    parameters: Mapping[str, str] = field(default_factory=lambda: {IMAGE_PARAMETER: IMAGE})
    groups: frozenset[str] = frozenset({GROUP})
    profiles: Mapping[str, str] = field(default_factory=lambda: {PROFILE: WORKER_ROLE})
    hardware: Mapping[str, HardwareFacts] = field(default_factory=dict)
    epoch: datetime = EPOCH
    price_delay: float = 0.0

    @property
    def zones(self) -> tuple[str, ...]:
        """All zones, in alphabetical order."""
        return tuple(sorted(set(self.subnets.values())))

    def facts(self, machine_type: str) -> HardwareFacts:
        """Return what a type consists of."""
        return self.hardware.get(machine_type, HardwareFacts())

    def is_sold(self, machine_type: str, zone: str) -> bool:
        """Whether a zone has machines of a type at all."""
        zones = self.facts(machine_type).zones
        return zones is None or zone in zones
