"""The policy that we ship for AWS grants what the provider calls, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from service.clouds import aws as aws_module
from service.clouds import aws_store
from service.clouds.aws import AwsProvider
from service.clouds.labels import OWNER_LABEL
from service.clouds.provider import Instance, Provider
from service.errors import CredentialsRefused
from tests.conformance.aws.rental import OTHER_ZONE, TYPE, USUAL, ZONE, Gate, make_door
from tests.conformance.clouds import Eventually, ProviderConformance, Request, is_up
from tests.docs.test_docs import ROOT
from tests.fakecloud.aws_policy import AwsPolicy, Need, Statement
from tests.fakecloud.aws_region import (
    EPOCH,
    GROUP,
    IMAGE,
    IMAGE_PARAMETER,
    PROFILE,
    VPC,
    WORKER_ROLE,
    AwsRegion,
)
from tests.fakecloud.cloudformation import Template
from tests.fakecloud.ec2_door import AwsDoor

TEMPLATE = ROOT / "deploy" / "aws" / "scavenger.yaml"
HERE = AwsRegion()
NOW = datetime(2026, 11, 23, tzinfo=UTC)
VALUES: Mapping[str, str | list[str]] = {
    "AWS::Region": HERE.name,
    "AWS::AccountId": HERE.account,
    "Vpc": VPC,
    "Subnets": ["subnet-000a", "subnet-000b"],
    "MachineTypes": [TYPE, "c7i.*"],
    "Images": [IMAGE],
    "Owner": "ours",
    "Bucket": "",
    "Prefix": "checkpoints",
    "MachinesGroup.GroupId": GROUP,
    "WorkerRole": WORKER_ROLE,
    "WorkerRole.Arn": f"arn:aws:iam::{HERE.account}:role/{WORKER_ROLE}",
    "WorkerProfile": PROFILE,
    "ControllerRole": "controller-role",
    "ControllerProfile": "controller",
}


def template(**changes: str | list[str]) -> Template:
    return Template(TEMPLATE.read_text(), {**VALUES, **changes})


def policy(**changes: str | list[str]) -> AwsPolicy:
    made = template(**changes).resources("AWS::IAM::ManagedPolicy")
    assert all(one["Roles"] == ["controller-role"] for one in made.values())
    return AwsPolicy.read(*(one["PolicyDocument"] for one in made.values()))


@pytest.fixture
def door(gate: Gate) -> AwsDoor:
    gate.door = make_door()
    gate.door.policy = policy()
    return gate.door


def owned_by(owner: str) -> dict[str, str]:
    """Return the labels of a machine of another owner, or of none."""
    owned = {OWNER_LABEL: owner} if owner else {}
    return {**{name: one for name, one in USUAL.labels.items() if name != OWNER_LABEL}, **owned}


class TestAwsProviderUnderItsPolicy(ProviderConformance):
    @pytest.fixture
    def provider(self, reach: Callable[..., AwsProvider]) -> Callable[[], Provider]:
        return reach

    @pytest.fixture
    def destroy(self, door: AwsDoor) -> Callable[[Instance], None]:
        return lambda machine: door.cloud.interrupt(machine.provider_id)


def do_all(
    reach: Callable[..., AwsProvider], request_for: Request, eventually: Eventually
) -> AwsProvider:
    """Make each call of the provider, with each kind of entry and offer."""
    aws = reach(instance_profile=PROFILE, image=f"ssm:{IMAGE_PARAMETER}")
    assert aws.account == f"{HERE.account}/{HERE.name}"
    machine = aws.launch(request_for())
    aws.launch(request_for(key="key-2", market="spot", zone=OTHER_ZONE))
    eventually(lambda: is_up(aws, machine))
    aws.launch(request_for(prepaid=59.0))
    assert aws.spot_prices(ZONE, TYPE, EPOCH)
    assert list(aws.fetch_prices([TYPE], NOW))
    aws.terminate(machine.provider_id)
    return aws


def test_each_right_is_needed_and_no_other(
    door: AwsDoor, reach: Callable[..., AwsProvider], request_for: Request, eventually: Eventually
) -> None:
    assert door.policy is not None
    do_all(reach, request_for, eventually)
    unused = [
        (statement.sid, action, resource)
        for statement in door.policy.statements
        for action in statement.actions
        for resource in statement.resources
        if not any(
            replace(statement, actions=(action,), resources=(resource,)).allows(need)
            for need in door.granted
        )
    ]
    assert unused == []


def calls_in_the_source() -> set[str]:
    """Return the actions of AWS that the provider's source calls by the SDK."""
    services = {"_ec2": "ec2", "_ssm": "ssm", "_sts": "sts", "_pricing": "pricing"}
    found = set[str]()
    for node in ast.walk(ast.parse(inspect.getsource(aws_module))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr=client), attr=method), args=arguments
            ) if client in services:
                name = method
                if method == "get_paginator":
                    (told,) = arguments
                    assert isinstance(told, ast.Constant)
                    name = str(told.value)
                found.add(f"{services[client]}:{name.title().replace('_', '')}")
    return found


def test_the_source_calls_what_the_policy_names() -> None:
    named = {action for one in policy().statements for action in one.actions}
    with_a_launch = {"ec2:CreateTags", "iam:PassRole"}
    needs_no_right = {"sts:GetCallerIdentity"}
    assert calls_in_the_source() == named - with_a_launch | needs_no_right


def test_a_wildcard_stands_for_what_the_account_does_not_know_yet(
    door: AwsDoor, reach: Callable[..., AwsProvider], request_for: Request, eventually: Eventually
) -> None:
    door.policy = policy(Owner="*", Images=["*"])
    aws = do_all(reach, request_for, eventually)
    with pytest.raises(CredentialsRefused, match="ec2:RunInstances"):
        aws.launch(request_for(key="untagged", labels=owned_by("")))


# What the doctor is told


def doctor_of(aws: AwsProvider, owner: str = "ours") -> dict[str, bool | None]:
    """Return each right that the doctor asks for, and what AWS says of it; False wins."""
    told: dict[str, bool | None] = {}
    for right in aws.check_rights(owner):
        is_worse = told.get(right.name, True) is not False
        told[right.name] = right.is_granted if is_worse else False
    return told


def test_a_dry_run_finds_each_right_of_the_policy_and_starts_nothing(
    door: AwsDoor, reach: Callable[..., AwsProvider], request_for: Request, eventually: Eventually
) -> None:
    aws = reach(
        instance_profile=PROFILE,
        image=f"ssm:{IMAGE_PARAMETER}",
        machine_type=TYPE,
        subnets={ZONE: "subnet-000a", OTHER_ZONE: "subnet-000b"},
    )
    assert doctor_of(aws)["ec2:TerminateInstances"] is None, "no machine, so no tag to judge by"
    machine = aws.launch(request_for())
    eventually(lambda: is_up(aws, machine))
    assert door.policy is not None
    with_a_launch = {"ec2:CreateTags", "iam:PassRole"}
    named = {action for one in door.policy.statements for action in one.actions} - with_a_launch
    assert doctor_of(aws) == dict.fromkeys(named, True)
    assert len(door.cloud.machines()) == 1
    assert is_up(aws, machine)


RIGHTS = sorted({action for one in policy().statements for action in one.actions})


@pytest.mark.parametrize("missing", RIGHTS)
def test_a_right_that_is_missing_is_named_with_what_to_do(
    door: AwsDoor,
    reach: Callable[..., AwsProvider],
    request_for: Request,
    eventually: Eventually,
    missing: str,
) -> None:
    aws = reach(
        instance_profile=PROFILE,
        image=f"ssm:{IMAGE_PARAMETER}",
        machine_type=TYPE,
        subnets={ZONE: "subnet-000a"},
    )
    machine = aws.launch(request_for())
    eventually(lambda: is_up(aws, machine))
    full = policy()
    door.policy = AwsPolicy(
        tuple(
            replace(one, actions=tuple(each for each in one.actions if each != missing))
            for one in full.statements
        )
    )
    lacking = {right.name: right for right in aws.check_rights("ours") if right.is_granted is False}
    assert set(lacking) == {missing}
    assert f"allow {missing}" in lacking[missing].remedy
    assert "assumed-role/controller" in lacking[missing].remedy


def test_another_owner_or_type_is_told_as_a_missing_right(
    reach: Callable[..., AwsProvider],
) -> None:
    subnets = {ZONE: "subnet-000a"}
    assert doctor_of(reach(subnets=subnets, machine_type=TYPE), "")["ec2:RunInstances"] is False
    dear = reach(subnets=subnets, machine_type="g5.xlarge")
    assert doctor_of(dear)["ec2:RunInstances"] is False


def test_an_entry_that_ec2_cannot_read_is_no_missing_right(
    door: AwsDoor, reach: Callable[..., AwsProvider]
) -> None:
    door.policy = policy(MachineTypes=["*"], Images=["*"])
    aws = reach(image="ami-0f0f0f0f", machine_type=TYPE, subnets={ZONE: "subnet-000a"})
    rights = [right for right in aws.check_rights("ours") if right.name == "ec2:RunInstances"]
    assert {right.is_granted for right in rights} == {None}
    assert all("correct the entry" in right.remedy for right in rights)


@pytest.mark.parametrize("code", ["InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch"])
def test_credentials_that_are_not_known_end_the_questions(
    door: AwsDoor, reach: Callable[..., AwsProvider], code: str
) -> None:
    door.refuse_next("GetCallerIdentity", code)
    with pytest.raises(CredentialsRefused, match=code):
        list(reach().check_rights("ours"))
    assert door.calls() == {"GetCallerIdentity": 1}


# What must be denied: other launches, through the SDK and the door


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": owned_by("theirs")},
        {"labels": owned_by("")},
        {"machine_type": "g5.xlarge"},
        {"image": "ami-0f0f0f0f"},
        {"zone": "eu-central-1c"},
    ],
    ids=["another owner", "no owner", "another type", "another image", "another subnet"],
)
def test_another_launch_is_denied(
    reach: Callable[..., AwsProvider],
    request_for: Request,
    door: AwsDoor,
    changes: dict[str, Any],
) -> None:
    door.region.images["ami-0f0f0f0f"] = "/dev/xvda"  # type: ignore[index]
    with pytest.raises(CredentialsRefused, match="not authorized to perform: ec2:RunInstances"):
        reach().launch(request_for(**changes))
    assert door.cloud.machines() == ()


def test_another_group_or_role_is_denied(
    reach: Callable[..., AwsProvider], request_for: Request, door: AwsDoor
) -> None:
    with pytest.raises(CredentialsRefused, match=r"ec2:RunInstances.*security-group/sg-0002"):
        reach(security_group="sg-0002").launch(request_for())
    door.region.profiles["admin"] = "admin-role"  # type: ignore[index]
    with pytest.raises(CredentialsRefused, match=r"iam:PassRole on resource.*role/admin-role"):
        reach(instance_profile="admin").launch(request_for())
    assert door.cloud.machines() == ()


def test_the_machines_of_others_are_not_ended(
    reach: Callable[..., AwsProvider], request_for: Request, door: AwsDoor
) -> None:
    granted, door.policy = door.policy, None
    theirs = [
        reach().launch(request_for(key=f"key-{one}", labels=owned_by(one)))
        for one in ("theirs", "")
    ]
    door.policy = granted
    door.cloud.clock.advance(10.0)
    for machine in theirs:
        with pytest.raises(CredentialsRefused, match="ec2:TerminateInstances"):
            reach().terminate(machine.provider_id)


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        (
            "create_tags",
            {"Resources": ["i-0123456789abcdef0"], "Tags": [{"Key": OWNER_LABEL, "Value": "ours"}]},
        ),
        ("delete_tags", {"Resources": ["i-0123456789abcdef0"]}),
        ("stop_instances", {"InstanceIds": ["i-0123456789abcdef0"]}),
        ("modify_instance_attribute", {"InstanceId": "i-0123456789abcdef0"}),
        ("get_console_output", {"InstanceId": "i-0123456789abcdef0"}),
        ("create_security_group", {"GroupName": "open", "Description": "open"}),
        ("authorize_security_group_ingress", {"GroupId": GROUP}),
        ("create_snapshot", {"VolumeId": "vol-1"}),
        ("delete_volume", {"VolumeId": "vol-1"}),
        ("create_key_pair", {"KeyName": "door"}),
        ("describe_instance_attribute", {"InstanceId": "i-1", "Attribute": "userData"}),
        ("run_instances", {"MinCount": 1, "MaxCount": 1, "ImageId": IMAGE, "InstanceType": TYPE}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_another_call_is_denied(
    gate: Gate, door: AwsDoor, call: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        getattr(gate.clients["ec2"], call)(**parameters)


def test_a_parameter_of_the_account_is_not_read(gate: Gate, door: AwsDoor) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        gate.clients["ssm"].get_parameter(Name="/production/password")


# What must be denied where our door serves no such call


INSTANCE = f"arn:aws:ec2:{HERE.name}:{HERE.account}:instance/*"
ELSEWHERE = f"arn:aws:ec2:us-east-1:{HERE.account}:instance/*"
LAUNCH = {
    "aws:RequestTag/scavenger-owner": "ours",
    "ec2:InstanceType": TYPE,
    "aws:RequestedRegion": HERE.name,
}
CHECKPOINT = "arn:aws:s3:::training/checkpoints/job_1/step-5"


@pytest.mark.parametrize(
    "need",
    [
        Need("ec2:RunInstances", ELSEWHERE, LAUNCH),
        Need("ec2:RunInstances", INSTANCE.replace(HERE.account, "999999999999"), LAUNCH),
        Need("ec2:RunInstances", INSTANCE, {**LAUNCH, "ec2:InstanceType": "p5.48xlarge"}),
        Need("ec2:RunInstances", INSTANCE.replace("instance/*", "key-pair/door"), LAUNCH),
        Need("ec2:DescribeInstances", "*", {"aws:RequestedRegion": "us-east-1"}),
        Need("ec2:CreateTags", INSTANCE, LAUNCH),
        Need("ec2:CreateTags", INSTANCE, {**LAUNCH, "ec2:CreateAction": "CreateVolume"}),
        Need("ec2:TerminateInstances", INSTANCE, {"aws:ResourceTag/owner": "ours"}),
        Need("iam:PassRole", "arn:aws:iam::123456789012:role/worker-role"),
        Need(
            "iam:PassRole",
            "arn:aws:iam::123456789012:role/worker-role",
            {"iam:PassedToService": "lambda.amazonaws.com"},
        ),
        *(
            Need(f"iam:{action}", "arn:aws:iam::123456789012:role/worker-role")
            for action in ("CreateRole", "AttachRolePolicy", "PutRolePolicy", "CreateAccessKey")
        ),
        Need("sts:AssumeRole", "arn:aws:iam::123456789012:role/worker-role"),
        Need("s3:ListBucket", "arn:aws:s3:::other"),
        Need("s3:ListAllMyBuckets", "*"),
        Need("s3:GetObject", "arn:aws:s3:::training/checkpointsafe/x"),
        Need("s3:GetObject", "arn:aws:s3:::other/checkpoints/x"),
        Need("s3:PutBucketPolicy", "arn:aws:s3:::training"),
        Need("ec2:RequestSpotInstances", "*", LAUNCH),
        Need("ec2:CreateFleet", "*", LAUNCH),
    ],
    ids=lambda need: f"{need.action} {need.resource[-24:]}",
)
def test_nothing_else_is_granted(need: Need) -> None:
    assert not policy(Bucket="training").allows(need)


def test_checkpoints_are_granted_with_a_bucket_only() -> None:
    objects = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
    needs = [Need(action, CHECKPOINT) for action in objects]
    needs.append(Need("s3:ListBucket", "arn:aws:s3:::training"))
    assert all(policy(Bucket="training").allows(need) for need in needs)
    assert not any(policy().allows(need) for need in needs)


# Looking for an object needs the right to read it, and to list the bucket where it is missing.
CALLS_OF_A_BUCKET = {
    "put_object": "s3:PutObject",
    "get_object": "s3:GetObject",
    "head_object": "s3:ListBucket",
    "delete_object": "s3:DeleteObject",
}


def test_the_source_calls_what_the_policy_of_a_bucket_names() -> None:
    source = inspect.getsource(aws_store)
    named = {action for one in policy(Bucket="training").statements for action in one.actions}
    called = set(re.findall(r"[a-z]+_objects?\b", source)) - {"generate_presigned_url"}
    assert called == set(CALLS_OF_A_BUCKET)
    assert set(CALLS_OF_A_BUCKET.values()) == {one for one in named if one.startswith("s3:")}


def test_machines_have_no_right_and_hear_each_other_only() -> None:
    roles = template().resources("AWS::IAM::Role")
    assert all(set(one) == {"AssumeRolePolicyDocument"} for one in roles.values())
    profiles = template().resources("AWS::IAM::InstanceProfile")
    assert profiles["WorkerProfile"] == {"Roles": [WORKER_ROLE]}
    (inward,) = template().resources("AWS::EC2::SecurityGroupIngress").values()
    assert inward["GroupId"] == inward["SourceSecurityGroupId"] == GROUP
    assert "CidrIp" not in inward
    (group,) = template().resources("AWS::EC2::SecurityGroup").values()
    assert "SecurityGroupIngress" not in group


@pytest.mark.parametrize(
    "changes",
    [
        {"Effect": "Deny"},
        {"Action": "ec2:*"},
        {"NotAction": "iam:*"},
        {"Condition": {"StringNotEquals": {"a": "b"}}},
        {"Resource": "${aws:username}"},
    ],
)
def test_a_statement_that_is_not_understood_is_an_error(changes: dict[str, Any]) -> None:
    told = {"Effect": "Allow", "Action": "ec2:RunInstances", "Resource": "*"}
    with pytest.raises(ValueError, match="not understood"):
        Statement.read({**told, **changes})
