"""Labels that prove a machine belongs to this installation.

Labels can be copied. The signature cannot be made without the installation's secret, and it is
valid for one launch key only.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.clouds.provider import LABEL_PATTERN, LAUNCH_KEY_PATTERN, Instance

OWNER_LABEL, LAUNCH_COUNT_LABEL, SIGNATURE_LABEL = (
    "scavenger-owner",
    "scavenger-epoch",
    "scavenger-proof",
)
SIGNATURE_LENGTH = 32


@dataclass(frozen=True, slots=True)
class ResourceLabels:
    """What this installation writes onto its machines.

    Attributes:
        installation: Id of this installation.
        secret: Known to its controllers only.
    """

    installation: str
    secret: bytes = field(repr=False)

    def labels(self, launch_key: str, stamp: str) -> Mapping[str, str]:
        """Compose the labels of a launch, to be written by the call that makes the machine."""
        return {
            OWNER_LABEL: self.installation,
            LAUNCH_COUNT_LABEL: stamp,
            SIGNATURE_LABEL: self.signature(launch_key),
        }

    def signature(self, launch_key: str) -> str:
        """Sign a launch key; only a controller of this installation can."""
        claim = f"{self.installation} {launch_key}".encode()
        return hmac.digest(self.secret, claim, "sha256").hex()[:SIGNATURE_LENGTH]

    def foreign_reason(self, instance: Instance) -> str | None:
        """Say why a machine is not provably ours; None if it is."""
        owner, signature = instance.labels.get(OWNER_LABEL), instance.labels.get(SIGNATURE_LABEL)
        if owner is None:
            return "it carries no label of ours"
        if owner != self.installation:
            return "it belongs to another installation"
        if signature is None:
            return "it carries no signature of ours"
        if not (
            LAUNCH_KEY_PATTERN.fullmatch(instance.launch_key) and LABEL_PATTERN.fullmatch(signature)
        ):
            return "what it carries was never written by us"
        if not hmac.compare_digest(signature, self.signature(instance.launch_key)):
            return "its signature is not of its launch key"
        return None


def launch_stamp_of(instance: Instance) -> str:
    """Return what the launch of a machine was stamped with; nothing if it carries no stamp."""
    stamp = instance.labels.get(LAUNCH_COUNT_LABEL, "")
    return stamp if LABEL_PATTERN.fullmatch(stamp) else ""
