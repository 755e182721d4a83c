"""A machine of Compute Engine: asked for so that it leaves nothing behind, and as it is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from service.clouds.boot import render_boot_script
from service.clouds.google_entry import GoogleEntry
from service.clouds.provider import Instance, InstanceState, LaunchRequest

GOOGLE_NAME_PREFIX = "scv-"
GOOGLE_JOB_LABEL = "scavenger-job"
_SHORTEST_RUN, _LONGEST_RUN = 30, 120 * 24 * 3600  # what Google accepts
_NOTICE_SECONDS = 120  # the only notice that Google accepts
_GPU_TYPE = re.compile(r"(a2|a3|a4|a4x|g2|g4)-.*")
# A status that is not listed belongs to a machine that exists: it counts as running.
_STATES: Mapping[str, InstanceState] = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "STOPPING": InstanceState.ENDING,
    "PENDING_STOP": InstanceState.ENDING,
    "DEPROVISIONING": InstanceState.ENDING,
    "SUSPENDING": InstanceState.ENDING,
    "STOPPED": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
    "SUSPENDED": InstanceState.STOPPED,
}
_ALL_APIS = "https://www.googleapis.com/auth/cloud-platform"


def machine_of(entry: GoogleEntry, request: LaunchRequest) -> dict[str, Any]:
    """Return the fields of ``compute_v1.Instance``."""
    offer = request.offer
    subnetwork = entry.subnetwork
    if "/" not in subnetwork:
        subnetwork = f"regions/{entry.region}/subnetworks/{subnetwork}"
    boot_disk = {
        "source_image": offer.image,
        "disk_size_gb": entry.disk_gib,
        "disk_type": f"zones/{offer.zone}/diskTypes/{entry.disk_type}",
    }
    script = {"key": "startup-script", "value": render_boot_script(request.boot)}
    address = {"access_configs": [{"type_": "ONE_TO_ONE_NAT"}]} if entry.public_address else {}
    machine: dict[str, Any] = {
        "name": GOOGLE_NAME_PREFIX + request.launch_key,
        "machine_type": f"zones/{offer.zone}/machineTypes/{offer.machine_type}",
        "labels": {**request.labels, GOOGLE_JOB_LABEL: request.job},
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": boot_disk}],
        "network_interfaces": [{"subnetwork": subnetwork, **address}],
        "scheduling": _scheduling(request),
        "metadata": {"items": [script]},
    }
    if entry.service_account is not None:
        account = {"email": entry.service_account, "scopes": [_ALL_APIS]}
        machine["service_accounts"] = [account]
    return machine


def _scheduling(request: LaunchRequest) -> dict[str, Any]:
    """Return when and how Google itself ends the machine."""
    is_spot = request.offer.market == "spot"
    longest_run = math.ceil(min(max(request.max_run_seconds, _SHORTEST_RUN), _LONGEST_RUN))
    scheduling: dict[str, Any] = {
        "provisioning_model": "SPOT" if is_spot else "STANDARD",
        # Stopped is Google's default: the disk would be billed until a person notices.
        "instance_termination_action": "DELETE",
        "automatic_restart": False,
        "max_run_duration": {"seconds": longest_run},
    }
    if is_spot or _GPU_TYPE.fullmatch(request.offer.machine_type):
        scheduling["on_host_maintenance"] = "TERMINATE"  # neither kind can move to another host
    if is_spot:
        scheduling["preemption_notice_duration"] = {"seconds": _NOTICE_SECONDS}
    return scheduling


def instance_of(shown: Any, zone: str) -> Instance:
    """Return a machine that Google shows, as ``compute_v1.Instance``, in the contract's words."""
    labels = dict(shown.labels)
    job = labels.pop(GOOGLE_JOB_LABEL, "")
    return Instance(
        provider_id=str(shown.id),
        launch_key=shown.name.removeprefix(GOOGLE_NAME_PREFIX),
        job=job,
        state=_STATES.get(shown.status, InstanceState.RUNNING),
        zone=zone,
        labels=labels,
    )
