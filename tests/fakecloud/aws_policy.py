"""IAM of AWS in small: what a policy allows, and what a call needs to be allowed.

Statements have exactly the elements and operators of our own policies; any other is an error,
since a test may not pass on a policy that was not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakecloud.aws_region import AwsRegion
from tests.fakecloud.aws_wire import Asked, Parameters

ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}


@dataclass(frozen=True, slots=True)
class Need:
    """One action on one resource that an identity must be allowed.

    Attributes:
        action: Such as ``ec2:RunInstances``.
        resource: Its ARN, or ``*``.
        context: What conditions are about, by key.
    """

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a policy; it allows, since our policies deny nothing."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    equals: Mapping[str, tuple[str, ...]]
    alike: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Statement:
        """Read a statement of a policy's document.

        Raises:
            ValueError: It says more than is understood here.
        """
        conditions = told.get("Condition", {})
        actions, resources = _listed(told["Action"]), _listed(told["Resource"])
        unknown = set(told) - ELEMENTS | set(conditions) - {"StringEquals", "StringLike"}
        if unknown or told["Effect"] != "Allow" or "*" in "".join(actions):
            raise ValueError(f"a statement that is not understood: {told}")
        if "${" in f"{resources}{conditions}":
            raise ValueError(f"policy variables are not understood: {told}")
        equals, alike = (
            {key: _listed(one) for key, one in conditions.get(operator, {}).items()}
            for operator in ("StringEquals", "StringLike")
        )
        return cls(told.get("Sid", ""), actions, resources, equals, alike)

    def allows(self, need: Need) -> bool:
        """Tell whether it allows an action; a key that the context lacks fails its condition."""
        context = need.context
        return (
            need.action in self.actions
            and any(_is_like(pattern, need.resource) for pattern in self.resources)
            and all(context.get(key) in values for key, values in self.equals.items())
            and all(
                key in context and any(_is_like(value, context[key]) for value in values)
                for key, values in self.alike.items()
            )
        )


@dataclass(frozen=True, slots=True)
class AwsPolicy:
    """All that an identity may do: what no statement allows is denied."""

    statements: tuple[Statement, ...]

    @classmethod
    def read(cls, *documents: Mapping[str, Any]) -> AwsPolicy:
        """Read the documents of the policies that an identity has."""
        assert all(document["Version"] == "2012-10-17" for document in documents)
        told = [one for document in documents for one in document["Statement"]]
        return cls(tuple(Statement.read(one) for one in told))

    def allows(self, need: Need) -> bool:
        """Tell whether a statement allows an action."""
        return any(statement.allows(need) for statement in self.statements)


def needs_of(
    asked: Asked, region: AwsRegion, tags_of: Mapping[str, Mapping[str, str]]
) -> Iterator[Need]:
    """Yield what a call must be allowed.

    Args:
        tags_of: Tags of each machine, by its id.
    """
    told, here = asked.parameters, {"aws:RequestedRegion": region.name}
    match asked.service, asked.action:
        case "sts", "GetCallerIdentity":
            return  # each identity may ask who it is
        case "ec2", "RunInstances":
            yield from _needs_of_launch(told, region, here)
        case "ec2", "TerminateInstances":
            for one in told["InstanceIds"]:
                tags = {f"aws:ResourceTag/{key}": tag for key, tag in tags_of.get(one, {}).items()}
                yield Need("ec2:TerminateInstances", arn(region, f"instance/{one}"), here | tags)
        case "ec2", "CreateTags":
            for one in told["Resources"]:
                yield Need("ec2:CreateTags", arn(region, f"instance/{one}"), here)
        case "ssm", "GetParameter":
            name = f"arn:aws:ssm:{region.name}::parameter{told['Name']}"
            yield Need("ssm:GetParameter", name, here)
        case service, action:
            yield Need(f"{service}:{action}", "*", here)


def _needs_of_launch(
    told: Parameters, region: AwsRegion, here: Mapping[str, str]
) -> Iterator[Need]:
    run, tagged = "ec2:RunInstances", _request_tags(told)
    for nic in told.get("NetworkInterfaces", [told]):
        yield Need(run, arn(region, f"subnet/{nic.get('SubnetId', '')}"), here)
        for group in nic.get("Groups", ()):
            yield Need(run, arn(region, f"security-group/{group}"), here)
    yield Need(run, f"arn:aws:ec2:{region.name}::image/{told.get('ImageId', '')}", here)
    for kind in ("instance", "volume", "network-interface"):
        tags = dict(tagged.get(kind, {}))
        if kind == "instance":
            tags["ec2:InstanceType"] = told["InstanceType"]
        yield Need(run, arn(region, f"{kind}/*"), {**here, **tags})
    if told.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        yield Need(run, arn(region, "spot-instances-request/*"), here)
    for kind, tags in tagged.items():
        context = {**here, **tags, "ec2:CreateAction": "RunInstances"}
        yield Need("ec2:CreateTags", arn(region, f"{kind}/*"), context)
    if "IamInstanceProfile" in told:
        role = region.profiles.get(told["IamInstanceProfile"]["Name"], "unknown")
        context = {**here, "iam:PassedToService": "ec2.amazonaws.com"}
        yield Need("iam:PassRole", f"arn:aws:iam::{region.account}:role/{role}", context)


def arn(region: AwsRegion, resource: str) -> str:
    """Return the name of a resource of EC2."""
    return f"arn:aws:ec2:{region.name}:{region.account}:{resource}"


def _request_tags(told: Parameters) -> Mapping[str, Mapping[str, str]]:
    return {
        one["ResourceType"]: {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in one["Tags"]}
        for one in told.get("TagSpecifications", ())
    }


def _listed(told: str | Sequence[str]) -> tuple[str, ...]:
    return (told,) if isinstance(told, str) else tuple(told)


def _is_like(pattern: str, text: str) -> bool:
    """Tell whether a text has the form of a pattern with ``*`` and ``?``."""
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(one, re.escape(one)) for one in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None
