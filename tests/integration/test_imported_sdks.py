"""A controller loads the SDK of a cloud only where an entry of its clouds file names that cloud.

Google's takes seconds and 120 MiB, which a controller of another cloud should not pay.
"""

from __future__ import annotations

import json
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.conformance.google.rental import ENTRY
from tests.controller import Controller
from tests.fakecloud.aws_region import GROUP, IMAGE

CLOSED = "http://127.0.0.1:1"  # a controller starts though its cloud does not answer
ENTRIES: dict[str, dict[str, Any]] = {
    "aws": {
        "provider": "aws",
        "region": "eu-central-1",
        "subnets": {"eu-central-1a": "subnet-1"},
        "security_group": GROUP,
        "image": IMAGE,
        "endpoint": CLOSED,
    },
    "google": {"provider": "google", **ENTRY, "endpoint": CLOSED},
}
SDKS = {"boto3", "botocore", "google.cloud", "google.auth"}


@pytest.mark.parametrize(
    ("entry", "loaded"),
    [
        ("aws", {"boto3", "botocore"}),
        ("google", {"google.cloud", "google.auth"}),
    ],
)
def test_a_controller_loads_the_sdks_of_its_own_clouds(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch, entry: str, loaded: set[str]
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "of-a-fake-cloud")
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # its log names each module it imports
    home = open_directory / token_hex(4) / "home"
    home.mkdir(parents=True)
    file = home.with_name("clouds.yaml")
    file.write_text(json.dumps({"clouds": {entry: ENTRIES[entry]}}))
    with Controller(home, ("--clouds", str(file))) as controller:
        controller.ask("GET", "/v1/offers").raise_for_status()
        controller.ask("GET", "/metrics").raise_for_status()
    lines = (home.parent / "controller.log").read_text().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")}
    assert "service.clouds.registry" in imported
    assert imported & SDKS == loaded
