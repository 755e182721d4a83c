"""The API does what its description says; ``make schemathesis`` asks for longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.contract.examine import examine
from tests.contract.host import host

FEW = ("--max-examples", "1", "--seed", "1", "--phases", "examples,fuzzing,stateful")


def test_the_api_does_what_its_description_says(engine: Engine, tmp_path: Path) -> None:
    with host(engine) as controller:
        examined = examine(controller, tmp_path, *FEW)
    assert examined.returncode == 0, examined.stdout
    asked = re.search(r"(\d+) generated", examined.stdout)
    assert asked is not None, examined.stdout
    assert int(asked[1]) > 50, examined.stdout
    operations = len([o for each in controller.app.openapi()["paths"].values() for o in each])
    assert f"Tested: {operations}" in examined.stdout


@pytest.mark.slow
def test_an_api_that_does_something_else_is_found_out(engine: Engine, tmp_path: Path) -> None:
    with host(engine) as controller:
        answers = controller.app.openapi()["paths"]["/v1/jobs"]["get"]["responses"]
        answers["200"]["content"]["application/json"]["schema"] = {"type": "string"}
        examined = examine(controller, tmp_path, *FEW, "--include-operation-id", "list_jobs")
    assert examined.returncode == 1, examined.stdout
    assert "Response violates schema" in examined.stdout
