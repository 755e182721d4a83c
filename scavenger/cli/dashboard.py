"""``scavenger dashboard``: the page of the controller in a browser, signed in.

The token never enters the browser: the controller gives a code for it that works once, and that
stands after the ``#`` of the address, which no browser sends and no log holds.
"""

from __future__ import annotations

import webbrowser
from pathlib import PurePath
from typing import Annotated

import typer

from scavenger.cli.options import find_job
from scavenger.cli.output import Terminal, get_terminal
from scavenger.client.client import Client

TEXT_BROWSERS = {"www-browser", "links", "links2", "elinks", "lynx", "w3m"}

OneJobArgument = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="Show this job: its id, a part of it, or its name."),
]
NoBrowserOption = Annotated[
    bool,
    typer.Option("--no-browser", help="Print the address, which works once within a minute."),
]


def dashboard(
    context: typer.Context, job: OneJobArgument = None, no_browser: NoBrowserOption = False
) -> None:
    """Open the dashboard in a browser, signed in with the token of this command line."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        path = "/" if job is None else f"/jobs/{find_job(client, job).id}"
        open_page(terminal, client, path, no_browser=no_browser)


def open_page(terminal: Terminal, client: Client, path: str, *, no_browser: bool = False) -> bool:
    """Open a page in a browser, or print an address to open; tells whether a browser opened."""
    address = f"{client.url}{path}#code={client.buy_sign_in_code().code}"
    if not no_browser and open_in_browser(address):
        terminal.print_message(f"Opened {client.url}{path} in a browser.")
        return True
    terminal.write_line(address)
    terminal.print_message("Open this address within a minute; it signs you in once.")
    return False


def open_in_browser(address: str) -> bool:
    """Open an address in a browser with windows; tells whether there is one."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # A browser of text would take this terminal, and shows no page that is drawn by a script.
    if PurePath(browser.name).name in TEXT_BROWSERS:
        return False
    return browser.open(address)
