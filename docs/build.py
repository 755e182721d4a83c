"""Builds the documentation as a site: ``python -m docs.build site``.

Zensical turns the pages into HTML. This program prepares what it reads: the navigation follows
the tables of ``docs/index.md``, so that each page is listed once, and each problem gets a page at
the path of its ``type``, with the text that the controller serves there. Afterwards it checks that
every link leads to a page and a heading of the site, and that no page loads a file from elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from service.api.problems import PROBLEM_TYPES, problem_uri
from service.api.routes.reference import pages

DOCS = Path(__file__).parent
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE_LINK = re.compile(r"\[([^\]]+)\]\(([\w/.-]+\.md)\)")
LOADED_BY_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
# Every other element with an address loads it.
FOLLOWED_BY_READERS = ("a", "area")

Navigation = list[str | dict[str, "str | Navigation"]]


def build(site: Path) -> list[str]:
    """Build the site in a directory, which is emptied first.

    Returns:
        What is wrong with it, one sentence each.

    Raises:
        subprocess.CalledProcessError: Zensical refused a page, and printed why.
    """
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"], cwd=directory, check=True
        )
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(Path(directory, "site"), site)
    return list(faults(site))


def prepare(directory: Path) -> None:
    """Write what Zensical reads into a directory: its settings, and the pages."""
    sources = directory / "docs"
    shutil.copytree(DOCS, sources, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    for path, text in pages().items():
        page = sources / f"{path.lstrip('/')}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    (sources / "problems.md").write_text(catalog((DOCS / "problems.md").read_text()))
    settings = (DOCS.parent / "mkdocs.yml").read_text()
    named = yaml.safe_dump({"nav": navigation((DOCS / "index.md").read_text())}, sort_keys=False)
    (directory / "mkdocs.yml").write_text(settings + named)


def navigation(index: str) -> Navigation:
    """Return the pages of the site by task, as the index orders and names them."""
    found: Navigation = [{"Overview": "index.md"}]
    _, *parts = SECTION.split(index)
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        listed: Navigation = []
        for name, path in PAGE_LINK.findall(text):
            if path == "problems.md":
                listed.append(
                    {name: [path, *(f"{problem_path(code)}.md" for code in PROBLEM_TYPES)]}
                )
            else:
                listed.append({name: path})
        found.append({title: listed})
    return found


def catalog(page: str) -> str:
    """Return the page that lists all problems: its introduction, and a row for each."""
    introduction, _, _ = page.partition("\n## ")
    rows = [
        f"| {kind.status} | [`{code}`]({problem_path(code)}.md) | {kind.title} |"
        for code, kind in PROBLEM_TYPES.items()
    ]
    return "\n".join([introduction, "| Status | Code | Title |", "|---|---|---|", *rows, ""])


def problem_path(code: str) -> str:
    """Return the place of a problem's page below the site."""
    return problem_uri(code).lstrip("/")


@dataclass(slots=True)
class SitePage:
    """What a page of the site refers to, and can be referred to by.

    Attributes:
        anchors: Names of its headings and other places.
        followed: Addresses that a reader may follow.
        loaded: Addresses that a browser loads with the page.
    """

    anchors: set[str] = field(default_factory=set)
    followed: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class PageReader(HTMLParser):
    """Reads the addresses and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = SitePage()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.page.anchors.add(value)
            elif name in ("href", "src") and value:
                is_followed = tag in FOLLOWED_BY_READERS
                (self.page.followed if is_followed else self.page.loaded).append(value)


def faults(site: Path) -> Iterator[str]:
    """Yield each link of a site that leads nowhere, and each file that is loaded from elsewhere."""
    site = site.resolve()
    read = {file: read_page(file) for file in sorted(site.rglob("*.html"))}
    for file, page in read.items():
        here = file.relative_to(site)
        for address in page.loaded:
            if is_elsewhere(address):
                yield f"{here} loads {address}: bring it with the documentation"
        for address in page.followed + page.loaded:
            if not is_elsewhere(address) and not leads_somewhere(address, file, site, read):
                yield f"{here} links to {address}, which is not there"
    for file in sorted(site.rglob("*.css")):
        for address in LOADED_BY_STYLES.findall(file.read_text()):
            yield f"{file.relative_to(site)} loads {address}: bring it with the documentation"


def read_page(file: Path) -> SitePage:
    """Return what a page of HTML refers to."""
    reader = PageReader()
    reader.feed(file.read_text("utf-8"))
    return reader.page


def is_elsewhere(address: str) -> bool:
    """Whether an address is not one of this site."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def leads_somewhere(address: str, file: Path, site: Path, read: Mapping[Path, SitePage]) -> bool:
    """Whether an address on a page is that of a file of the site, and of a place in it."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return True
    path = unquote(parts.path)
    start = site if path.startswith("/") else file.parent
    target = (start / path.lstrip("/")).resolve() if path else file
    if target.is_dir():
        target /= "index.html"
    if target not in read or not parts.fragment:
        return target.is_file()
    return unquote(parts.fragment) in read[target].anchors


if __name__ == "__main__":
    wrong = build(Path(sys.argv[1]))
    print("\n".join(wrong) or f"the documentation is in {sys.argv[1]}")
    sys.exit(bool(wrong))
