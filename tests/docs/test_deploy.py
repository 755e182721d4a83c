"""What is shipped for those who run a controller speaks of things that exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scavenger.client.diagnostics import OLDEST_POSTGRES
from tests.docs.test_docs import DOCS, ROOT

DEPLOY = ROOT / "deploy"


def asked_in(expression: str) -> set[str]:
    """Return the metrics an expression of Prometheus asks for."""
    parts = re.compile("_(bucket|count|sum)$")
    return {parts.sub("", name) for name in re.findall(r"scavenger_\w+", expression)}


@pytest.mark.parametrize("name", ["service", "jobs", "money"])
def test_dashboards_ask_for_metrics_that_are_documented(name: str) -> None:
    board = json.loads((DEPLOY / "grafana" / f"{name}.json").read_text())
    known = set(re.findall(r"`(scavenger_\w+)", (DOCS / "observability.md").read_text()))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) >= 6
    assert {metric for expression in asked for metric in asked_in(expression)} <= known
    assert all(expression.count("(") == expression.count(")") for expression in asked)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def rules() -> list[Any]:
    groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_ask_for_metrics_that_are_documented() -> None:
    known = set(re.findall(r"`(scavenger_\w+)", (DOCS / "observability.md").read_text()))
    asked = {metric for rule in rules() for metric in asked_in(rule["expr"])}
    assert len(rules()) >= 10
    assert asked <= known
    assert all(rule["annotations"]["summary"] for rule in rules())


def test_each_alert_leads_to_a_heading_of_its_own_that_says_what_to_do() -> None:
    page = (DOCS / "runbooks.md").read_text() + "\n## End\n"
    links = [rule["annotations"]["runbook_url"] for rule in rules()]
    assert len(set(links)) == len(links), "two alerts share a runbook"
    for rule in rules():
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        (text,) = re.findall(rf"^## {name}\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
        _, _, remedy = text.partition("**What to do.** ")
        assert len(remedy.split()) >= 5, name
    headings = re.findall(r"^## (Scavenger\w+)$", page, re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules()]


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.*")), ids=lambda file: file.name)
def test_what_is_deployed_names_no_address_that_is_not_ours(file: Path) -> None:
    assert re.findall(r"https?://(?!127\.0\.0\.1|localhost)[^\s\"']+", file.read_text()) == []


def test_doctor_asks_for_the_database_that_the_page_asks_for() -> None:
    (said,) = re.findall(r"Postgres\s+(\d+) or newer", (DOCS / "operations.md").read_text())
    assert int(said) == OLDEST_POSTGRES


def test_the_unit_starts_a_command_that_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "scavenger.service")
    program, command, *options = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "scavenger"
    own = Path(sys.executable).parent / "scavenger"
    shown = subprocess.run([own, command, "--help"], capture_output=True, text=True, check=True)
    assert [
        option for option in options if option.startswith("--") and option not in shown.stdout
    ] == []


def test_the_page_for_the_night_names_signs_that_exist() -> None:
    page = "".join((DOCS / name).read_text() for name in ("operations.md", "runbooks.md"))
    known = (DOCS / "observability.md").read_text()
    assert {name for name in re.findall(r"scavenger_\w+", page) if name not in known} == set()
    code = "\n".join(file.read_text() for file in (ROOT / "service").rglob("*.py"))
    signs = re.findall(r"Event `(\w+)`", page)
    assert signs
    assert [sign for sign in signs if f'"{sign}"' not in code] == []
