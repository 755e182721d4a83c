"""Ownership: the labels that prove a machine ours, and how they are read.

Anybody may copy a label. What cannot be made without our secret is the proof, and that is good for
one launch key only.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.clouds.provider import LABEL, LAUNCH_KEY, Instance

OWNER, EPOCH, PROOF = "scavenger-owner", "scavenger-epoch", "scavenger-proof"
LENGTH = 32


@dataclass(frozen=True, slots=True)
class Ownership:
    """What this installation writes onto its machines.

    Attributes:
        installation: Id of this installation.
        secret: Known to its controllers only.
    """

    installation: str
    secret: bytes = field(repr=False)

    def labels(self, launch_key: str, stamp: str) -> Mapping[str, str]:
        """Compose the labels of a launch, to be written by the call that makes the machine."""
        return {OWNER: self.installation, EPOCH: stamp, PROOF: self.proof(launch_key)}

    def proof(self, launch_key: str) -> str:
        """Make the proof that a launch was ours."""
        claim = f"{self.installation} {launch_key}".encode()
        return hmac.digest(self.secret, claim, "sha256").hex()[:LENGTH]

    def objection(self, instance: Instance) -> str | None:
        """Say why a machine is not provably ours; None if it is."""
        owner, proof = instance.labels.get(OWNER), instance.labels.get(PROOF)
        if owner is None:
            return "it carries no label of ours"
        if owner != self.installation:
            return "it belongs to another installation"
        if proof is None:
            return "it carries no proof"
        if not (LAUNCH_KEY.fullmatch(instance.launch_key) and LABEL.fullmatch(proof)):
            return "what it carries was never written by us"
        if not hmac.compare_digest(proof, self.proof(instance.launch_key)):
            return "its proof is not of its launch key"
        return None


def stamp_of(instance: Instance) -> str:
    """Return what the launch of a machine was stamped with; nothing if it carries no stamp."""
    stamp = instance.labels.get(EPOCH, "")
    return stamp if LABEL.fullmatch(stamp) else ""
