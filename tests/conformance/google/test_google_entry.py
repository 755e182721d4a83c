"""The entry of the clouds file, and what follows from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import to_json

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.clouds.registry import read_clouds_file
from service.errors import (
    CredentialsRefused,
)
from service.settings import Settings
from tests.conformance.google.rental import (
    ENTRY,
    FAMILY,
    GCE_TYPE,
    OTHER_ZONE,
    ZONE,
    Ask,
    Reach,
)
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
    monkeypatch: pytest.MonkeyPatch, request_for: Ask, endpoint: str | None
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


def test_an_entry_of_the_clouds_file_opens_the_provider(tmp_path: Path) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(
        to_json({"clouds": {"google-frankfurt": {"provider": "google", **ENTRY}}}).decode()
    )
    (opened,) = read_clouds_file(file, Settings())
    assert isinstance(opened, GoogleProvider)
    assert opened.name == "google-frankfurt"
