"""The role that we ship for Google grants what the provider calls, and nothing else."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from typing import Any

import httpx
import pytest
import yaml

from service.clouds import google_compute
from service.errors import CredentialsRefused
from tests.builders import NOW
from tests.conformance.clouds import Eventually, Request, is_up
from tests.conformance.google.rental import FAMILY, GCE_TYPE, GoogleConformance, Reach, google_cloud
from tests.docs.test_docs import ROOT
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.google_policy import ACT_AS, GoogleGrant, GoogleNeed
from tests.fakecloud.http_server import HttpServer

ROLE = yaml.safe_load((ROOT / "deploy" / "google" / "role.yaml").read_text())
CONDITION = yaml.safe_load((ROOT / "deploy" / "google" / "condition.yaml").read_text())
PERMISSIONS = frozenset(ROLE["includedPermissions"])
WORKERS = "workers@project-1.iam.gserviceaccount.com"
BOUND = GoogleGrant(
    PERMISSIONS,
    frozenset({"project-1", "images-1"}),
    CONDITION["expression"].replace("REGION", "europe-west3"),
    frozenset({WORKERS}),
)
IMAGE = "projects/images-1/global/images/worker-7"


@pytest.fixture
def door() -> GoogleDoor:
    return GoogleDoor(google_cloud(seed=1, list_lag=5.0, page=2), grant=BOUND)


class TestGoogleProviderUnderItsRole(GoogleConformance):
    pass


def do_all(reach: Reach, request_for: Request, eventually: Eventually) -> None:
    """Make each call of the provider."""
    google = reach(service_account=WORKERS, public_address=True)
    assert google.traits.image == IMAGE
    machine = google.launch(request_for())
    google.launch(request_for(key="key-2", market="spot"))
    eventually(lambda: is_up(google, machine))
    assert list(google.fetch_prices([GCE_TYPE], NOW))
    google.terminate(machine.provider_id)


def test_each_permission_is_needed_and_no_other(
    door: GoogleDoor, reach: Reach, request_for: Request, eventually: Eventually
) -> None:
    do_all(reach, request_for, eventually)
    assert {need.permission for need in door.granted} == PERMISSIONS | {ACT_AS}


CALLS = {
    "_advice.capacity_history": {"compute.advice.capacityHistory"},
    "_images.get_from_family": {"compute.images.getFromFamily"},
    "_instances.delete_unary": {"compute.instances.delete"},
    "_instances.get": {"compute.instances.get"},
    "_instances.list": {"compute.instances.list"},
    "_operations.get": {"compute.zoneOperations.get"},
    "_zones.list": {"compute.zones.list"},
}
WITH_AN_INSERT = {
    "compute.disks.create",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
}


def test_the_source_calls_what_the_role_names() -> None:
    clients = {name.partition(".")[0] for name in CALLS}
    called = {
        f"{node.func.value.attr}.{node.func.attr}"
        for node in ast.walk(ast.parse(inspect.getsource(google_compute)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr in clients
    }
    assert called == {*CALLS, "_instances.insert_unary"}
    assert set().union(*CALLS.values(), WITH_AN_INSERT) == PERMISSIONS


def test_the_role_for_a_bucket_names_no_more_than_objects() -> None:
    role = yaml.safe_load((ROOT / "deploy" / "google" / "bucket-role.yaml").read_text())
    verbs = ("create", "get", "delete", "list")
    assert role["includedPermissions"] == [f"storage.objects.{verb}" for verb in verbs]


# What the doctor is told

FULL_ENTRY = {"service_account": WORKERS, "public_address": True}


def test_the_doctor_asks_for_each_permission_of_the_role(door: GoogleDoor, reach: Reach) -> None:
    rights = {right.name: right for right in reach(**FULL_ENTRY).check_rights("ours")}
    assert {name: right.is_granted for name, right in rights.items()} == dict.fromkeys(
        PERMISSIONS | {ACT_AS}, True
    )
    plain = {right.name for right in reach(image=IMAGE).check_rights("")}
    assert PERMISSIONS - plain == {
        "compute.images.getFromFamily",
        "compute.instances.setServiceAccount",
        "compute.subnetworks.useExternalIp",
    }


@pytest.mark.parametrize("missing", sorted(PERMISSIONS | {ACT_AS}))
def test_a_permission_that_is_missing_is_named_with_what_to_do(
    door: GoogleDoor, reach: Reach, missing: str
) -> None:
    door.denied.add(missing)
    told = {right.name: right for right in reach(**FULL_ENTRY).check_rights("ours")}
    lacking = [right for right in told.values() if not right.is_granted]
    assert [right.name for right in lacking] == [missing] or missing.endswith("getFromFamily")
    assert told[missing].is_granted is (None if missing.endswith("getFromFamily") else False)
    assert "grant" in told[missing].remedy


# What must be denied


@pytest.mark.parametrize("permission", sorted(WITH_AN_INSERT | {ACT_AS}))
def test_a_launch_needs_each_of_its_permissions(
    door: GoogleDoor, reach: Reach, request_for: Request, permission: str
) -> None:
    door.grant = replace(BOUND, permissions=PERMISSIONS - {permission})
    if permission == ACT_AS:
        door.grant = replace(BOUND, accounts=frozenset())
    google = reach(service_account=WORKERS, public_address=True)
    with pytest.raises(CredentialsRefused, match=permission):
        google.launch(request_for())
    assert door.cloud.machines() == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"project": "project-2"},
        {"service_account": "admin@project-1.iam.gserviceaccount.com"},
        {"subnetwork": "projects/network-1/regions/europe-west3/subnetworks/theirs"},
        {"image": "projects/project-9/global/images/theirs"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_launch_is_denied(
    door: GoogleDoor, reach: Reach, request_for: Request, changes: dict[str, Any]
) -> None:
    google = reach(**changes)
    with pytest.raises(CredentialsRefused):
        google.launch(request_for(image=changes.get("image", FAMILY)))
    assert door.cloud.machines() == ()


REGION = "projects/project-1/zones/europe-west3-a"


@pytest.mark.parametrize(
    "need",
    [
        *(
            GoogleNeed(f"compute.{permission}", f"{REGION}/instances/scv-1")
            for permission in (
                "instances.setIamPolicy",
                "instances.setTags",
                "instances.setMachineType",
                "instances.start",
                "instances.osLogin",
                "instances.getSerialPortOutput",
                "disks.delete",
                "disks.use",
                "firewalls.create",
                "projects.setCommonInstanceMetadata",
                "snapshots.create",
            )
        ),
        GoogleNeed("iam.roles.update", "projects/project-1"),
        GoogleNeed("iam.serviceAccountKeys.create", "projects/project-1"),
        GoogleNeed("iam.serviceAccounts.getAccessToken", f"projects/-/serviceAccounts/{WORKERS}"),
        GoogleNeed("resourcemanager.projects.setIamPolicy", "projects/project-1"),
        GoogleNeed("storage.objects.list", "projects/project-1"),
        GoogleNeed("compute.instances.list", "projects/project-2"),
        *(
            GoogleNeed(
                f"compute.{collection}.{verb}",
                f"projects/project-1/zones/us-central1-a/{collection}/scv-1",
                f"compute.googleapis.com/{kind}",
            )
            for collection, kind, verb in (
                ("instances", "Instance", "create"),
                ("instances", "Instance", "delete"),
                ("disks", "Disk", "create"),
            )
        ),
    ],
    ids=lambda need: f"{need.permission} {need.resource[:30]}",
)
def test_nothing_else_is_granted(need: GoogleNeed) -> None:
    assert not BOUND.allows(need)


def test_without_the_condition_other_regions_are_granted_too() -> None:
    there = "projects/project-1/zones/us-central1-a/instances/scv-1"
    need = GoogleNeed("compute.instances.delete", there, "compute.googleapis.com/Instance")
    assert replace(BOUND, condition="").allows(need)
    here = replace(need, resource=f"{REGION}/instances/scv-1")
    assert BOUND.allows(here)


def test_another_region_is_denied_by_the_door() -> None:
    door = GoogleDoor(google_cloud(), grant=replace(BOUND, condition='resource.name != ""'))
    with HttpServer(door.answer) as server:
        path = "/compute/v1/projects/project-1/zones/europe-west3-a/instances/scv-1"
        assert httpx.post(f"{server.url}{path}/stop").status_code == 404
        assert httpx.delete(f"{server.url}{path}").status_code == 404
        door.grant = BOUND
        elsewhere = path.replace("europe-west3-a", "us-central1-a")
        assert httpx.delete(f"{server.url}{elsewhere}").status_code == 403


@pytest.mark.parametrize(
    "condition", ["true", "resource.service != 'x'", "resource.name.endsWith('x')", "a == b"]
)
def test_a_condition_that_is_not_understood_is_an_error(condition: str) -> None:
    need = GoogleNeed("compute.zones.list", "projects/project-1")
    with pytest.raises(ValueError, match="not understood"):
        replace(BOUND, condition=condition).allows(need)
