"""Chromium as tests use it: what a page does wrong is recorded, wherever it happens.

The browser is the one of the operating system (``make browser`` installs Debian's).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    sync_playwright,
)

# Seconds until a page shows what it must. Only a failure takes this long.
PATIENCE = 30.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
# What a refused or lost request writes to the console: the page is judged by what it shows then.
NETWORK_NOISE = "Failed to load resource"
TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`${event.violatedDirective} violated: ${event.blockedURI} ${event.sample}`));
"""


@dataclass(slots=True)
class Watched:
    """A context of the browser with its faults.

    Attributes:
        context: Its pages share cookies and storage.
        home: Where the controller is; every request goes there.
        faults: What must not be: errors, violations of the policy, requests to other places.
    """

    context: BrowserContext
    home: str
    faults: list[str] = field(default_factory=list)

    def page(self) -> Page:
        page = self.context.new_page()
        # Playwright writes to the object whose method it is given, and this one has no room.
        page.on("console", lambda message: self._on_console(message))
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and NETWORK_NOISE not in message.text:
            self.faults.append(f"{message.text} at {message.page and message.page.url}")

    def on_request(self, request: Request) -> None:
        there = urlsplit(request.url)
        if there.scheme not in ("data", "blob") and there.netloc != urlsplit(self.home).netloc:
            self.faults.append(f"request to {request.url}")


def find_chromium() -> str:
    """Return the browser's program.

    Raises:
        FileNotFoundError: There is none; the message says how to get one.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(f"no {' or '.join(NAMES)} on the path: make browser installs chromium")


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """Run a browser until the end of a block.

    Args:
        options: Further ones of its command line.
    """
    # The sandbox does not start for root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=[*sandbox, *options]
        )
        yield browser
        browser.close()


@contextmanager
def watched(browser: Browser, home: str, **options: object) -> Iterator[Watched]:
    """Open a context, and fail at the end of the block if a page of it was at fault."""
    context = browser.new_context(base_url=home, **options)  # type: ignore[arg-type]
    context.set_default_timeout(1000 * PATIENCE)
    context.add_init_script(TELL_VIOLATIONS)
    watcher = Watched(context, home)
    context.on("request", lambda request: watcher.on_request(request))
    yield watcher
    context.close()
    assert watcher.faults == []
