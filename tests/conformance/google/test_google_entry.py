"""The entry of the clouds file, and what follows from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.clouds.registry import read_clouds_file
from service.errors import CloudsFileRefused, CredentialsRefused
from service.settings import Settings
from tests.conformance.clouds import Request
from tests.conformance.google.rental import (
    ENTRY,
    FAMILY,
    GCE_TYPE,
    OTHER_ZONE,
    ZONE,
    Reach,
)
from tests.docs.test_docs import DOCS
from tests.fakecloud.faults import (
    Refused,
)
from tests.fakecloud.google_door import GoogleDoor


def test_the_image_of_a_family_is_resolved_where_google_says_it(
    door: GoogleDoor, reach: Reach
) -> None:
    resolved = "projects/images-1/global/images/worker-7"
    assert reach().traits.image == resolved
    assert reach(image=resolved).traits.image == resolved
    door.cloud.faults.next("describe", Refused("503 backendError"))
    assert reach().traits.image == FAMILY


def test_the_traits_and_the_account_follow_from_the_entry(reach: Reach) -> None:
    cloud = reach(machine_type=GCE_TYPE)
    assert (cloud.name, cloud.account) == ("google", "project-1/europe-west3")
    assert cloud.traits.zones == (ZONE, OTHER_ZONE)
    assert cloud.traits.machine_type == GCE_TYPE
    assert cloud.traits.max_list_lag_seconds == cloud.traits.minimum_billed_seconds == 60.0


@pytest.mark.parametrize(
    "changes",
    [
        {"unheard_of": 1},
        {"zones": []},
        {"zones": [ZONE, ZONE]},
        {"zones": ["us-central1-a"]},
        {"image": "debian-12"},
        {"subnetwork": ""},
        {"disk_gib": 1},
        {"endpoint": "http://compute.example.org"},
    ],
)
def test_an_entry_that_cannot_work_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GoogleEntry.model_validate({**ENTRY, **changes})


@pytest.mark.parametrize("endpoint", [None, "https://compute.example.org"])
def test_without_credentials_only_a_double_on_this_computer_is_called(
    monkeypatch: pytest.MonkeyPatch, request_for: Request, endpoint: str | None
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    entry = GoogleEntry.model_validate({**ENTRY, "endpoint": endpoint})
    cloud = GoogleProvider.open("google", entry, Settings())
    assert cloud.account == "project-1/europe-west3"
    assert cloud.traits.zones == entry.zones
    for call in (cloud.list, lambda: cloud.launch(request_for()), lambda: cloud.terminate("1")):
        with pytest.raises(CredentialsRefused, match="gcloud auth"):
            call()


def test_a_controller_without_an_entry_of_google_never_imports_its_libraries(
    tmp_path: Path,
) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text("clouds: {here: {provider: local}}")
    script = (
        "import sys, service.__main__\n"
        "from service.clouds.registry import open_clouds\n"
        "from service.settings import Settings\n"
        f"open_clouds(Settings(clouds={str(file)!r}, home={str(tmp_path)!r}))\n"
        "print([name for name in sys.modules if name.startswith(('google.', 'requests'))])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("zone: x", r"line 3, column 5: clouds.there.zone: unknown key.* project, region, zones"),
        ("disk_gib: 1", "line 3, column 5: clouds.there.disk_gib: must be"),
        ("project: 5", "line 3, column 5: clouds.there.project: must be"),
    ],
)
def test_a_wrong_entry_of_the_clouds_file_is_refused_with_its_line(
    tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(f"clouds:\n  there:\n    {line}\n    provider: google\n")
    with pytest.raises(CloudsFileRefused, match=words):
        read_clouds_file(file, Settings())


def test_the_pages_entry_is_accepted_and_its_table_has_the_keys_of_the_entry(
    tmp_path: Path,
) -> None:
    section = (DOCS / "clouds.md").read_text().split("## Google Cloud", 1)[1]
    (example, *_) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "clouds.yaml"
    file.write_text(example)
    (opened,) = read_clouds_file(file, Settings())
    assert isinstance(opened, GoogleProvider)
    assert opened.name == "google-frankfurt"
    fields = GoogleEntry.model_fields
    keys = {key: field.description or "" for key, field in fields.items() if not field.exclude}
    table = re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]+) \|$", section, re.MULTILINE)
    assert [key for key, _ in table] == list(keys)
    assert all(keys[key].startswith(meaning.rstrip(".")) for key, meaning in table)
