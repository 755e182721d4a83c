"""A link into the middle of a page leads to a heading that is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_docs import FENCE, LINK, PAGES, named, prose


def anchors(text: str) -> set[str]:
    """Return what a forge makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[str, str]]:
    return [
        (named(page), link)
        for page in PAGES
        for link in sorted(set(LINK.findall(prose(page))))
        if "#" in link and "://" not in link
    ]


@pytest.mark.parametrize(("page", "link"), links())
def test_a_heading_that_is_linked_to_is_there(page: str, link: str) -> None:
    source = next(each for each in PAGES if named(each) == page)
    path, _, anchor = link.partition("#")
    target = source.parent / path if path else source
    assert anchor in anchors(target.read_text()), f"{page}: {link}"
