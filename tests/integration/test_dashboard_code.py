"""The dashboard's sources: their types, their own tests, and the types made of the API."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.contract.dashboard_types import DASHBOARD, SCHEMA, load_build_hook, write_types


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The build hook, with the packages that the dashboard's lock names."""
    hook = load_build_hook()
    hook.install_packages(DASHBOARD)
    return hook


def test_the_types_hold(build: ModuleType) -> None:
    compiler = DASHBOARD / "node_modules" / "typescript" / "bin" / "tsc"
    build.run_node(DASHBOARD, str(compiler), "--noEmit")


def test_the_geometry_of_the_curve_obeys_its_laws(build: ModuleType) -> None:
    build.run_node(DASHBOARD, str(DASHBOARD / "node_modules" / "vitest" / "vitest.mjs"), "run")


def test_the_types_of_the_api_follow_from_its_description(tmp_path: Path) -> None:
    made = tmp_path / "schema.ts"
    write_types(made)
    assert made.read_text() == SCHEMA.read_text(), (
        "the API describes other views than the dashboard's types: write them with make openapi"
    )
