"""One browser and one controller for each file, and visitors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import PATIENCE, Watched, chromium, watched
from tests.browser.visit import sign_in
from tests.controller import Controller

PACED = Path(__file__).with_name("paced.py")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one file: until it ends, Playwright leaves an event loop running here."""
    expect.set_options(timeout=1000 * PATIENCE)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def controller(open_directory: Path, request: pytest.FixtureRequest) -> Iterator[Controller]:
    """A controller that has the same address after a restart."""
    home = open_directory / request.module.__name__.rpartition(".")[2] / "home"
    with Controller(home, ("--port", str(free_port()))) as controller:
        yield controller


@pytest.fixture
def visitor(browser: Browser, controller: Controller) -> Iterator[Watched]:
    """A browser with nothing in it; the test fails if one of its pages is at fault."""
    with watched(browser, controller.connection["url"]) as visitor:
        yield visitor


@pytest.fixture
def page(visitor: Watched, controller: Controller) -> Page:
    """The list of jobs, signed in as the owner of the controller."""
    page = visitor.page()
    sign_in(page, controller)
    return page


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def paced(name: str, **changes: Any) -> dict[str, Any]:
    """A job that trains for hours, on one or two workers, at the pace of a law."""
    return {
        "name": name,
        "model": {"key": f"tests/{name}", "dataset_size": 4096},
        "target": {"epochs": 1000, "at_batch": 16},
        "limits": {"workers": "1..2", "batch": [16, 64], "max_cost": "50 USD", "max_time": "10h"},
        "price": "3.60 USD/h",
        "run": {"command": [sys.executable, str(PACED)], "directory": str(PACED.parent)},
        **changes,
    }
