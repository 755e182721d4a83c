"""The Google provider, with the real SDK, over Compute Engine's door to the fake cloud."""

from __future__ import annotations

from decimal import Decimal
from itertools import count
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.clouds.labels import OWNER_LABEL, SIGNATURE_LABEL
from service.clouds.provider import InstanceState
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    LaunchRefused,
    ProviderUnavailable,
)
from tests.builders import NOW
from tests.conformance.clouds import Eventually, Request, is_up, state
from tests.conformance.google.rental import (
    ENDING,
    ENTRY,
    FAMILY,
    GCE_TYPE,
    LABELS,
    OTHER_ZONE,
    THIRD_ZONE,
    ZONE,
    GoogleConformance,
    Reach,
    asked,
    google_cloud,
    ids,
)
from tests.fakecloud.faults import (
    Duplicate,
    Fault,
    Ignored,
)
from tests.fakecloud.google_door import GoogleDoor, GoogleManners
from tests.fakecloud.http_server import HttpServer
from tests.fakecloud.machine import Request as RunRequest
from tests.fakecloud.settings import PLAIN


class TestGoogleProvider(GoogleConformance):
    pass


# What is sent


@pytest.mark.parametrize("market", ["on_demand", "spot"])
@pytest.mark.parametrize("machine_type", [GCE_TYPE, "g2-standard-4"])
def test_a_launch_asks_for_a_machine_that_leaves_nothing_behind(
    market: str, machine_type: str, request_for: Request
) -> None:
    door = GoogleDoor(google_cloud(tariffs=dict.fromkeys([machine_type], PLAIN)))
    with HttpServer(door.answer) as server:
        entry = GoogleEntry.model_validate(
            {
                **ENTRY,
                "endpoint": server.url,
                "service_account": "workers@project-1",
                "disk_gib": 50,
            }
        )
        provider = GoogleProvider("google", entry, wait=door.cloud.clock.advance)
        provider.launch(request_for(market=market, machine_type=machine_type))
        provider.close()
    sent = door.calls[0].body
    scheduling, is_spot = sent["scheduling"], market == "spot"
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert scheduling["automaticRestart"] is False
    assert scheduling["provisioningModel"] == ("SPOT" if is_spot else "STANDARD")
    must_end = is_spot or machine_type.startswith("g2")
    assert scheduling.get("onHostMaintenance") == ("TERMINATE" if must_end else None)
    notice = {"seconds": "120"} if is_spot else None
    assert scheduling.get("preemptionNoticeDuration") == notice
    (disk,) = sent["disks"]
    assert disk["autoDelete"] is disk["boot"] is True
    assert disk["initializeParams"] == {
        "diskSizeGb": "50",
        "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
        "sourceImage": FAMILY,
    }
    assert sent["name"] == "scv-key-1"
    assert sent["labels"] == {**LABELS, "scavenger-job": "job-1"}
    assert sent["serviceAccounts"][0]["email"] == "workers@project-1"
    (item,) = sent["metadata"]["items"]
    assert (item["key"], item["value"][:9]) == ("startup-script", "#!/bin/sh")


@pytest.mark.parametrize(
    ("changes", "subnetwork", "has_address"),
    [
        ({}, "regions/europe-west3/subnetworks/workers", False),
        ({"public_address": True}, "regions/europe-west3/subnetworks/workers", True),
        (
            {"subnetwork": "projects/host/regions/europe-west3/subnetworks/shared"},
            "projects/host/regions/europe-west3/subnetworks/shared",
            False,
        ),
    ],
)
def test_a_machine_stands_in_the_subnetwork_and_has_a_public_address_only_where_told(
    door: GoogleDoor,
    reach: Reach,
    request_for: Request,
    changes: dict[str, Any],
    subnetwork: str,
    has_address: bool,
) -> None:
    reach(**changes).launch(request_for())
    (interface,) = door.calls[0].body["networkInterfaces"]
    assert interface["subnetwork"] == subnetwork
    assert [one["type"] for one in interface.get("accessConfigs", ())] == (
        ["ONE_TO_ONE_NAT"] if has_address else []
    )


@given(seconds=st.floats(1e-3, 1e9) | st.just(inf))
@hypothesis_settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_the_cloud_itself_ends_each_machine_no_sooner_than_asked_and_in_googles_bounds(
    door: GoogleDoor, reach: Reach, request_for: Request, seconds: float
) -> None:
    key = f"key-{len(door.calls)}"
    reach().launch(request_for(key=key, max_run_seconds=seconds))
    sent = next(call.body for call in door.calls if call.body.get("name") == f"scv-{key}")
    assert int(sent["scheduling"]["maxRunDuration"]["seconds"]) == ceil(
        min(max(seconds, 30), 120 * 86400)
    )


# Keys


def test_a_repeated_launch_sends_the_same_request_id_and_gets_the_same_machine(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    first = reach().launch(request_for())
    assert reach().launch(request_for(prepaid=59.0)) == first
    sent = [call.query["requestId"] for call in door.calls if call.method == "POST"]
    assert len(sent) == 2
    assert len(set(sent)) == 1


def test_a_name_that_is_taken_by_the_same_launch_is_adopted(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    door.manners = GoogleManners(request_memory=0.0)
    first = reach().launch(request_for())
    assert reach().launch(request_for(prepaid=59.0)) == first
    assert len(ids(door)) == 1


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {**LABELS, OWNER_LABEL: "theirs", "scavenger-job": "job-1"},
        {**LABELS, SIGNATURE_LABEL: "copied", "scavenger-job": "job-1"},
        {**LABELS, "scavenger-job": "job-2"},
    ],
)
def test_a_name_that_another_launch_has_taken_is_refused(
    door: GoogleDoor, reach: Reach, request_for: Request, labels: dict[str, str]
) -> None:
    door.cloud.launch("scv-key-1", RunRequest(GCE_TYPE, ZONE, labels=labels))
    with pytest.raises(LaunchRefused, match="not launched by this installation"):
        reach().launch(request_for())


def test_a_name_is_free_again_and_numbers_are_not(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually
) -> None:
    cloud = reach()
    first = cloud.launch(request_for())
    eventually(lambda: is_up(cloud, first))
    cloud.terminate(first.provider_id)
    eventually(lambda: state(cloud, first) is None)
    # As long as Google remembers the request, it shows the operation that made the first one.
    with pytest.raises(LaunchKeyUsed, match="is gone"):
        cloud.launch(request_for())
    door.cloud.clock.advance(door.manners.request_memory)
    second = cloud.launch(request_for())
    assert second.provider_id != first.provider_id
    for provider in (cloud, reach()):
        provider.terminate(first.provider_id)
    eventually(lambda: is_up(cloud, second))


def test_what_is_no_number_ends_nothing(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually
) -> None:
    machine = reach().launch(request_for())
    eventually(lambda: is_up(reach(), machine))
    reach().terminate("scv-key-1")
    door.cloud.clock.advance(ENDING)
    assert is_up(reach(), machine)
    assert asked(door, "DELETE") == 0


def test_an_end_gives_no_time_for_a_graceful_shutdown_and_sends_no_request_id(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    cloud = reach()
    machine = cloud.launch(request_for())
    cloud.terminate(machine.provider_id)
    (sent,) = [call for call in door.calls if call.method == "DELETE"]
    assert sent.path.endswith(f"/zones/{ZONE}/instances/{machine.provider_id}")
    assert sent.query == {"noGracefulShutdown": "true"}


@pytest.mark.parametrize("ends_by", ["power off", "order"])
def test_the_key_of_a_machine_that_ends_or_stopped_is_used_up(
    door: GoogleDoor, reach: Reach, request_for: Request, ends_by: str
) -> None:
    machine = reach().launch(request_for())
    door.cloud.clock.advance(60.0)
    if ends_by == "order":
        reach().terminate(machine.provider_id)
    else:
        door.cloud.power_off(*ids(door))
        door.cloud.clock.advance(ENDING)
    with pytest.raises(LaunchRefused, match=r"key-1 is (ending|stopped)"):
        reach().launch(request_for())


# Lists


def test_machines_of_all_zones_of_the_region_are_listed_with_their_zone(
    door: GoogleDoor, reach: Reach, request_for: Request
) -> None:
    wide = reach(zones=[ZONE, OTHER_ZONE, THIRD_ZONE])
    launched = [
        wide.launch(request_for(key=f"key-{number}-{zone[-1]}", zone=zone))
        for zone in (ZONE, OTHER_ZONE, THIRD_ZONE)
        for number in range(3)
    ]
    door.cloud.launch("by-hand", RunRequest(GCE_TYPE, ZONE))
    door.cloud.clock.advance(60.0)
    # The second entry no longer names the third zone; what runs there is listed all the same.
    for provider in (wide, reach(zones=[ZONE])):
        shown = provider.list()
        assert [one.launch_key for one in shown] == [one.launch_key for one in launched]
        assert [one.zone for one in shown] == [one.zone for one in launched]


def test_a_long_list_comes_in_pages(door: GoogleDoor, reach: Reach) -> None:
    labels = {**LABELS, "scavenger-job": "job-1"}
    for number in range(501):
        door.cloud.launch(f"scv-key-{number}", RunRequest(GCE_TYPE, ZONE, labels=labels))
    door.cloud.clock.advance(60.0)
    cloud = reach()
    assert len(cloud.list()) == 501
    assert asked(door, "GET", "/instances") == len(GoogleManners().zones) + 1


def test_a_zone_that_is_down_hides_all_zones_and_ends_no_machine(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually
) -> None:
    cloud = reach()
    machines = [
        cloud.launch(request_for(key=f"key-{zone[-1]}", zone=zone))
        for zone in (ZONE, OTHER_ZONE, THIRD_ZONE)
    ]
    eventually(lambda: all(is_up(cloud, machine) for machine in machines))
    door.cloud.break_zone(OTHER_ZONE)
    with pytest.raises(ProviderUnavailable, match=OTHER_ZONE):
        cloud.list()
    with pytest.raises(ProviderUnavailable, match=OTHER_ZONE):
        cloud.terminate(machines[1].provider_id)
    # A provider that never listed looks in every zone, and the one that is down may hold it.
    with pytest.raises(ProviderUnavailable, match=OTHER_ZONE):
        reach().terminate(machines[1].provider_id)
    for machine in (machines[0], machines[2]):
        reach().terminate(machine.provider_id)
    door.cloud.repair_zone(OTHER_ZONE)
    eventually(lambda: state(cloud, machines[0]) is state(cloud, machines[2]) is None)
    assert is_up(cloud, machines[1])


def test_a_list_that_takes_too_long_is_given_up(door: GoogleDoor, reach: Reach) -> None:
    cloud = reach(stopwatch=count(step=15.0).__next__)
    with pytest.raises(ProviderUnavailable, match="longer than"):
        cloud.list()
    assert asked(door, "GET", "/instances") == 2


@pytest.mark.parametrize("warning", ["UNREACHABLE", "PARTIAL_SUCCESS"])
def test_a_list_that_calls_itself_partial_is_not_believed(
    door: GoogleDoor, reach: Reach, warning: str
) -> None:
    door.list_warning = warning
    with pytest.raises(ProviderUnavailable, match="as told"):
        reach().list()


def test_a_list_without_results_is_complete(door: GoogleDoor, reach: Reach) -> None:
    door.list_warning = "NO_RESULTS_ON_PAGE"
    assert reach().list() == ()


@pytest.mark.parametrize("prepaid", [60.0, 1e7])
def test_a_machine_that_powers_itself_off_is_listed_until_its_end_is_ordered(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually, prepaid: float
) -> None:
    cloud = reach()
    machine = cloud.launch(request_for(prepaid=prepaid))
    eventually(lambda: is_up(cloud, machine))
    if prepaid > 60.0:
        door.cloud.power_off(*ids(door))
    eventually(lambda: state(cloud, machine) is InstanceState.STOPPED)
    door.cloud.clock.advance(86400.0)
    assert state(cloud, machine) is InstanceState.STOPPED
    cloud.terminate(machine.provider_id)
    eventually(lambda: state(cloud, machine) is None)


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_what_google_ends_by_itself_leaves_no_disk(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually, market: str
) -> None:
    cloud = reach()
    machine = cloud.launch(request_for(market=market, max_run_seconds=60.0))
    eventually(lambda: is_up(cloud, machine))
    eventually(lambda: state(cloud, machine) is None)
    (truth,) = door.cloud.machines()
    assert truth.description.reason == "longest run"


@pytest.mark.parametrize("fault", [Ignored(), Duplicate(after=3.0)])
def test_an_end_that_did_not_come_may_be_ordered_again(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually, fault: Fault
) -> None:
    cloud = reach()
    machine = cloud.launch(request_for())
    eventually(lambda: is_up(cloud, machine))
    door.cloud.faults.next("terminate", fault)
    for _ in range(2):
        cloud.terminate(machine.provider_id)
    eventually(lambda: state(cloud, machine) is None)


def test_the_newest_price_on_spot_is_told_and_a_misspelt_type_stops_no_other(
    door: GoogleDoor, reach: Reach
) -> None:
    cloud = reach()
    door.cloud.clock.advance(5000.0)
    told = iter(cloud.fetch_prices(["a-misspelt-type", GCE_TYPE], NOW))
    price = next(told)
    with pytest.raises(CloudError, match="misspelt"):
        next(told)
    share = door.cloud.settings.spot.share(f"{GCE_TYPE}@europe-west3+spot", 5000.0)
    assert (price.item, price.market) == (GCE_TYPE, "spot")
    assert price.price == round(Decimal(0.2 * float(share)), 9)
    assert (price.provider, price.region, price.as_of) == ("google", "europe-west3", NOW)
    door.denied.add("compute.advice.capacityHistory")
    with pytest.raises(CredentialsRefused):
        list(cloud.fetch_prices([GCE_TYPE], NOW))
