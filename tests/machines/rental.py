"""Rentals: a cloud on this computer, in its own protocol, whose machines are computers here.

A controller that is given the clouds file of a rental calls it with the cloud's own SDK.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.conformance.google.rental import ENTRY, GCE_TYPE, ZONE
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import USER_DATA, AwsDoor
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.google_rules import STARTUP_SCRIPT
from tests.fakecloud.hooks import Hook
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.machine import Machine
from tests.fakecloud.settings import Settings
from tests.machines.lab import Lab
from tests.machines.metadata import Kind
from tests.machines.rented import RentedComputers, ignore

# As the price list that comes with the controller says, for a disk of 30 GiB.
EC2_TYPE, EC2_TARIFF = "m6i.xlarge", Tariff(0.23, minimum=60.0, disk_per_hour=30 * 0.0952 / 730)
# The SDK finds these credentials only, also where the user of this computer has an account.
SDK_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "of-a-fake-cloud",
    "AWS_SECRET_ACCESS_KEY": "of-a-fake-cloud",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


@contextmanager
def serve_ec2(cloud: FakeCloud) -> Iterator[dict[str, object]]:
    """Serve a fake cloud as EC2; yields the entry of a clouds file that leads there."""
    with HttpServer(AwsDoor(cloud).answer) as server:
        yield {
            "provider": "aws",
            "region": "eu-central-1",
            "subnets": {"eu-central-1a": "subnet-000a", "eu-central-1b": "subnet-000b"},
            "security_group": GROUP,
            "image": IMAGE,
            "machine_type": EC2_TYPE,
            "endpoint": server.url,
        }


@contextmanager
def serve_compute_engine(cloud: FakeCloud) -> Iterator[dict[str, object]]:
    """Serve a fake cloud as Compute Engine."""
    with HttpServer(GoogleDoor(cloud).answer) as server:
        yield {
            "provider": "google",
            **ENTRY,
            "zones": [ZONE],
            "machine_type": GCE_TYPE,
            "endpoint": server.url,
        }


@dataclass(frozen=True, slots=True)
class StandIn:
    """A cloud that can be rented from here.

    Attributes:
        kind: Whose metadata its machines find.
        manners: How it behaves.
        script: Variable of a request that holds the start-up script.
        serve: Serves it in its own protocol.
    """

    kind: Kind
    manners: Settings
    script: str
    serve: Callable[[FakeCloud], AbstractContextManager[Mapping[str, object]]]


MANNERS = Settings(
    tariffs={EC2_TYPE: EC2_TARIFF, GCE_TYPE: Tariff(0.13402, minimum=60.0)},
    has_zonal_tokens=True,
    boot=0.1,
    ending=0.1,
    lateness=1.0,
    page=1000,
)
EC2 = StandIn("aws", MANNERS, USER_DATA, serve_ec2)
COMPUTE_ENGINE = StandIn(
    "google",
    replace(MANNERS, are_tokens_free_again=True, memory=0.0, page=500),
    STARTUP_SCRIPT,
    serve_compute_engine,
)


@dataclass(frozen=True, slots=True)
class Rental:
    """A cloud that is served.

    Attributes:
        clouds_file: Its only entry leads to this cloud.
    """

    cloud: FakeCloud
    computers: RentedComputers
    clouds_file: Path

    def is_empty(self) -> bool:
        """Tell whether all machines that ever were are gone."""
        return all(machine.gone_at is not None for machine in self.cloud.machines())


@contextmanager
def open_rental(
    stand_in: StandIn, lab: Lab, root: Path, began: Hook = ignore, ended: Hook = ignore
) -> Iterator[Rental]:
    """Serve a cloud; every computer is off when the context is left.

    Args:
        stand_in: Which cloud.
        lab: Where the computers are.
        root: Directory for their disks and the clouds file.
        began: Called before the computer of a machine boots.
        ended: Called when the computer of a machine is off.
    """
    cloud = FakeCloud(RealClock(), stand_in.manners)

    def script_of(machine: Machine) -> str:
        return machine.request.environment[stand_in.script]

    rented = RentedComputers(
        cloud, lab, root, stand_in.kind, script_of, modules=None, began=began, ended=ended
    )
    with stand_in.serve(cloud) as entry, rented as computers:
        clouds_file = root / "clouds.yaml"
        clouds_file.write_text(json.dumps({"clouds": {"rented": entry}}))
        yield Rental(cloud, computers, clouds_file)


def controller_options(lab: Lab, clouds_file: Path) -> tuple[str, ...]:
    """Return the options of a controller that the machines of a lab can reach."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    url = lab.url_of(port)
    host = url.removeprefix("http://").rpartition(":")[0]
    return "--port", str(port), "--address", url, "--names", host, "--clouds", str(clouds_file)
