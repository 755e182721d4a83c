"""Compute Engine's REST as a door to a fake cloud: what google-cloud-compute talks to unchanged.

Inserts and deletes answer with an operation that ends later; a stockout is told by the operation
only. The cloud must have zonal tokens that are free again and no memory of what is gone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import from_json, to_json

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Refused
from tests.fakecloud.google_policy import GoogleGrant, GoogleNeed, google_need, google_needs
from tests.fakecloud.google_rules import (
    CUSTOM_TYPE,
    IN_GOOGLES_WORDS,
    STATUS_OF_OPERATION_ERROR,
    GoogleRefusal,
    invalid,
    missing,
    request_of,
    tell,
)
from tests.fakecloud.http_server import Answer, HttpRequest
from tests.fakecloud.machine import Description, State
from tests.fakecloud.refusal import Gibberish, Refusal

Json = dict[str, Any]
GOOGLE = "https://www.googleapis.com/compute/v1/"
LONGEST_PAGE = 500
FIRST_NUMBER = 4_000_000_000_000_000_000
REQUEST_ID = re.compile(r"(?!0{8}-)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OPERATION_ERROR = re.compile(r"[A-Z][A-Z_]+")
FILTER = re.compile(r"\(?(labels\.[\w-]+|id|name)\s*(=|:)\s*\"?([\w-]+|\*)\"?\)?")
GOOGLE_STATUSES = {
    State.PENDING: "STAGING",
    State.RUNNING: "RUNNING",
    State.ENDING: "STOPPING",
    State.STOPPED: "TERMINATED",
}


@dataclass(frozen=True, slots=True)
class GoogleManners:
    """One project as Google serves it.

    Attributes:
        zones: All zones of its region.
        machine_types: Predefined ones; custom ones follow from their names.
        images: Image by the path that names it or its family.
        operation_seconds: From an insert or a delete to the end of its operation.
        request_memory: Seconds for which a request id is remembered.
        better_zones: Where a stockout says there is room.
    """

    project: str = "project-1"
    region: str = "europe-west3"
    zones: tuple[str, ...] = ("europe-west3-a", "europe-west3-b", "europe-west3-c")
    machine_types: tuple[str, ...] = ("e2-medium", "g2-standard-4", "c4-standard-2")
    images: Mapping[str, str] = field(
        default_factory=lambda: {
            "projects/images-1/global/images/worker-7": "worker-7",
            "projects/images-1/global/images/family/worker": "worker-7",
        }
    )
    operation_seconds: float = 2.0
    request_memory: float = 600.0
    better_zones: str = ""


class GoogleCall(NamedTuple):
    """One request, as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Json


@dataclass(frozen=True, slots=True)
class GoogleOperation:
    """What an insert or a delete answers.

    Attributes:
        ends_at: When it is done, with its error if it has one.
    """

    name: str
    kind: str
    zone: str
    target: str
    target_id: str
    ends_at: float
    error: str | None


@dataclass(eq=False)
class GoogleDoor:
    """Answers for one project; ``HttpServer(door.answer)`` serves it.

    Attributes:
        calls: What was asked, in the order it came.
        grant: What the caller may do; None for all.
        granted: What the grant was asked for and gave, in order.
        denied: Permissions that the caller lacks, grant or not.
        list_warning: Code of a warning that lists of a zone carry.
    """

    cloud: FakeCloud
    manners: GoogleManners = field(default_factory=GoogleManners)
    calls: list[GoogleCall] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    grant: GoogleGrant | None = None
    granted: list[GoogleNeed] = field(default_factory=list)
    list_warning: str = ""
    _operations: dict[str, GoogleOperation] = field(default_factory=dict)
    _requests: dict[str, tuple[float, GoogleOperation]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        project, zone = r"/compute/v1/projects/(?P<project>[^/]+)", r"/zones/(?P<zone>[^/]+)"
        name = r"/(?P<name>[^/]+)"
        self._routes: tuple[tuple[str, str, str, Callable[..., Json]], ...] = (
            ("POST", f"{project}{zone}/instances", "instances.create", self._insert),
            ("GET", f"{project}{zone}/instances", "instances.list", self._list),
            ("GET", f"{project}/aggregated/instances", "instances.list", self._list_all),
            ("GET", f"{project}{zone}/instances{name}", "instances.get", self._get),
            ("DELETE", f"{project}{zone}/instances{name}", "instances.delete", self._delete),
            ("GET", f"{project}{zone}/operations{name}", "zoneOperations.get", self._poll),
            (
                "POST",
                f"{project}/regions/(?P<region>[^/]+)/advice/capacityHistory",
                "advice.capacityHistory",
                self._price_history,
            ),
            ("GET", f"{project}/zones", "zones.list", self._zones),
            ("GET", f"{project}{zone}/machineTypes", "machineTypes.list", self._machine_types),
            ("GET", f"{project}{zone}/machineTypes{name}", "machineTypes.get", self._machine_type),
            ("GET", f"{project}/global/images/family{name}", "images.getFromFamily", self._family),
            ("POST", rf"{project}/.+/testIamPermissions", "", self._permissions),
            ("POST", r"/v1/projects/(?P<project>[^/:]+):testIamPermissions", "", self._permissions),
            (
                "POST",
                r"/v1/projects/(?P<project>-)/serviceAccounts/[^/:]+:testIamPermissions",
                "",
                self._permissions,
            ),
        )

    def memory(self) -> object:
        """Return the operations and request ids that it knows."""
        return self._operations, self._requests

    def answer(self, asked: HttpRequest) -> Answer:
        """Return what one request gets; may raise ConnectionLost."""
        target = urlsplit(asked.target)
        body = from_json(asked.body) if asked.body else {}
        call = GoogleCall(asked.method, target.path, dict(parse_qsl(target.query)), body)
        self.calls.append(call)
        try:
            return 200, "application/json", to_json(self._route(call))
        except Gibberish:
            return 502, "text/html; charset=UTF-8", b"<!DOCTYPE html><title>Error 502</title>"
        except Refusal as refusal:
            return tell(refusal)

    def _route(self, call: GoogleCall) -> Json:
        for method, pattern, permission, do in self._routes:
            found = re.fullmatch(pattern, call.path)
            if method != call.method or found is None:
                continue
            names = found.groupdict()
            self._authorize(call, f"compute.{permission}" if permission else "")
            known = {self.manners.project, "-", *self._image_projects()}
            if names.pop("project") not in known:
                raise missing(call.path)
            if names.get("zone") not in (None, *self.manners.zones):
                raise invalid("zone", names["zone"])
            return do(call, **names)
        raise missing(call.path)

    def _authorize(self, call: GoogleCall, permission: str) -> None:
        """Refuse what the caller has no right to, in Google's words."""
        path = call.path.removeprefix("/compute/v1/")
        for need in google_needs(permission, path, call.body):
            if not self._is_granted(need):
                message = f"Required '{need.permission}' permission for '{need.resource}'"
                raise GoogleRefusal(403, "forbidden", message)
            self.granted.append(need)

    def _is_granted(self, need: GoogleNeed) -> bool:
        if need.permission in self.denied:
            return False
        return self.grant is None or self.grant.allows(need)

    def _image_projects(self) -> set[str]:
        return {path.split("/")[1] for path in self.manners.images}

    def _insert(self, call: GoogleCall, zone: str) -> Json:
        name = str(call.body.get("name"))

        def insert(now: float) -> GoogleOperation:
            request = request_of(zone, call.body, self.manners.images)
            if self.cloud.machine_at(now, name, zone) is not None:
                message = f"The resource '{self._path(zone, name)}' already exists"
                raise GoogleRefusal(409, "alreadyExists", message)
            if request.machine_type not in self.cloud.settings.tariffs:
                raise invalid("machineType", call.body["machineType"])
            try:
                (machine,) = self.cloud.launch_at(now, name, request)
            except Refusal as refusal:
                error = IN_GOOGLES_WORDS.get(refusal.code, refusal.code)
                if not OPERATION_ERROR.fullmatch(error):
                    raise
                return self._begin(now, "insert", zone, name, "0", error)
            number = _number_of(machine)
            self._names[number] = name
            return self._begin(now, "insert", zone, name, number)

        def once(now: float) -> Json:
            return self._once(now, zone, call.query.get("requestId"), insert)

        return self.cloud.call("launch", name, once)

    def _delete(self, call: GoogleCall, zone: str, name: str) -> Json:
        def delete(now: float) -> GoogleOperation:
            machine = self._find(now, zone, name)
            self.cloud.terminate_at(now, machine.id)
            return self._begin(now, "delete", zone, machine.token, _number_of(machine))

        def once(now: float) -> Json:
            return self._once(now, zone, call.query.get("requestId"), delete)

        return self.cloud.call("terminate", name, once)

    def _once(
        self,
        now: float,
        zone: str,
        request_id: str | None,
        do: Callable[[float], GoogleOperation],
    ) -> Json:
        """Do it, or show the operation that this request id began."""
        self.cloud.require_up(zone)
        if request_id is not None and not REQUEST_ID.fullmatch(request_id):
            raise GoogleRefusal(400, "invalid", f"Invalid value for requestId: '{request_id}'")
        began, operation = self._requests.get(request_id or "", (-math.inf, None))
        if operation is None or now - began >= self.manners.request_memory:
            operation = do(now)
            if request_id is not None:
                self._requests[request_id] = (now, operation)
        return self._show_operation(now, operation)

    def _get(self, call: GoogleCall, zone: str, name: str) -> Json:
        def get(now: float) -> Json:
            self.cloud.require_up(zone)
            machine = self._find(now, zone, name)
            self.cloud.describe_at(now, machine.id)
            return self._show(machine)

        return self.cloud.call("describe", name, get)

    def _find(self, now: float, zone: str, name: str) -> Description:
        """Return the machine of a name or number, without the lag that lists have."""
        machine = self.cloud.machine_at(now, self._names.get(name, name), zone)
        if machine is None or (name.isdecimal() and _number_of(machine.describe(now)) != name):
            raise missing(self._path(zone, name))
        return machine.describe(now)

    def _list(self, call: GoogleCall, zone: str) -> Json:
        most = int(call.query.get("maxResults", LONGEST_PAGE))
        if not 0 <= most <= LONGEST_PAGE:
            raise GoogleRefusal(400, "invalid", f"Invalid value for maxResults: '{most}'")
        after = int(call.query.get("pageToken", 0))

        def page(now: float) -> list[Description]:
            return [
                machine
                for machine in self._in_zone(now, zone)
                if _suits(self._show(machine), call.query.get("filter", ""))
            ]

        shown = self.cloud.call("list", None, page)
        answer: Json = {"kind": "compute#instanceList", "id": self._path(zone, "")}
        answer["items"] = [self._show(machine) for machine in shown[after : after + most]]
        if self.list_warning:
            answer["warning"] = {"code": self.list_warning, "message": "as told"}
        if len(shown) > after + most:
            answer["nextPageToken"] = str(after + most)
        return answer

    def _in_zone(self, now: float, zone: str) -> list[Description]:
        number: int | None = 0
        found: list[Description] = []
        while number is not None:
            page = self.cloud.list_at(now, number, {}, zone)
            found += page.machines
            number = page.after
        return [machine for machine in found if machine.state is not State.GONE]

    def _list_all(self, call: GoogleCall) -> Json:
        """List all zones; one that is down is missing, and no parameter makes that an error."""

        def scopes(now: float) -> Json:
            shown: Json = {}
            for zone in self.manners.zones:
                try:
                    machines = [self._show(machine) for machine in self._in_zone(now, zone)]
                except Refusal:
                    continue
                machines = [one for one in machines if _suits(one, call.query.get("filter", ""))]
                shown[f"zones/{zone}"] = {"instances": machines}
            return shown

        items = self.cloud.call("list", None, scopes)
        return {"kind": "compute#instanceAggregatedList", "items": items}

    def _poll(self, call: GoogleCall, zone: str, name: str) -> Json:
        def poll(now: float) -> Json:
            self.cloud.require_up(zone)
            if name not in self._operations:
                raise missing(call.path)
            return self._show_operation(now, self._operations[name])

        return self._describe(name, poll)

    def _zones(self, call: GoogleCall) -> Json:
        region = f"{GOOGLE}projects/{self.manners.project}/regions/{self.manners.region}"
        items = [{"name": zone, "region": region, "status": "UP"} for zone in self.manners.zones]
        return self._describe("zones", lambda _: {"kind": "compute#zoneList", "items": items})

    def _price_history(self, call: GoogleCall, region: str) -> Json:
        """Return the price on spot of two periods, the newer first."""
        properties = call.body["instanceProperties"]
        name, tariffs = properties["machineType"], self.cloud.settings.tariffs
        if properties["scheduling"]["provisioningModel"] != "SPOT" or name not in tariffs:
            raise invalid("instanceProperties", name)

        def show(now: float) -> Json:
            spot = self.cloud.settings.spot
            shown = [
                {
                    "interval": {"startTime": f"2026-01-0{2 - age}T00:00:00Z"},
                    "listPrice": money_of(
                        tariffs[name].price_per_hour
                        * float(spot.share(f"{name}@{region}+spot", now - age * spot.period))
                    ),
                }
                for age in (0, 1)
            ]
            return {"machineType": name, "location": region, "priceHistory": shown}

        return self._describe(name, show)

    def _machine_types(self, call: GoogleCall, zone: str) -> Json:
        shown = [_show_type(zone, name) for name in self.manners.machine_types]
        return self._describe("machineTypes", lambda _: {"items": shown})

    def _machine_type(self, call: GoogleCall, zone: str, name: str) -> Json:
        if name not in self.manners.machine_types and not CUSTOM_TYPE.fullmatch(name):
            raise missing(call.path)
        return self._describe(name, lambda _: _show_type(zone, name))

    def _family(self, call: GoogleCall, name: str) -> Json:
        path = call.path.removeprefix("/compute/v1/")

        def resolve(_: float) -> Json:
            if path not in self.manners.images:
                raise missing(path)
            image = self.manners.images[path]
            link = f"{GOOGLE}{path.removesuffix(f'family/{name}')}{image}"
            shown = {"name": image, "family": name, "selfLink": link, "status": "READY"}
            return {"kind": "compute#image", **shown}

        return self._describe(name, resolve)

    def _permissions(self, call: GoogleCall) -> Json:
        """Return which permissions the caller has on a resource; asking needs none."""
        path = re.sub(r"^/(compute/)?v1/|[/:]testIamPermissions$", "", call.path)
        needs = [google_need(one, path) for one in call.body["permissions"]]
        return {"permissions": [one.permission for one in needs if self._is_granted(one)]}

    def _describe(self, about: str, do: Callable[[float], Json]) -> Json:
        """Answer what concerns no machine, unless it is programmed to be refused."""

        def tell_all(now: float) -> Json:
            fault = self.cloud.faults.in_the_cloud("describe", about)
            if isinstance(fault, Refused):
                raise Refusal(fault.code, "as programmed")
            return do(now)

        return self.cloud.call("describe", about, tell_all)

    def _begin(
        self, now: float, kind: str, zone: str, name: str, number: str, error: str | None = None
    ) -> GoogleOperation:
        ends_at = now + self.manners.operation_seconds
        count = len(self._operations)
        operation = GoogleOperation(f"operation-{count}", kind, zone, name, number, ends_at, error)
        self._operations[operation.name] = operation
        return operation

    def _show_operation(self, now: float, operation: GoogleOperation) -> Json:
        is_done = now >= operation.ends_at
        shown: Json = {
            "kind": "compute#operation",
            "name": operation.name,
            "zone": f"{GOOGLE}projects/{self.manners.project}/zones/{operation.zone}",
            "operationType": operation.kind,
            "targetLink": GOOGLE + self._path(operation.zone, operation.target),
            "targetId": operation.target_id,
            "status": "DONE" if is_done else "RUNNING",
            "progress": 100 if is_done else 0,
        }
        if is_done and operation.error is not None:
            status = STATUS_OF_OPERATION_ERROR.get(operation.error, 503)
            shown["error"] = {"errors": [self._show_error(operation.zone, operation.error)]}
            shown |= {"httpErrorStatusCode": status, "httpErrorMessage": "as its errors say"}
        return shown

    def _show_error(self, zone: str, code: str) -> Json:
        shown: Json = {"code": code, "message": f"{zone}: {code.replace('_', ' ').lower()}"}
        if code.endswith("WITH_DETAILS"):
            metadatas = {"zone": zone, "zonesAvailable": self.manners.better_zones}
            told = {"reason": "stockout", "domain": "compute.googleapis.com"}
            shown["errorDetails"] = [{"errorInfo": {**told, "metadatas": metadatas}}]
        return shown

    def _show(self, machine: Description) -> Json:
        path = self._path(machine.zone, machine.token)
        zone = f"{GOOGLE}projects/{self.manners.project}/zones/{machine.zone}"
        return {
            "kind": "compute#instance",
            "id": _number_of(machine),
            "name": machine.token,
            "selfLink": GOOGLE + path,
            "zone": zone,
            "machineType": f"{zone}/machineTypes/{machine.machine_type}",
            "status": GOOGLE_STATUSES[machine.state],
            "labels": dict(machine.labels),
            "networkInterfaces": [{"name": "nic0", "networkIP": machine.address}],
        }

    def _path(self, zone: str, name: str) -> str:
        return f"projects/{self.manners.project}/zones/{zone}/instances/{name}"


def money_of(dollars: float) -> Json:
    """Return dollars in Google's words: whole units as a text, and nanos."""
    nanos = round(dollars * 10**9)
    return {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}


def _suits(shown: Json, condition: str) -> bool:
    """Whether a machine suits a filter: conditions on labels, id and name, all of which hold."""
    conditions = [one for one in re.split(r"\s+AND\s+", condition) if one]
    for one in conditions:
        match = FILTER.fullmatch(one.strip())
        if match is None:
            raise GoogleRefusal(400, "invalid", f"Invalid value for field 'filter': '{one}'.")
        field_name, _, value = match.groups()
        label = field_name.removeprefix("labels.")
        held = shown["labels"].get(label) if label != field_name else shown[field_name]
        if held is None or value not in ("*", held):
            return False
    return True


def _show_type(zone: str, name: str) -> Json:
    custom = CUSTOM_TYPE.fullmatch(name)
    processors, memory = (int(custom[2]), int(custom[3])) if custom else (4, 16384)
    return {"name": name, "zone": zone, "guestCpus": processors, "memoryMb": memory}


def _number_of(machine: Description) -> str:
    return str(FIRST_NUMBER + int(machine.id.removeprefix("i-"), 16))
