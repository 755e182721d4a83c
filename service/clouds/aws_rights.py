"""Which rights AWS grants, asked by dry runs; where a service has none, by a call that only reads.

It imports no SDK.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from service.clouds.aws_entry import AwsEntry
from service.clouds.aws_errors import UNAUTHORIZED
from service.clouds.aws_prices import product_filters
from service.clouds.provider import Instance, InstanceState
from service.clouds.rights import Right
from service.errors import ProviderUnavailable
from service.offers import Market

# What a dry run answers, and what services without dry runs answer to a call that is denied.
DRY_RUN_VERDICTS = {"DryRunOperation", UNAUTHORIZED, "AccessDenied", "AccessDeniedException"}
_ALLOWED = {"", "DryRunOperation"}
_DENIAL = re.compile(r"User: (\S+) is not authorized to perform: (\S+)(?: on resource: (\S+))?")
_POLICY = "deploy/aws/scavenger.yaml grants it"
_PRICES_HOLD = "without it, prices that are shipped or imported hold"
_COMMON_TYPE = "t3.micro"
_LOOKS = (
    ("describe_subnets", "ec2:DescribeSubnets", "checks that each subnet is in its zone"),
    ("describe_images", "ec2:DescribeImages", "finds the name of the image's disk"),
    ("describe_instances", "ec2:DescribeInstances", "lists machines"),
    (
        "describe_spot_price_history",
        "ec2:DescribeSpotPriceHistory",
        f"sees what spot machines cost; {_PRICES_HOLD}",
    ),
)
_ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPED)


@dataclass(frozen=True, slots=True)
class AwsVerdict:
    """What AWS answers to a question about a right.

    Attributes:
        code: One of ``DRY_RUN_VERDICTS``; empty for a call that succeeded.
        message: AWS's sentence.
    """

    code: str = ""
    message: str = ""

    def right(self, name: str, purpose: str) -> Right:
        """Return the right that was asked about; AWS may say that another one is missing."""
        if self.code in _ALLOWED:
            return Right(name, purpose, is_granted=True)
        told = _DENIAL.search(self.message)
        if told is None:
            return Right(name, purpose, is_granted=False, remedy=f"allow it: {_POLICY}")
        user, action, resource = told.groups()
        where = f" on {resource}" if resource else ""
        remedy = f"allow {action}{where} to {user}: {_POLICY}"
        return Right(action, purpose, is_granted=False, remedy=remedy)


class AskAws(Protocol):
    """Calls the SDK: a service, a method of its client, and parameters."""

    def __call__(self, service: str, call: str, **parameters: Any) -> AwsVerdict:
        """Return a verdict about the caller's rights.

        Raises:
            CloudError: Any other answer.
        """


def check_aws_rights(
    entry: AwsEntry,
    ask: AskAws,
    parameters_of: Callable[[str, str, Market], Mapping[str, Any]],
    machines_of: Callable[[], Collection[Instance]],
) -> Iterator[Right]:
    """Yield the rights that an entry of the clouds file needs.

    Args:
        entry: What is to be rented, and where.
        ask: Calls AWS.
        parameters_of: Returns the parameters of a launch of a type in a zone and market.
        machines_of: Returns the machines that a controller with this entry may end.
    """
    ask("sts", "get_caller_identity")  # who is not known at all learns that, and no list of rights
    granted = dict[str, bool | None]()
    for call, name, purpose in _LOOKS:
        right = ask("ec2", call, DryRun=True).right(name, purpose)
        granted[name] = right.is_granted
        yield right
    yield ask(
        "pricing",
        "get_products",
        ServiceCode="AmazonEC2",
        FormatVersion="aws_v1",
        Filters=product_filters(entry.region, entry.machine_type or _COMMON_TYPE),
        MaxResults=1,
    ).right("pricing:GetProducts", f"sees what machines cost on demand; {_PRICES_HOLD}")
    knows_image = granted["ec2:DescribeImages"]
    if entry.image.startswith("ssm:"):
        verdict = ask("ssm", "get_parameter", Name=entry.image.removeprefix("ssm:"))
        right = verdict.right("ssm:GetParameter", "finds the image that a parameter names")
        knows_image = knows_image and right.is_granted
        yield right
    if knows_image:
        yield from _check_launches(entry, ask, parameters_of)
    else:
        why = "its image cannot be found without the rights above: allow them and ask again"
        yield Right("ec2:RunInstances", "launches machines", is_granted=None, remedy=why)
    yield _check_end(ask, machines_of if granted["ec2:DescribeInstances"] else list)


def _check_launches(
    entry: AwsEntry, ask: AskAws, parameters_of: Callable[[str, str, Market], Mapping[str, Any]]
) -> Iterator[Right]:
    machine_type = entry.machine_type or _COMMON_TYPE
    first = next(iter(entry.subnets))
    places: list[tuple[str, Market]] = [(zone, "on_demand") for zone in entry.subnets]
    for zone, market in [*places, (first, "spot")]:
        kind = "on spot" if market == "spot" else "on demand"
        purpose = f"launches {machine_type} {kind} in {zone}"
        try:
            told = parameters_of(machine_type, zone, market)
            yield ask("ec2", "run_instances", **told, DryRun=True).right(
                "ec2:RunInstances", purpose
            )
        except ProviderUnavailable as error:
            remedy = f"AWS refuses the launch itself, so correct the entry: {error}"
            yield Right("ec2:RunInstances", purpose, is_granted=None, remedy=remedy)


def _check_end(ask: AskAws, machines_of: Callable[[], Collection[Instance]]) -> Right:
    """Ask about one machine that runs: AWS judges by its tag, and without one it cannot."""
    name, purpose = "ec2:TerminateInstances", "ends machines"
    alive = [one for one in machines_of() if one.state in _ALIVE]
    if not alive:
        why = "AWS judges by the tag of a machine, and none of ours is listed: ask during a job"
        return Right(name, purpose, is_granted=None, remedy=why)
    ids = [alive[0].provider_id]
    return ask("ec2", "terminate_instances", InstanceIds=ids, DryRun=True).right(name, purpose)
