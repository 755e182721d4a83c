"""What the tests of the Google provider rent, and from which door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.clouds.google import GoogleProvider
from service.clouds.labels import OWNER_LABEL, SIGNATURE_LABEL
from service.clouds.provider import Instance, Provider
from tests.conformance.clouds import ProviderConformance, UsualLaunch
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.settings import Settings as CloudSettings

ZONE, OTHER_ZONE, THIRD_ZONE = "europe-west3-a", "europe-west3-b", "europe-west3-c"
GCE_TYPE = "e2-custom-4-8192"
BOOT, ENDING = 30.0, 10.0
FAMILY = "projects/images-1/global/images/family/worker"
ENTRY = {
    "project": "project-1",
    "region": "europe-west3",
    "zones": [ZONE, OTHER_ZONE],
    "subnetwork": "workers",
    "image": FAMILY,
}
LABELS = {OWNER_LABEL: "ours", SIGNATURE_LABEL: "0123abcd", "purpose": "conformance"}
USUAL = UsualLaunch(
    offer={"cloud": "google", "zone": ZONE, "machine_type": GCE_TYPE, "image": FAMILY},
    labels=LABELS,
    prepaid=86400.0,
)
Reach = Callable[..., GoogleProvider]


class GoogleConformance(ProviderConformance):
    """The contract of providers, through the door of a test."""

    shows_gone_machines = False
    remembers_launch_keys = False

    @pytest.fixture
    def provider(self, reach: Reach) -> Callable[[], Provider]:
        return reach

    @pytest.fixture
    def destroy(self, door: GoogleDoor) -> Callable[[Instance], None]:
        def preempt(machine: Instance) -> None:
            (truth,) = door.cloud.machines()
            door.cloud.interrupt(truth.description.id)

        return preempt


def google_cloud(**manners: Any) -> FakeCloud:
    """A fake cloud with the habits of Google's."""
    facts = {
        "tariffs": {GCE_TYPE: Tariff(0.2, minimum=60.0, disk_per_hour=0.01)},
        "has_zonal_tokens": True,
        "are_tokens_free_again": True,
        "memory": 0.0,
        "lags_in_lists_only": True,
        "boot": BOOT,
        "ending": ENDING,
    }
    return FakeCloud(VirtualClock(), CloudSettings(**{**facts, **manners}))


def asked(door: GoogleDoor, method: str = "", path: str = "") -> int:
    """How many requests of a kind came."""
    return sum(method in call.method and path in call.path for call in door.calls)


def ids(door: GoogleDoor) -> list[str]:
    return [truth.description.id for truth in door.cloud.machines()]
