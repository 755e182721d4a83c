"""What Compute Engine accepts in the body of an insert, and how it refuses the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from tests.fakecloud.http_server import Answer
from tests.fakecloud.machine import Reason, Request, exports_of
from tests.fakecloud.refusal import Refusal

GOOGLE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
GOOGLE_LABEL_KEY = re.compile(r"[a-z][_\-a-z0-9]{0,62}")
GOOGLE_LABEL_VALUE = re.compile(r"[_\-a-z0-9]{0,63}")
CUSTOM_TYPE = re.compile(r"(n4|n2|n2d|e2|n1)-custom-(\d+)-(\d+)")
HYPERDISK_ONLY = re.compile(r"(c4|c4a|c4d|n4|n4a|n4d)-.*")
GOOGLE_GPU_TYPE = re.compile(r"(a2|a3|a4|a4x|g2|g4)-.*")
MOST_LABELS, MOST_METADATA = 64, 256 * 1024
RUN_SECONDS = range(30, 120 * 24 * 3600 + 1)
# What the cloud says in EC2's words: in Google's, status and reason or the code of an operation.
IN_GOOGLES_WORDS = {
    "AuthFailure": "401 authError",
    "InsufficientInstanceCapacity": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "InstanceLimitExceeded": "403 quotaExceeded",
    "InternalError": "500 backendError",
    "InvalidInstanceID.NotFound": "404 notFound",
    "InvalidParameterValue": "400 invalid",
    "MaxSpotInstanceCountExceeded": "403 quotaExceeded",
    "RequestLimitExceeded": "403 rateLimitExceeded",
    "UnauthorizedOperation": "403 forbidden",
    "Unavailable": "503 backendError",
    "VcpuLimitExceeded": "403 quotaExceeded",
}
STATUS_OF_OPERATION_ERROR = {
    "PERMISSIONS_ERROR": 403,
    "QUOTA_EXCEEDED": 403,
    "RESOURCE_NOT_FOUND": 404,
    "RESOURCE_OPERATION_RATE_EXCEEDED": 403,
    "UNSUPPORTED_OPERATION": 400,
}
STARTUP_SCRIPT = "startup-script"
HTTP_ERROR = re.compile(r"(\d{3}) (\w+)")
FROM_WITHIN = frozenset({Reason.PREPAID, Reason.POWERED_OFF})


class GoogleRefusal(Refusal):
    """A refusal with the status and the reason that Google gives.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.status = status


def request_of(zone: str, body: Mapping[str, Any], images: Mapping[str, str]) -> Request:
    """Return what an insert asks of the cloud.

    Args:
        images: Image by the path that names it or its family.

    Raises:
        GoogleRefusal: As Google refuses it.
    """
    _require(GOOGLE_NAME.fullmatch(str(body.get("name", ""))), "name", body.get("name"))
    machine_type = _last_of(str(body.get("machineType", "")), f"zones/{zone}/machineTypes")
    _check_size(machine_type)
    labels = body.get("labels", {})
    _require(len(labels) <= MOST_LABELS, "labels", len(labels))
    for key, value in labels.items():
        is_right = GOOGLE_LABEL_KEY.fullmatch(key) and GOOGLE_LABEL_VALUE.fullmatch(value)
        _require(is_right, "labels", f"{key}={value}")
    for item in body.get("metadata", {}).get("items", ()):
        _require(len(item["value"].encode()) <= MOST_METADATA, "metadata", item["key"])
    _check_disks(zone, machine_type, body.get("disks", ()), images)
    (interface, *_) = body.get("networkInterfaces") or ({},)
    _require("subnetwork" in interface or "network" in interface, "networkInterfaces", interface)
    scheduling = body.get("scheduling", {})
    _check_scheduling(machine_type, scheduling)
    longest_run = scheduling.get("maxRunDuration", {}).get("seconds")
    is_deleted = scheduling.get("instanceTerminationAction") == "DELETE"
    from_outside = frozenset[Reason]() if is_deleted else frozenset(Reason) - {Reason.ORDERED}
    return Request(
        machine_type=machine_type,
        zone=zone,
        environment=_environment_of(body.get("metadata", {}).get("items", ())),
        labels=labels,
        longest_run=None if longest_run is None else float(longest_run),
        stopped_by=FROM_WITHIN | from_outside,
        market="spot" if scheduling.get("provisioningModel") == "SPOT" else "on_demand",
        has_public_address=bool(interface.get("accessConfigs")),
    )


def tell(refusal: Refusal) -> Answer:
    """Say a refusal as Google does."""
    status, reason = 503, "backendError"
    if isinstance(refusal, GoogleRefusal):
        status, reason = refusal.status, refusal.code
    elif match := HTTP_ERROR.fullmatch(IN_GOOGLES_WORDS.get(refusal.code, refusal.code)):
        status, reason = int(match[1]), match[2]
    message = refusal.message
    errors = [{"message": message, "domain": "global", "reason": reason}]
    told = {"error": {"code": status, "message": message, "errors": errors}}
    return status, "application/json; charset=UTF-8", to_json(told)


def invalid(field: str, value: object) -> GoogleRefusal:
    """Return the refusal of a value that Google does not accept."""
    return GoogleRefusal(400, "invalid", f"Invalid value for field 'resource.{field}': '{value}'.")


def missing(path: str) -> GoogleRefusal:
    """Return the refusal of a name that does not exist."""
    return GoogleRefusal(404, "notFound", f"The resource '{path}' was not found")


def _environment_of(items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the startup script and what it exports, the time that is paid for among it."""
    scripts = [item["value"] for item in items if item["key"] == STARTUP_SCRIPT]
    script = "\n".join(scripts)
    return {STARTUP_SCRIPT: script, **exports_of(script)}


def _require(is_right: object, field: str, value: object) -> None:
    if not is_right:
        raise invalid(field, value)


def _check_size(machine_type: str) -> None:
    """Refuse custom sizes that no family has."""
    match = CUSTOM_TYPE.fullmatch(machine_type)
    if match is None:
        return
    processors, memory = int(match[2]), int(match[3])
    is_even = processors == 1 or processors % 2 == 0
    _require(is_even and memory % 256 == 0, "machineType", machine_type)


def _check_disks(
    zone: str, machine_type: str, disks: list[Mapping[str, Any]], images: Mapping[str, str]
) -> None:
    boot = [disk for disk in disks if disk.get("boot")]
    _require(len(boot) == 1, "disks", "exactly one disk must be the boot disk")
    wanted = boot[0].get("initializeParams", {})
    image = _path_of(wanted.get("sourceImage", ""))
    if image not in images:
        raise missing(image)
    disk_type = _last_of(wanted.get("diskType", f"zones/{zone}/diskTypes/pd-standard"), "diskTypes")
    if HYPERDISK_ONLY.fullmatch(machine_type) and not disk_type.startswith("hyperdisk-"):
        message = f"[{disk_type}] features are not compatible for instance type {machine_type}"
        raise GoogleRefusal(400, "badRequest", message)


def _check_scheduling(machine_type: str, scheduling: Mapping[str, Any]) -> None:
    is_spot = scheduling.get("provisioningModel") == "SPOT"
    run = scheduling.get("maxRunDuration", {}).get("seconds")
    is_frozen = scheduling.get("onHostMaintenance") == "TERMINATE"
    if run is not None:
        _require(int(run) in RUN_SECONDS, "scheduling.maxRunDuration", run)
    if "instanceTerminationAction" in scheduling:
        _require(is_spot or run, "scheduling.instanceTerminationAction", "STANDARD")
    if "preemptionNoticeDuration" in scheduling:
        notice = scheduling["preemptionNoticeDuration"].get("seconds")
        _require(is_spot and int(notice) in (0, 120), "scheduling.preemptionNoticeDuration", notice)
    if is_spot:
        # Restarting automatically is Google's default, which no spot machine can have.
        restarts = scheduling.get("automaticRestart", True)
        _require(not restarts, "scheduling.automaticRestart", "true")
    if is_spot or GOOGLE_GPU_TYPE.fullmatch(machine_type):
        _require(is_frozen, "scheduling.onHostMaintenance", "MIGRATE")


def _last_of(url: str, collection: str) -> str:
    """Return the last part of a full or partial URL of a collection."""
    parent, _, name = url.rpartition("/")
    _require(name and parent.endswith(collection), collection.rpartition("/")[2], url)
    return name


def _path_of(url: str) -> str:
    """Return a URL without host and version.

    >>> _path_of("https://www.googleapis.com/compute/v1/projects/p/global/images/i")
    'projects/p/global/images/i'
    """
    return re.sub(r"^(https?://[^/]+/)?(compute/v1/)?", "", url)
