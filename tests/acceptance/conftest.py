"""One controller for all tests of a process that neither stop it nor look at its other jobs.

It ends with the last of them: a controller at rest works, too, while thousands of tests follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller import Controller


@pytest.fixture(scope="package")
def running(open_directory: Path) -> Iterator[Controller]:
    with Controller(open_directory / "acceptance" / "home") as controller:
        yield controller


@pytest.fixture
def controller(running: Controller) -> Controller:
    """The controller, once the machines of the test before have ended."""
    running.wait(lambda: not running.supervisors())
    return running
