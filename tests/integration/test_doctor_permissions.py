"""``scavenger doctor --permissions``: the program that people run, before two clouds' doors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scavenger.schemas.diagnostics import DiagnosticsView
from tests.conformance.aws.rental import ZONE, make_door
from tests.conformance.aws.test_aws_rights import policy
from tests.conformance.google.rental import ENTRY, GCE_TYPE, google_cloud
from tests.conformance.google.test_google_rights import BOUND
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.http_server import HttpServer

KNOWN = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


class Doctor:
    """Two clouds, the file that names them, and the command."""

    def __init__(self, root: Path, aws: AwsDoor, google: GoogleDoor) -> None:
        self.root, self.aws, self.google = root, aws, google
        self.entries: dict[str, dict[str, Any]] = {}

    def ask(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        file = self.root / "clouds.yaml"
        file.write_text(json.dumps({"clouds": self.entries}))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SCAVENGER", "AWS_", "GOOGLE_"))
        }
        code = "from scavenger.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "doctor", "--permissions", "--clouds", str(file), *words],
            env={
                **kept,
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": "/dev/null",
                "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "SCAVENGER_HOME": str(self.root),
                "COLUMNS": "200",
                "NO_PROXY": "127.0.0.1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    made = Doctor(tmp_path, make_door(), GoogleDoor(google_cloud(), grant=BOUND))
    made.aws.policy = policy(Owner="*")
    with HttpServer(made.aws.answer) as ec2, HttpServer(made.google.answer) as compute:
        made.entries = {
            "aws-frankfurt": {
                "provider": "aws",
                "region": "eu-central-1",
                "subnets": {ZONE: "subnet-000a"},
                "security_group": GROUP,
                "image": IMAGE,
                "machine_type": "m7i.xlarge",
                "endpoint": ec2.url,
            },
            "google-frankfurt": {
                "provider": "google",
                **ENTRY,
                "machine_type": GCE_TYPE,
                "endpoint": compute.url,
            },
        }
        yield made


def test_rights_that_are_granted_and_missing_are_told_by_cloud(doctor: Doctor) -> None:
    well = doctor.ask("-o", "json", **KNOWN)
    assert well.returncode == 0, well.stdout + well.stderr
    states = {
        check.name: check.state for check in DiagnosticsView.model_validate_json(well.stdout).checks
    }
    assert states.pop("aws-frankfurt ec2:TerminateInstances") == "warning"
    assert set(states.values()) == {"ok"}
    assert {"aws-frankfurt ec2:RunInstances", "google-frankfurt compute.instances.create"} <= set(
        states
    )
    doctor.aws.denied.add("DescribeInstances")
    doctor.google.denied.add("compute.instances.delete")
    ill = doctor.ask(**KNOWN)
    assert ill.returncode == 1
    assert "✗  aws-frankfurt ec2:DescribeInstances" in ill.stdout
    assert "✗  google-frankfurt compute.instances.delete" in ill.stdout
    assert "missing: ends machines" in ill.stdout
    assert "grant compute.instances.delete on project project-1" in ill.stdout
    assert "2 checks failed." in ill.stderr
    assert doctor.aws.cloud.machines() == doctor.google.cloud.machines() == ()


def test_each_fault_of_a_computer_or_a_file_is_one_line_with_a_remedy(doctor: Doctor) -> None:
    del doctor.entries["google-frankfurt"]
    unknown = doctor.ask()
    assert unknown.returncode == 1
    assert "the AWS SDK finds no credentials" in unknown.stdout
    assert "correct the credentials that the SDK finds on this computer" in unknown.stdout
    entry = doctor.entries["aws-frankfurt"]
    doctor.entries = {"aws-frankfurt": {**entry, "endpoint": "http://127.0.0.1:1"}}
    away = doctor.ask(**KNOWN)
    assert away.returncode == 1
    assert "check the network and the region of the entry" in away.stdout
    doctor.entries = {"aws-frankfurt": {**entry, "subnets": {"eu-central-1b": "subnet-000a"}}}
    doctor.aws.policy = None
    elsewhere = doctor.ask(**KNOWN)
    assert "subnet-000a is in zone eu-central-1a, not in eu-central-1b" in elsewhere.stdout
    doctor.entries = {"aws-frankfurt": {**entry, "regio": "x"}}
    misspelt = doctor.ask(**KNOWN)
    assert misspelt.returncode == 1
    assert "regio: unknown key" in misspelt.stderr
    assert all("Traceback" not in one.stderr for one in (unknown, away, elsewhere, misspelt))
