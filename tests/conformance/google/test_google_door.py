"""Compute Engine's door to the fake cloud answers the real SDK as Google does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google.protobuf import json_format

from tests.conformance.google.rental import BOOT, ENDING, GCE_TYPE, OTHER_ZONE, ZONE, google_cloud
from tests.fakecloud.faults import Garbage, LateRequest, LostResponse
from tests.fakecloud.google_door import GoogleDoor, GoogleManners
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer
from tests.fakecloud.settings import PLAIN

PROJECT = "project-1"
DONE = compute_v1.Operation.Status.DONE
ANSWERS = {
    "compute#operation": compute_v1.Operation,
    "compute#instance": compute_v1.Instance,
    "compute#instanceList": compute_v1.InstanceList,
    "compute#instanceAggregatedList": compute_v1.InstanceAggregatedList,
}


def resource(name: str = "scv-1", **changes: Any) -> Any:
    """What an insert that Google accepts is sent."""
    disk = compute_v1.AttachedDiskInitializeParams(
        source_image="projects/images-1/global/images/family/worker", disk_size_gb=20
    )
    facts = {
        "name": name,
        "machine_type": f"zones/{ZONE}/machineTypes/{GCE_TYPE}",
        "labels": {"scavenger-job": "job_1"},
        "disks": [compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=disk)],
        "network_interfaces": [
            compute_v1.NetworkInterface(subnetwork="regions/europe-west3/subnetworks/workers")
        ],
        "scheduling": spot(),
    }
    return compute_v1.Instance(**{**facts, **changes})


def spot(**changes: Any) -> Any:
    facts = {
        "provisioning_model": "SPOT",
        "instance_termination_action": "DELETE",
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE",
        "max_run_duration": compute_v1.Duration(seconds=600),
        "preemption_notice_duration": compute_v1.Duration(seconds=120),
    }
    kept = {**facts, **changes}
    return compute_v1.Scheduling(**{key: value for key, value in kept.items() if value is not None})


@pytest.fixture
def door() -> GoogleDoor:
    types = {GCE_TYPE: PLAIN, "g2-standard-4": PLAIN, "c4-standard-2": PLAIN}
    capacity = {f"{GCE_TYPE}@{OTHER_ZONE}+spot": 0}
    return GoogleDoor(google_cloud(tariffs=types, capacity=capacity))


@pytest.fixture
def open_client(door: GoogleDoor) -> Iterator[Callable[[Any], Any]]:
    def answer(asked: HttpRequest) -> Answer:
        """Require that each answer is one whose members the SDK knows."""
        status, media_type, content = door.answer(asked)
        kinds = [kind for kind in ANSWERS if f'"kind":"{kind}"'.encode() in content[:60]]
        for kind in kinds:
            json_format.Parse(content, ANSWERS[kind].pb(ANSWERS[kind]()))
        return status, media_type, content

    with HttpServer(answer) as server, ExitStack() as opened:

        def make(client: Any) -> Any:
            options = ClientOptions(api_endpoint=server.url)
            made = client(credentials=AnonymousCredentials(), client_options=options)
            opened.callback(made.transport.close)
            return made

        yield make


@pytest.fixture
def instances(open_client: Callable[[Any], Any]) -> Any:
    return open_client(compute_v1.InstancesClient)


def insert(instances: Any, sent: Any, zone: str = ZONE, request_id: str = "") -> Any:
    return instances.insert_unary(
        request=compute_v1.InsertInstanceRequest(
            project=PROJECT,
            zone=zone,
            instance_resource=sent,
            request_id=request_id or str(uuid4()),
        ),
        retry=None,
        timeout=5,
    )


def names(instances: Any, zone: str = ZONE, **how: Any) -> list[str]:
    asked = compute_v1.ListInstancesRequest(project=PROJECT, zone=zone, **how)
    return [shown.name for shown in instances.list(request=asked, retry=None)]


def test_an_operation_ends_later_and_a_repeated_request_id_shows_it_again(
    door: GoogleDoor, instances: Any, open_client: Callable[[Any], Any]
) -> None:
    operations, request_id = open_client(compute_v1.ZoneOperationsClient), str(uuid4())
    begun = insert(instances, resource(), request_id=request_id)
    assert begun.status != DONE
    door.cloud.clock.advance(door.manners.operation_seconds)
    polled = operations.get(project=PROJECT, zone=ZONE, operation=begun.name, retry=None)
    assert (polled.status, list(polled.error.errors)) == (DONE, [])
    assert insert(instances, resource(), request_id=request_id).name == begun.name
    assert len(door.cloud.machines()) == 1
    with pytest.raises(exceptions.Conflict, match="already exists"):
        insert(instances, resource())


def test_a_request_id_is_forgotten_after_a_while(door: GoogleDoor, instances: Any) -> None:
    request_id = str(uuid4())
    begun = insert(instances, resource(), request_id=request_id)
    instances.delete_unary(project=PROJECT, zone=ZONE, instance="scv-1", retry=None)
    door.cloud.clock.advance(door.manners.request_memory - 1.0)
    assert insert(instances, resource(), request_id=request_id).name == begun.name
    door.cloud.clock.advance(1.0)
    assert insert(instances, resource(), request_id=request_id).name != begun.name
    assert len(door.cloud.machines()) == 2


def test_a_request_that_arrives_late_finds_its_id_used(door: GoogleDoor, instances: Any) -> None:
    request_id = str(uuid4())
    door.cloud.faults.next("launch", LateRequest(20.0))
    with pytest.raises(requests.ConnectionError):
        insert(instances, resource(), request_id=request_id)
    insert(instances, resource(), request_id=request_id)
    instances.delete_unary(project=PROJECT, zone=ZONE, instance="scv-1", retry=None)
    door.cloud.clock.advance(100.0)
    assert names(instances) == []
    assert len(door.cloud.machines()) == 1


@pytest.mark.parametrize(
    "sent",
    [
        {"name": "5-begins-with-a-digit"},
        {"name": "x" * 64},
        {"labels": {"Capital": "x"}},
        {"labels": {"dotted.key": "x"}},
        {"labels": {"key": "Capital"}},
        {"labels": {f"key-{number}": "x" for number in range(65)}},
        {"machine_type": f"zones/{OTHER_ZONE}/machineTypes/{GCE_TYPE}"},
        {"machine_type": f"zones/{ZONE}/machineTypes/e2-custom-3-8192"},
        {"machine_type": f"zones/{ZONE}/machineTypes/e2-unheard-of"},
        {"machine_type": f"zones/{ZONE}/machineTypes/c4-standard-2"},  # with a pd disk
        {"disks": []},
        {"network_interfaces": []},
        {"scheduling": spot(automatic_restart=None)},
        {"scheduling": spot(on_host_maintenance="MIGRATE")},
        {"scheduling": spot(max_run_duration=compute_v1.Duration(seconds=29))},
        {"scheduling": spot(max_run_duration=compute_v1.Duration(seconds=120 * 86400 + 1))},
        {"scheduling": spot(preemption_notice_duration=compute_v1.Duration(seconds=90))},
        {
            "scheduling": compute_v1.Scheduling(
                provisioning_model="STANDARD", instance_termination_action="DELETE"
            )
        },
        {
            "machine_type": f"zones/{ZONE}/machineTypes/g2-standard-4",
            "scheduling": compute_v1.Scheduling(provisioning_model="STANDARD"),
        },
        {
            "metadata": compute_v1.Metadata(
                items=[compute_v1.Items(key="startup-script", value="x" * (256 * 1024 + 1))]
            )
        },
    ],
)
def test_an_insert_that_google_would_not_accept_is_refused(
    door: GoogleDoor, instances: Any, sent: dict[str, Any]
) -> None:
    with pytest.raises(exceptions.BadRequest):
        insert(instances, resource(**sent))
    assert door.cloud.machines() == ()


def test_only_the_operation_tells_that_a_zone_is_sold_out(
    door: GoogleDoor, instances: Any, open_client: Callable[[Any], Any]
) -> None:
    sent = resource(machine_type=f"zones/{OTHER_ZONE}/machineTypes/{GCE_TYPE}")
    begun = insert(instances, sent, OTHER_ZONE)
    door.cloud.clock.advance(door.manners.operation_seconds)
    operations = open_client(compute_v1.ZoneOperationsClient)
    polled = operations.get(project=PROJECT, zone=OTHER_ZONE, operation=begun.name, retry=None)
    assert [error.code for error in polled.error.errors] == [
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    ]
    assert polled.http_error_status_code == 503
    assert names(instances, OTHER_ZONE) == []


def test_a_list_has_pages_and_a_filter(door: GoogleDoor, instances: Any) -> None:
    for number in range(5):
        insert(instances, resource(f"scv-{number}"))
    insert(instances, resource("not-ours", labels={"owner": "other"}))
    door.calls.clear()
    shown = names(instances, filter="labels.scavenger-job:*", max_results=2)
    assert shown == [f"scv-{number}" for number in range(5)]
    assert len(door.calls) == 3
    assert names(instances, filter="labels.owner=other AND name=not-ours") == ["not-ours"]
    with pytest.raises(exceptions.BadRequest):
        names(instances, filter="nonsense")
    with pytest.raises(exceptions.BadRequest):
        names(instances, max_results=501)


def test_an_aggregated_list_leaves_out_a_zone_that_is_down_and_tells_nothing(
    door: GoogleDoor, instances: Any
) -> None:
    insert(instances, resource())
    door.cloud.break_zone(ZONE)
    asked = compute_v1.AggregatedListInstancesRequest(project=PROJECT)
    shown = dict(instances.aggregated_list(request=asked, retry=None))
    assert f"zones/{ZONE}" not in shown
    assert all(not scope.warning.code for scope in shown.values())
    with pytest.raises(exceptions.ServiceUnavailable):
        names(instances)


@pytest.mark.parametrize(("action", "status"), [("DELETE", None), ("STOP", "TERMINATED")])
@pytest.mark.parametrize("end", ["preempted", "max run duration"])
def test_the_termination_action_is_honoured_by_both_ends_from_outside(
    door: GoogleDoor, instances: Any, action: str, status: str | None, end: str
) -> None:
    insert(instances, resource(scheduling=spot(instance_termination_action=action)))
    if end == "preempted":
        door.cloud.interrupt(door.cloud.machines()[0].description.id)
    door.cloud.clock.advance(BOOT + 600.0 + 30.0 + ENDING)
    shown = list(instances.list(project=PROJECT, zone=ZONE, retry=None))
    assert [machine.status for machine in shown] == ([status] if status else [])


def test_a_machine_is_ended_by_name_or_number_and_its_name_is_free_again(
    door: GoogleDoor, instances: Any
) -> None:
    numbers = []
    for _ in range(2):
        insert(instances, resource())
        (shown,) = instances.list(project=PROJECT, zone=ZONE, retry=None)
        numbers.append(str(shown.id))
        ask = {"project": PROJECT, "zone": ZONE, "instance": numbers[-1]}
        instances.delete_unary(**ask, retry=None)
        door.cloud.clock.advance(ENDING)
        with pytest.raises(exceptions.NotFound):
            instances.delete_unary(**ask, retry=None)
    assert numbers[0] != numbers[1]


def test_faults_reach_the_sdk_as_broken_connections_and_pages_in_html(
    door: GoogleDoor, instances: Any
) -> None:
    door.cloud.faults.next("launch", LostResponse())
    with pytest.raises(requests.ConnectionError):
        insert(instances, resource())
    door.cloud.faults.next("list", Garbage())
    with pytest.raises(exceptions.BadGateway, match="Error 502"):
        names(instances)
    assert len(door.calls) == 2


def test_the_catalogue_names_zones_types_and_images(open_client: Callable[[Any], Any]) -> None:
    zones = open_client(compute_v1.ZonesClient).list(project=PROJECT, retry=None)
    assert [zone.name for zone in zones] == list(GoogleManners().zones)
    types = open_client(compute_v1.MachineTypesClient)
    ask = {"project": PROJECT, "zone": ZONE}
    custom = types.get(**ask, machine_type=GCE_TYPE, retry=None)
    assert (custom.guest_cpus, custom.memory_mb) == (4, 8192)
    assert "e2-medium" in [shown.name for shown in types.list(**ask, retry=None)]
    images = open_client(compute_v1.ImagesClient)
    assert (
        images.get_from_family(project="images-1", family="worker", retry=None).name == "worker-7"
    )


def test_permissions_are_told_and_enforced(door: GoogleDoor, instances: Any) -> None:
    door.denied.add("compute.instances.create")
    with HttpServer(door.answer) as server:
        told = requests.post(
            f"{server.url}/v1/projects/{PROJECT}:testIamPermissions",
            json={"permissions": ["compute.instances.create", "compute.instances.list"]},
            timeout=5,
        )
    assert told.json() == {"permissions": ["compute.instances.list"]}
    with pytest.raises(exceptions.Forbidden, match=r"compute\.instances\.create"):
        insert(instances, resource())
