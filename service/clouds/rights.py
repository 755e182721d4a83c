"""Rights of the controller in a cloud, as ``scavenger doctor --permissions`` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, runtime_checkable

from service.clouds.labels import OWNER_LABEL
from service.clouds.provider import Boot, LaunchRequest
from service.offers import BillingTerms, Market, Offer


@dataclass(frozen=True, slots=True)
class Right:
    """One right that the controller uses, and whether its cloud grants it.

    Attributes:
        name: In the words of the cloud.
        purpose: What the controller does with it.
        is_granted: None where the cloud does not say without acting.
        remedy: What to do where it is not granted.
    """

    name: str
    purpose: str
    is_granted: bool | None
    remedy: str = ""


@runtime_checkable
class RightsSource(Protocol):
    """A provider of a cloud that grants rights."""

    def check_rights(self, owner: str) -> Iterator[Right]:
        """Yield each right that the entry needs, by questions that change nothing.

        Args:
            owner: Id of the installation, as it is written onto machines; empty if not known.

        Raises:
            CloudError: The cloud does not answer, or does not know who asks; rights that it told
                before stand.
        """


def dry_request(
    cloud: str, zone: str, machine_type: str, market: Market, image: str, owner: str
) -> LaunchRequest:
    """Return a launch as the reconciler would ask for it, for a dry run."""
    return LaunchRequest(
        launch_key="doctor",
        offer=Offer(cloud, zone, machine_type, market, image, BillingTerms(Decimal(0))),
        boot=Boot(
            controller="https://127.0.0.1",
            job="doctor",
            worker="doctor",
            token="doctor",  # noqa: S106 opens nothing: a dry run starts no machine
            prepaid=60.0,
            agent="0" * 64,
        ),
        labels={OWNER_LABEL: owner or "doctor"},
    )
