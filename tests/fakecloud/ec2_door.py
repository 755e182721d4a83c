"""EC2's door to the fake cloud: boto3 on one side, the cloud's semantics on the other."""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from pydantic_core import from_json, to_json

from tests.fakecloud.aws_catalogue import AwsCatalogue
from tests.fakecloud.aws_policy import AwsPolicy, Need, needs_of
from tests.fakecloud.aws_region import AwsRegion
from tests.fakecloud.aws_wire import Asked, Parameters, decoded, read, refuse, write
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.http_server import Answer, HttpRequest
from tests.fakecloud.machine import Description, Reason, Request, State, exports_of
from tests.fakecloud.refusal import Gibberish, Refusal
from tests.fakecloud.server import HTML

STATES = {
    State.PENDING: (0, "pending"),
    State.RUNNING: (16, "running"),
    State.ENDING: (32, "shutting-down"),
    State.GONE: (48, "terminated"),
    State.STOPPED: (80, "stopped"),
}
STATE_REASONS = {
    Reason.ORDERED: "Client.UserInitiatedShutdown",
    Reason.PREPAID: "Client.InstanceInitiatedShutdown",
    Reason.POWERED_OFF: "Client.InstanceInitiatedShutdown",
    Reason.INTERRUPTED: "Server.SpotInstanceTermination",
    Reason.SOLD_OUT: "Server.InsufficientInstanceCapacity",
    Reason.FAILED: "Server.InternalError",
}
_STOPPING = {"Code": 64, "Name": "stopping"}
PARAMETERS, USER_DATA = "parameters", "user-data"
OWN_POWER_OFF = frozenset({Reason.POWERED_OFF, Reason.PREPAID})
TAGGED = {"instance", "volume", "network-interface", "spot-instances-request"}


class AwsDoor:
    """Answers EC2, and the few calls of STS and SSM that come with it.

    Attributes:
        asked: Every call that could be read, in order.
        policy: What the caller may do; None for all.
        granted: What the policy was asked for and granted, in order.
        denied: Actions for which the caller has no right, policy or not.
        state_reasons: What is said of a machine that ended, by who ended it.
        intruder: What a program between the caller and AWS answers instead, while there is one.
    """

    def __init__(self, cloud: FakeCloud, region: AwsRegion | None = None) -> None:
        # EC2 keeps a token per zone; the cloud behind this door must do so, too.
        assert cloud.settings.has_zonal_tokens
        self.cloud, self.region = cloud, region or AwsRegion()
        self.asked: list[Asked] = []
        self.policy: AwsPolicy | None = None
        self.granted: list[Need] = []
        self.denied: set[str] = set()
        self.state_reasons = dict(STATE_REASONS)
        self.intruder: Answer | None = None
        self._refusals: defaultdict[str, deque[str]] = defaultdict(deque)
        self._turn = threading.Lock()
        self._actions: Mapping[str, Callable[[Any], Parameters]] = {
            "RunInstances": self._run,
            "DescribeInstances": self._describe,
            "TerminateInstances": self._terminate,
            **AwsCatalogue(cloud, self.region).actions,
        }

    def answer(self, request: HttpRequest) -> Answer:
        """Return the answer to one request; may raise ConnectionLost."""
        service = "ec2"
        try:
            asked = read(request)
            service = asked.service
            with self._turn:
                self.asked.append(asked)
            if self.intruder is not None:
                return self.intruder
            self._admit(asked)
            if asked.action not in self._actions:
                raise Refusal("InvalidAction", f"this door does not have {asked.action}")
            return write(asked, self._actions[asked.action](asked.parameters))
        except Gibberish:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "text/html", HTML
        except Refusal as refusal:
            return refuse(service, refusal)

    def refuse_next(self, action: str, code: str, times: int = 1) -> None:
        """Let the next calls of an action fail with a code, before the cloud hears of them."""
        with self._turn:
            self._refusals[action] += [code] * times

    def calls(self) -> Mapping[str, int]:
        """Return how many calls came, by action."""
        with self._turn:
            return Counter(one.action for one in self.asked)

    def launches(self) -> Sequence[Parameters]:
        """Return the parameters of each call of RunInstances."""
        with self._turn:
            return [one.parameters for one in self.asked if one.action == "RunInstances"]

    def _admit(self, asked: Asked) -> None:
        with self._turn:
            refusals = self._refusals[asked.action]
            code = refusals.popleft() if refusals else None
        if asked.action in self.denied:
            code = "UnauthorizedOperation"
        if code is not None:
            raise Refusal(code, f"{asked.action}: as programmed")
        self._authorize(asked)
        if asked.parameters.get("DryRun"):
            if asked.action == "RunInstances":
                self._request(asked.parameters)
            raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun is set.")

    def _authorize(self, asked: Asked) -> None:
        """Refuse what the caller's policy does not grant, in AWS's words."""
        if self.policy is None:
            return
        caller = f"arn:aws:sts::{self.region.account}:assumed-role/controller/i-1"
        labels = {one.description.id: one.description.labels for one in self.cloud.machines()}
        for need in needs_of(asked, self.region, labels):
            if self.policy.allows(need):
                self.granted.append(need)
                continue
            told = f"User: {caller} is not authorized to perform: {need.action}"
            told += f" on resource: {need.resource} because no identity-based policy allows it"
            is_json = asked.service in ("ssm", "pricing")
            raise Refusal("AccessDeniedException" if is_json else "UnauthorizedOperation", told)

    def _run(self, told: Parameters) -> Parameters:
        request = self._request(told)
        made = self.cloud.launch(told["ClientToken"], request)
        if len(made) < told["MinCount"]:
            raise Refusal("InsufficientInstanceCapacity", "fewer than MinCount are left")
        return self._reservation(*made)

    def _request(self, told: Parameters) -> Request:
        """Return what the cloud is asked for, once the parameters make sense."""
        nic = _interface(told)
        self._require_known(told, nic)
        _require_tags(told)
        token = told.get("ClientToken", "")
        if not (token.isascii() and len(token) <= 64):
            raise Refusal("InvalidParameterValue", "ClientToken has more than 64 ASCII characters")
        zone, machine_type = self.region.subnets[nic["SubnetId"]], told["InstanceType"]
        if not self.region.is_sold(machine_type, zone):
            raise Refusal("Unsupported", f"{machine_type} is not supported in {zone}")
        market = told.get("InstanceMarketOptions", {})
        is_spot = market.get("MarketType") == "spot"
        shutdown = told.get("InstanceInitiatedShutdownBehavior")
        if is_spot and shutdown == "stop":
            raise Refusal("InvalidParameterCombination", "stop is not supported for spot instances")
        stops = set(OWN_POWER_OFF) if not is_spot and shutdown in (None, "stop") else set()
        behavior = market.get("SpotOptions", {}).get("InstanceInterruptionBehavior", "terminate")
        if behavior != "terminate":
            stops.add(Reason.INTERRUPTED)
        user_data = decoded(told.get("UserData", "")).decode()
        others = {name: one for name, one in told.items() if name not in ("ClientToken", "DryRun")}
        return Request(
            machine_type=machine_type,
            zone=zone,
            environment={
                **exports_of(user_data),
                PARAMETERS: to_json(others).decode(),
                USER_DATA: user_data,
            },
            labels=_tags(told, "instance"),
            count=told["MaxCount"],
            market="spot" if is_spot else "on_demand",
            has_public_address=nic.get("AssociatePublicIpAddress", False),
            stopped_by=frozenset(stops),
        )

    def _require_known(self, told: Parameters, nic: Parameters) -> None:
        """Refuse what names something that the region does not have."""
        region, profile = self.region, told.get("IamInstanceProfile", {}).get("Name")
        flaws = {
            "InvalidAMIID.NotFound": told.get("ImageId") not in region.images,
            "InvalidSubnetID.NotFound": nic.get("SubnetId") not in region.subnets,
            "InvalidGroup.NotFound": not region.groups.issuperset(nic.get("Groups", ())),
            "InvalidParameterValue": profile is not None and profile not in region.profiles,
        }
        for code, is_flaw in flaws.items():
            if is_flaw:
                raise Refusal(code, f"one of {told.get('ImageId')}, {nic}, {profile} is unknown")

    def _describe(self, told: Parameters) -> Parameters:
        ids, limit = told.get("InstanceIds"), told.get("MaxResults", 1000)
        if "MaxResults" in told and (ids or not 5 <= limit <= 1000):
            raise Refusal("InvalidParameterCombination", "MaxResults goes from 5 to 1000, no ids")
        filters = {one["Name"]: one["Values"] for one in told.get("Filters", ())}
        exact = {
            name.removeprefix("tag:"): values[0]
            for name, values in filters.items()
            if name.startswith("tag:") and len(values) == 1 and "*" not in values[0]
        }
        page = self.cloud.list(int(told.get("NextToken", 0)), exact)
        shown, after = page.machines[:limit], page.after
        if len(shown) < len(page.machines):
            after = int(shown[-1].id[2:], 16)
        for one in ids or ():
            _require_form(one)
            if one not in {machine.id for machine in shown}:
                raise Refusal("InvalidInstanceID.NotFound", f"The ID '{one}' does not exist")
        found = [one for one in shown if _fits(one, filters) and (not ids or one.id in ids)]
        return {
            "Reservations": [self._reservation(machine) for machine in found],
            "NextToken": None if after is None else str(after),
        }

    def _terminate(self, told: Parameters) -> Parameters:
        for one in told["InstanceIds"]:
            _require_form(one)
        if len(told["InstanceIds"]) > 1:  # one that is wrong fails the call for all
            for one in told["InstanceIds"]:
                self.cloud.describe(one)
        for one in told["InstanceIds"]:
            self.cloud.terminate(one)
        ending, running = _state(State.ENDING), _state(State.RUNNING)
        return {
            "TerminatingInstances": [
                {"InstanceId": one, "CurrentState": ending, "PreviousState": running}
                for one in told["InstanceIds"]
            ]
        }

    def _reservation(self, *machines: Description) -> Parameters:
        return {
            "ReservationId": f"r-{machines[0].id[2:]}",
            "OwnerId": self.region.account,
            "Instances": [self._show(machine) for machine in machines],
        }

    def _show(self, machine: Description) -> Parameters:
        """Return a machine as EC2 describes it."""
        truth = self.cloud.find(machine.id)
        told = _parsed(truth.request.environment[PARAMETERS])
        nic, is_gone = _interface(told), machine.state is State.GONE
        is_stopping = machine.state is State.ENDING and machine.reason in truth.request.stopped_by
        shown: dict[str, Any] = {
            "InstanceId": machine.id,
            "ImageId": told["ImageId"],
            "ClientToken": machine.token,
            "InstanceType": machine.machine_type,
            "State": _STOPPING if is_stopping else _state(machine.state),
            "Placement": {"AvailabilityZone": machine.zone, "Tenancy": "default"},
            "LaunchTime": self.region.epoch + timedelta(seconds=truth.created_at),
            "Tags": [{"Key": key, "Value": value} for key, value in machine.labels.items()],
            "InstanceLifecycle": "spot" if truth.request.market == "spot" else None,
            "PrivateIpAddress": None if is_gone else machine.address,
            "SubnetId": None if is_gone else nic["SubnetId"],
            "RootDeviceName": self.region.images[told["ImageId"]],
        }
        if machine.reason is not None:
            why = self.state_reasons[machine.reason]
            shown["StateReason"] = {"Code": why, "Message": f"{why}: as the fake cloud says"}
        return shown


def _interface(told: Parameters) -> Parameters:
    """Return the one network interface of a launch."""
    nics = told.get("NetworkInterfaces", [{"SubnetId": told.get("SubnetId"), "DeviceIndex": 0}])
    if len(nics) != 1 or ("NetworkInterfaces" in told and "SubnetId" in told):
        raise Refusal("InvalidParameterCombination", "one interface or one subnet is wanted")
    return dict(nics[0])


def _tags(told: Parameters, kind: str) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for one in told.get("TagSpecifications", ())
        for tag in one["Tags"]
        if one["ResourceType"] == kind
    }


def _require_tags(told: Parameters) -> None:
    for one in told.get("TagSpecifications", ()):
        keys = [tag["Key"] for tag in one["Tags"]]
        if one["ResourceType"] not in TAGGED:
            raise Refusal("InvalidParameterValue", f"{one['ResourceType']} cannot be tagged here")
        if len(keys) > 50 or len(set(keys)) < len(keys):
            raise Refusal("TagLimitExceeded", "at most 50 tags, each key once")
        long = any(len(tag["Key"]) > 128 or len(tag["Value"]) > 256 for tag in one["Tags"])
        if long or any(key.startswith("aws:") for key in keys):
            raise Refusal("InvalidParameterValue", f"tags {keys} are too long or reserved")


def _fits(machine: Description, filters: Mapping[str, Sequence[str]]) -> bool:
    """Whether a machine passes all filters; the values of a filter may hold wildcards."""
    for name, values in filters.items():
        match name.split(":", 1):
            case ["tag", key]:
                have = [machine.labels[key]] if key in machine.labels else []
            case ["tag-key"]:
                have = list(machine.labels)
            case ["client-token"]:
                have = [machine.token]
            case ["instance-id"]:
                have = [machine.id]
            case ["instance-state-name"]:
                have = [STATES[machine.state][1]]
            case _:
                raise Refusal("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not any(fnmatchcase(one, value) for one in have for value in values):
            return False
    return True


def _state(state: State) -> Parameters:
    code, name = STATES[state]
    return {"Code": code, "Name": name}


def _require_form(machine: str) -> None:
    if not re.fullmatch(r"i-([0-9a-f]{8}|[0-9a-f]{17})", machine):
        raise Refusal("InvalidInstanceID.Malformed", f"Invalid id: {machine!r}")


@lru_cache(maxsize=4096)
def _parsed(parameters: str) -> Any:
    return from_json(parameters)
