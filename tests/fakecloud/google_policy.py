"""IAM of Google in small: a role bound in one project, perhaps under a condition.

The condition has exactly the operators of the one that we ship; any other is an error, since a test
may not pass on a condition that was not understood.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PROJECT_TYPE = "cloudresourcemanager.googleapis.com/Project"
ACT_AS = "iam.serviceAccounts.actAs"
ACCOUNT_TYPE = "iam.googleapis.com/ServiceAccount"
TYPES = {"instances": "Instance", "disks": "Disk", "subnetworks": "Subnetwork", "images": "Image"}


@dataclass(frozen=True, slots=True)
class GoogleNeed:
    """One permission on one resource that an account must have.

    Attributes:
        resource: Path of the resource, which begins with its project.
        kind: Type of the resource, as conditions know it.
    """

    permission: str
    resource: str
    kind: str = PROJECT_TYPE


@dataclass(frozen=True, slots=True)
class GoogleGrant:
    """What one account may do: the permissions of a role in some projects.

    Attributes:
        permissions: Those of the role.
        projects: Where it is bound; an image may be in another project than the machines.
        condition: Under which it is bound; empty for none.
        accounts: Service accounts that it may give to machines.
    """

    permissions: frozenset[str]
    projects: frozenset[str]
    condition: str = ""
    accounts: frozenset[str] = field(default_factory=frozenset)

    def allows(self, need: GoogleNeed) -> bool:
        """Tell whether the account has a permission on a resource."""
        if need.permission == ACT_AS:
            return need.resource.rpartition("/")[2] in self.accounts
        if need.permission not in self.permissions:
            return False
        if need.resource.split("/")[1] not in self.projects:
            return False
        facts = {"type": need.kind, "name": need.resource}
        return not self.condition or bool(_value(_parsed(self.condition), facts))


def google_needs(permission: str, path: str, body: Mapping[str, Any]) -> Iterator[GoogleNeed]:
    """Yield what a call of Compute Engine must be granted.

    Args:
        permission: The one that is named after the call; empty where it needs none.
        path: Of the request, from its project on.
    """
    project, zone = "/".join(path.split("/")[:2]), "/".join(path.split("/")[:4])
    if permission == "compute.instances.create":
        yield from _insert_needs(project, zone, body)
    elif permission:
        yield google_need(permission, path if path.split("/")[-2] in TYPES else project)


def _insert_needs(project: str, zone: str, body: Mapping[str, Any]) -> Iterator[GoogleNeed]:
    machine = f"{zone}/instances/{body.get('name')}"
    yield google_need("compute.instances.create", machine)
    for part, permission in (
        ("labels", "compute.instances.setLabels"),
        ("metadata", "compute.instances.setMetadata"),
        ("serviceAccounts", "compute.instances.setServiceAccount"),
        ("tags", "compute.instances.setTags"),
    ):
        if body.get(part):
            yield google_need(permission, machine)
    for account in body.get("serviceAccounts", ()):
        yield GoogleNeed(ACT_AS, f"projects/-/serviceAccounts/{account['email']}", ACCOUNT_TYPE)
    for disk in body.get("disks", ()):
        yield google_need("compute.disks.create", f"{zone}/disks/{body.get('name')}")
        image = re.sub(r"^.*(?=projects/)", "", disk["initializeParams"]["sourceImage"])
        yield google_need("compute.images.useReadOnly", image)
    for nic in body.get("networkInterfaces", ()):
        subnet = nic.get("subnetwork", "")
        within = subnet if subnet.startswith("projects/") else f"{project}/{subnet}"
        yield google_need("compute.subnetworks.use", within)
        if nic.get("accessConfigs"):
            yield google_need("compute.subnetworks.useExternalIp", within)


def google_need(permission: str, resource: str) -> GoogleNeed:
    """Return the need of a permission on a resource, whose type its path tells."""
    collections = [part for part in resource.split("/")[::2] if part in TYPES]
    if not collections:
        return GoogleNeed(permission, resource)
    return GoogleNeed(permission, resource, f"compute.googleapis.com/{TYPES[collections[-1]]}")


def _parsed(condition: str) -> ast.expr:
    """Return a condition as Python reads it, which differs by two operators only."""
    text = condition.replace("&&", " and ").replace("||", " or ")
    return ast.parse(f"({text})", mode="eval").body


def _value(node: ast.expr, facts: Mapping[str, str]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(one, facts) for one in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(one, facts) for one in values)
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            return _value(left, facts) != _value(right, facts)
        case ast.Attribute(value=ast.Name(id="resource"), attr=("type" | "name") as name):
            return facts[name]
        case ast.Constant(value=str() as text):
            return text
        case ast.Call(func=ast.Attribute(value=whole, attr="startsWith"), args=[start]):
            return _value(whole, facts).startswith(_value(start, facts))
        case ast.Call(func=ast.Attribute(value=whole, attr="extract"), args=[template]):
            return _extracted(_value(whole, facts), _value(template, facts))
    raise ValueError(f"a condition that is not understood: {ast.unparse(node)}")


def _extracted(text: str, template: str) -> str:
    """Return the part of a text that stands where a template has its one name in braces."""
    before, after = re.fullmatch(r"(.*)\{\w+\}(.*)", template, re.DOTALL).groups()  # type: ignore[union-attr]
    if before not in text:
        return ""
    rest = text.split(before, 1)[1]
    return rest.split(after, 1)[0] if after and after in rest else "" if after else rest
