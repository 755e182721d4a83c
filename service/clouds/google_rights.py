"""Which permissions Google grants, asked by ``testIamPermissions``, which changes nothing.

A permission may be granted in the project or on the one resource that a launch uses; a resource is
asked where there is one, since its answer counts what it inherits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from service.clouds.google_compute import finding_credentials, translated
from service.clouds.google_entry import GoogleEntry
from service.clouds.google_errors import call_error
from service.clouds.rights import Right

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_HOSTS = {
    "resource manager": "https://cloudresourcemanager.googleapis.com",
    "compute": "https://compute.googleapis.com",
    "iam": "https://iam.googleapis.com",
}
_REQUEST_SECONDS = 8.0
_ROLE = "deploy/google/role.yaml holds it"
_PURPOSES = {
    "compute.instances.list": "lists machines",
    "compute.zones.list": "finds the zones whose machines are listed",
    "compute.instances.create": "launches machines",
    "compute.disks.create": "gives a machine its disk",
    "compute.instances.setLabels": "labels machines at their launch",
    "compute.instances.setMetadata": "gives a machine its boot script",
    "compute.instances.get": "sees whether a launch made a machine",
    "compute.zoneOperations.get": "sees whether a launch failed",
    "compute.instances.delete": "ends machines",
    "compute.advice.capacityHistory": (
        "sees what spot machines cost; without it, prices that were imported hold"
    ),
}


@dataclass(frozen=True, slots=True)
class Question:
    """Permissions on one resource, each with what it is for.

    Attributes:
        service: Whose API is asked.
        path: Of the method.
        resource: What people call it.
    """

    service: str
    path: str
    resource: str
    purposes: Mapping[str, str]


def check_google_rights(entry: GoogleEntry, image: str) -> Iterator[Right]:
    """Yield the permissions that an entry of the clouds file needs.

    Args:
        entry: What is to be rented, and where.
        image: That of the entry, or the newest of its family where Google says so.

    Raises:
        CloudError: Google does not answer, or does not know who asks.
    """
    session = _open_session(entry)
    for question in _questions(entry, image):
        granted = _ask(session, entry, question)
        for name, purpose in question.purposes.items():
            remedy = f"grant {name} on {question.resource} to the controller's account: {_ROLE}"
            is_granted = name in granted
            yield Right(name, purpose, is_granted, "" if is_granted else remedy)
    if "/family/" in entry.image:
        purpose = "finds the newest image of the family"
        if "/family/" not in image:
            yield Right("compute.images.getFromFamily", purpose, is_granted=True)
        else:
            remedy = f"Google does not say which image {image} is: grant it there, or correct it"
            yield Right("compute.images.getFromFamily", purpose, is_granted=None, remedy=remedy)


def _questions(entry: GoogleEntry, image: str) -> Iterator[Question]:
    project = f"projects/{entry.project}"
    purposes = dict(_PURPOSES)
    if entry.service_account is not None:
        purposes["compute.instances.setServiceAccount"] = "gives machines their account"
    path = f"/v1/{project}:testIamPermissions"
    yield Question("resource manager", path, f"project {entry.project}", purposes)
    subnetwork = entry.subnetwork
    if "/" not in subnetwork:
        subnetwork = f"{project}/regions/{entry.region}/subnetworks/{subnetwork}"
    uses = {"compute.subnetworks.use": "launches in the subnetwork"}
    if entry.public_address:
        uses["compute.subnetworks.useExternalIp"] = "gives machines a public address"
    yield Question("compute", f"/compute/v1/{subnetwork}/testIamPermissions", subnetwork, uses)
    if "/family/" not in image:
        boots = {"compute.images.useReadOnly": "boots the image"}
        yield Question("compute", f"/compute/v1/{image}/testIamPermissions", image, boots)
    if entry.service_account is not None:
        acts = {"iam.serviceAccounts.actAs": "gives machines their account"}
        path = f"/v1/projects/-/serviceAccounts/{entry.service_account}:testIamPermissions"
        yield Question("iam", path, f"account {entry.service_account}", acts)


def _open_session(entry: GoogleEntry) -> Any:
    """Return what sends requests in the name of the controller's account."""
    if entry.is_local:
        return AuthorizedSession(AnonymousCredentials())
    with finding_credentials("permissions"):
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    return AuthorizedSession(credentials)


def _ask(session: Any, entry: GoogleEntry, question: Question) -> Collection[str]:
    """Return those of a question's permissions that the account has."""
    host = _HOSTS[question.service] if entry.endpoint is None else str(entry.endpoint).rstrip("/")
    what = f"permissions on {question.resource}"
    with translated(what, call_error):
        answer = session.post(
            f"{host}{question.path}",
            json={"permissions": list(question.purposes)},
            timeout=_REQUEST_SECONDS,
        )
        told = answer.json()
    if answer.status_code == 200 and isinstance(told, dict):
        return frozenset(told.get("permissions", ()))
    message = told.get("error", {}).get("message", "") if isinstance(told, dict) else ""
    raise call_error([], answer.status_code, f"{what}: {message or answer.status_code}")
