"""An entry of AWS in the clouds file, and what is asked when the controller starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.clouds.aws import AwsProvider
from service.clouds.aws_entry import AwsEntry
from service.clouds.registry import open_clouds
from service.errors import CloudsFileRefused, CredentialsRefused
from service.settings import Settings as ControllerSettings
from tests.conformance.aws.rental import OTHER_ZONE, SOLD_OUT, ZONE, Open, entry
from tests.conformance.clouds import Request
from tests.docs.test_docs import DOCS, blocks
from tests.fakecloud.aws_region import IMAGE, IMAGE_PARAMETER
from tests.fakecloud.ec2_door import AwsDoor


def test_the_account_is_asked_for_once_and_the_traits_never(door: AwsDoor, reach: Open) -> None:
    aws = reach()
    assert aws.traits.zones == (ZONE, OTHER_ZONE, SOLD_OUT)
    assert door.calls() == {}
    for _ in range(2):
        assert aws.account == "123456789012/eu-central-1"
    assert door.calls() == {"GetCallerIdentity": 1, "DescribeSubnets": 1}


def test_the_name_of_an_image_is_looked_up_at_the_first_launch(
    door: AwsDoor, reach: Open, request_for: Request
) -> None:
    aws = reach(image=f"ssm:{IMAGE_PARAMETER}")
    for number in range(2):
        request = request_for(key=f"key-{number}")
        aws.launch(replace(request, offer=replace(request.offer, image=aws.traits.image)))
    assert {asked["ImageId"] for asked in door.launches()} == {IMAGE}
    assert door.calls()["GetParameter"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subnets": {ZONE: "subnet-000b"}}, "subnet-000b is in zone eu-central-1b"),
        ({"subnets": {ZONE: "subnet-9999"}}, "InvalidSubnetID.NotFound"),
        ({"image": "ssm:/aws/service/other"}, "ParameterNotFound"),
    ],
)
def test_an_entry_that_names_what_aws_does_not_have_is_refused(
    reach: Open, changes: dict[str, Any], message: str
) -> None:
    aws = reach(**changes)
    with pytest.raises(CloudsFileRefused, match=message):
        _ = aws.account


@pytest.mark.parametrize(
    "changes",
    [
        {"region": "Frankfurt"},
        {"subnets": {}},
        {"subnets": {ZONE: "vpc-1"}},
        {"subnets": {"us-east-1a": "subnet-1"}},
        {"subnets": {ZONE: "subnet-1", OTHER_ZONE: "subnet-1"}},
        {"security_group": "default"},
        {"image": "ubuntu"},
        {"image": "ssm:/my/parameter"},
        {"disk_gib": 0},
        {"access_key": "AKIA"},
        {"endpoint": "http://ec2.example.com"},
    ],
)
def test_an_entry_that_makes_no_sense_is_not_accepted(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        entry(**changes)


PAGE = DOCS / "clouds.md"


(EXAMPLE,) = (block for block in blocks(PAGE, "yaml") if "provider: aws" in block)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "    disk: 30",
            "line 8, column 5: clouds.aws-frankfurt.disk: .* aws are provider, region",
        ),
        ("    disk_gib: many", "line 8, column 5: .*disk_gib: must be a whole number, got .many."),
        ("    aws_access_key_id: id", "line 8, column 5: .*credentials do not belong"),
        ("    checkpoints: s3://kept", "line 8, column 5: .*checkpoints: must be a mapping, got"),
        ("    checkpoints: {}", "checkpoints.bucket: is missing: .* a bucket are bucket, prefix"),
        ("    checkpoints: {bucket: kept, secret: 1}", "checkpoints.secret: unknown key"),
        ("    checkpoints: {bucket: Kept}", 'checkpoints.bucket: "Kept" does not fit: Name of'),
        ("    checkpoints: {bucket: kept, prefix: ../x}", "checkpoints.prefix: .* does not fit"),
    ],
)
def test_the_entry_of_the_docs_opens_and_a_wrong_line_is_named(
    aws_environment: None, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(EXAMPLE)
    (opened,) = open_clouds(ControllerSettings(clouds=file))
    assert isinstance(opened, AwsProvider)
    assert (opened.name, opened.traits.zones) == ("aws-frankfurt", (ZONE, OTHER_ZONE))
    file.write_text(f"{EXAMPLE}{line}\n")
    with pytest.raises(CloudsFileRefused, match=words) as caught:
        open_clouds(ControllerSettings(clouds=file))
    assert "endpoint" not in str(caught.value)


def test_the_docs_list_every_key_of_an_entry() -> None:
    section = PAGE.read_text().split("\n## AWS\n")[1].split("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]+) \|$", section, re.MULTILINE)
    fields = AwsEntry.model_fields.items()
    keys = {key: field.description or "" for key, field in fields if not field.exclude}
    assert [key for key, _ in table] == list(keys)
    assert all(keys[key].startswith(meaning.rstrip(".")) for key, meaning in table)


def test_missing_credentials_are_told_as_such(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, request_for: Request
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    aws = AwsProvider.open("aws-frankfurt", entry(), ControllerSettings())
    calls: tuple[Callable[[], object], ...] = (aws.list, lambda: aws.launch(request_for()))
    for call in calls:
        with pytest.raises(CredentialsRefused, match="no credentials"):
            call()
    with pytest.raises(CredentialsRefused, match="unheard-of"):
        AwsProvider.open("aws-frankfurt", entry(profile="unheard-of"), ControllerSettings())


EXPIRED = """{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "secret",
 "SessionToken": "token", "Expiration": "2020-01-01T00:00:00Z"}"""


@pytest.mark.parametrize("process", ["cat {}", "false"])
def test_credentials_that_cannot_be_renewed_are_told_as_such(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: str
) -> None:
    answer, config = tmp_path / "answer", tmp_path / "config"
    answer.write_text(EXPIRED)
    config.write_text(f"[profile expired]\ncredential_process = {process.format(answer)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(CredentialsRefused, match="no credentials"):
        AwsProvider.open("aws-frankfurt", entry(profile="expired"), ControllerSettings()).list()
