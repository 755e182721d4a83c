"""The calls of Compute Engine, one attempt each, with the controller's errors.

An answer counts only if Google wrote it. What an answer means for a machine is decided in
``google.py``; this file alone imports the SDK of Compute Engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth import exceptions as auth_exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google.protobuf import json_format

from service.clouds.google_entry import GoogleEntry
from service.clouds.google_errors import call_error, launch_error, unknown_error, zones_with_room
from service.clouds.google_machine import GOOGLE_JOB_LABEL, GOOGLE_NAME_PREFIX
from service.clouds.google_prices import spot_price_question
from service.errors import CloudError, CredentialsRefused, ProviderUnavailable

# A time-out is of one request.
_INSERT_SECONDS, _PAGE_SECONDS, _REQUEST_SECONDS = 8.0, 6.0, 4.0
_PAGE = 500
_INCOMPLETE = {"UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED"}

Translate = Callable[[list[str], int | None, str], CloudError]


class ComputeEngine:
    """One project of Compute Engine.

    Args:
        name: Name of the entry in the clouds file.
    """

    def __init__(self, name: str, entry: GoogleEntry) -> None:
        self._name, self._entry = name, entry
        self._opened: list[Any] = []

    def insert(self, zone: str, machine: Mapping[str, Any], request_id: str, what: str) -> Any:
        """Return the operation of an insert; None if the name is taken."""
        with translated(what, launch_error):
            try:
                operation = self._instances.insert_unary(
                    request=compute_v1.InsertInstanceRequest(
                        project=self._entry.project,
                        zone=zone,
                        instance_resource=machine,
                        request_id=request_id,
                    ),
                    retry=None,
                    timeout=_INSERT_SECONDS,
                )
            except exceptions.Conflict:
                return None
            return _known(operation, "compute#operation")

    def poll(self, zone: str, operation: str, what: str) -> Any:
        """Return an operation of an accepted insert as it is now: no failure is certain."""
        with translated(what, unknown_error):
            polled = self._operations.get(
                project=self._entry.project,
                zone=zone,
                operation=operation,
                retry=None,
                timeout=_REQUEST_SECONDS,
            )
            return _known(polled, "compute#operation")

    def find(self, zone: str, machine: str, what: str, translate: Translate = call_error) -> Any:
        """Return the machine of a name or number; None if the zone has none."""
        with translated(what, translate):
            try:
                shown = self._instances.get(
                    project=self._entry.project,
                    zone=zone,
                    instance=machine,
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
            except exceptions.NotFound:
                return None
            return _known(shown, "compute#instance")

    def pages(self, zone: str) -> Iterator[Sequence[Any]]:
        """Yield the machines of a zone that a controller launched.

        Raises:
            CloudError: The list is not complete.
        """
        with translated(f"list {zone}", call_error):
            pager = self._instances.list(
                request=compute_v1.ListInstancesRequest(
                    project=self._entry.project,
                    zone=zone,
                    filter=f"labels.{GOOGLE_JOB_LABEL}:*",
                    max_results=_PAGE,
                ),
                retry=None,
                timeout=_PAGE_SECONDS,
            )
            for page in pager.pages:
                _known(page, "compute#instanceList")
                if page.warning.code in _INCOMPLETE:
                    raise ProviderUnavailable(f"list {zone}: {page.warning.message}")
                yield [each for each in page.items if each.name.startswith(GOOGLE_NAME_PREFIX)]

    def zones(self) -> list[str]:
        """Return the zones of the region."""
        with translated("list zones", call_error):
            shown = self._zones.list(
                request=compute_v1.ListZonesRequest(project=self._entry.project, max_results=_PAGE),
                retry=None,
                timeout=_REQUEST_SECONDS,
            )
            _known(shown, "compute#zoneList")
            return [zone.name for zone in shown if zone.name.startswith(f"{self._entry.region}-")]

    def delete(self, zone: str, machine: str) -> bool:
        """Whether the zone knew the machine; its end is ordered then."""
        with translated(f"terminate {machine}", call_error):
            try:
                operation = self._instances.delete_unary(
                    request=compute_v1.DeleteInstanceRequest(
                        project=self._entry.project,
                        zone=zone,
                        instance=machine,
                        no_graceful_shutdown=True,
                    ),
                    retry=None,
                    timeout=_REQUEST_SECONDS,
                )
            except exceptions.NotFound:
                return False
            _known(operation, "compute#operation")
            return True

    def newest_image(self, project: str, family: str) -> str:
        """Return the name of the newest image of a family."""
        with translated(f"image family {family}", call_error):
            image = self._images.get_from_family(
                project=project, family=family, retry=None, timeout=_REQUEST_SECONDS
            )
            return str(_known(image, "compute#image").name)

    def price_history(self, machine_type: str) -> Sequence[Any]:
        """Return what a type has cost on spot."""
        question = spot_price_question(self._entry.project, self._entry.region, machine_type)
        with translated(f"price of {machine_type}", call_error):
            told = self._advice.capacity_history(
                request=question, retry=None, timeout=_REQUEST_SECONDS
            )
            history: Sequence[Any] = told.price_history
            return history

    def close(self) -> None:
        """Give the connections back."""
        for client in self._opened:
            client.transport.close()

    # Clients are made at the first call, because they look for credentials when they are made: a
    # controller without them starts and rents in its other clouds.

    @cached_property
    def _instances(self) -> Any:
        return self._open(compute_v1.InstancesClient)

    @cached_property
    def _operations(self) -> Any:
        return self._open(compute_v1.ZoneOperationsClient)

    @cached_property
    def _zones(self) -> Any:
        return self._open(compute_v1.ZonesClient)

    @cached_property
    def _images(self) -> Any:
        return self._open(compute_v1.ImagesClient)

    @cached_property
    def _advice(self) -> Any:
        return self._open(compute_v1.AdviceClient)

    def _open(self, client: Callable[..., Any]) -> Any:
        with finding_credentials(self._name):
            opened = client(**_client_options(self._entry))
        self._opened.append(opened)
        return opened


@contextmanager
def finding_credentials(what: str) -> Iterator[None]:
    """Say how to log in where Google's libraries find no credentials."""
    try:
        yield
    except auth_exceptions.DefaultCredentialsError as error:
        raise CredentialsRefused(
            f"{what}: no credentials of Google are found on this computer: log in with 'gcloud "
            "auth application-default login', or run the controller under a service account"
        ) from error


@contextmanager
def translated(what: str, translate: Translate) -> Iterator[None]:
    """Turn the SDK's exceptions into the controller's."""
    try:
        yield
    except exceptions.GoogleAPICallError as error:
        told = [error.message]
        for detail in error.details:
            told += zones_with_room(detail.get("metadatas") or detail.get("metadata") or {})
        codes = [reported["reason"] for reported in error.errors if "reason" in reported]
        raise translate(codes, error.code, f"{what}: {'; '.join(told)}") from error
    except (auth_exceptions.TransportError, requests.RequestException) as error:
        raise ProviderUnavailable(f"{what}: no answer: {error!r}") from error
    except json_format.ParseError as error:
        raise ProviderUnavailable(f"{what}: the answer is not understood: {error}") from error
    except auth_exceptions.GoogleAuthError as error:
        if error.retryable:
            raise ProviderUnavailable(f"{what}: {error}") from error
        raise translate([], 401, f"{what}: {error}") from error


def _known(answer: Any, kind: str) -> Any:
    """Return an answer that Google wrote: the SDK reads any other JSON as one without members."""
    if answer.kind != kind:
        raise ProviderUnavailable(f"the answer did not come from Google: it is no {kind}")
    return answer


def _client_options(entry: GoogleEntry) -> dict[str, Any]:
    """Return how clients reach Google, or a test's double of it on this computer."""
    if entry.endpoint is None:
        return {}
    endpoint = ClientOptions(api_endpoint=str(entry.endpoint).rstrip("/"))
    credentials = {"credentials": AnonymousCredentials()} if entry.is_local else {}
    return {"client_options": endpoint, **credentials}
