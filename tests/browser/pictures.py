"""Pictures of every page: three widths, light and dark, and all of them on one contact sheet.

Each page is drawn twice from the same answers. Two pictures that differ mean that something on the
page moves, follows the clock or comes in no order. Run by ``make screenshots``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import APIResponse, Browser, Page, Route, expect
from sqlalchemy import Engine, create_engine

from service.db.database import migrate
from service.postgres.server import EmbeddedPostgres
from tests.browser.chromium import PATIENCE, chromium, watched
from tests.browser.gallery import Gallery, gallery, settle
from tests.conftest import run

MOST_LOOKS = 8
WIDTHS, SCHEMES, HEIGHT = (360, 980, 1440), ("light", "dark"), 900
THUMBNAIL, MARGIN = 360, 12
# Shown in the documentation, the upper part: page, width, colours.
SHOWN_HEIGHT = 860
SHOWN = {("curve", 980, "light"): "dashboard.png"}
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
# A stream that is open and says nothing. One that Playwright answers would end, and begin again.
QUIET_STREAM = """
window.EventSource = class extends EventTarget {
  constructor() { super(); setTimeout(() => this.onopen?.()); }
  close() {}
};
"""
# The head of a table that sticks is drawn where it was first put, to a part of a pixel.
DRAW_AGAIN = """
() => {
  document.body.style.display = "none";
  void document.body.offsetHeight;
  document.body.style.display = "";
}
"""
# Text on a layer of its own has other edges than text on the page, and which it is depends on time.
STEADY = ("--disable-lcd-text", "--font-render-hinting=none", "--disable-partial-raster")


@dataclass(slots=True)
class Tape:
    """Answers of the controller, so that a page can be drawn again from the same ones."""

    answers: dict[str, APIResponse] = field(default_factory=dict)

    def answer(self, route: Route) -> None:
        """Answer a request of the page as it was answered first."""
        request = route.request
        asked = f"{request.method} {request.url} {request.post_data or ''}"
        if asked not in self.answers:
            self.answers[asked] = route.fetch()
        route.fulfill(response=self.answers[asked])


def main() -> int:
    """Draw all pictures; 1 if a page did not look the same twice."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=1000 * PATIENCE)
    with database() as engine, gallery(engine) as place, chromium(*STEADY) as browser:
        different = [
            name
            for scheme in SCHEMES
            for width in WIDTHS
            for name in draw(browser, place, scheme, width, directory)
        ]
    for (page, width, scheme), name in SHOWN.items():
        whole = Image.open(directory / f"{page}-{scheme}-{width}.png").convert("RGB")
        whole.crop((0, 0, whole.width, SHOWN_HEIGHT)).save(PICTURES / name, optimize=True)
    draw_contact_sheet(directory, list(place.pages))
    print("\n".join(f"{name} looked different when it was drawn again" for name in different))
    return bool(different)


@contextmanager
def database() -> Iterator[Engine]:
    """Run a Postgres until the end of a block, and connect to a fresh database."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        with EmbeddedPostgres(Path(place) / "postgres") as postgres:
            run(postgres, "CREATE DATABASE gallery")
            engine = create_engine(postgres.url("gallery"))
            migrate(engine)
            yield engine
            engine.dispose()


def draw(
    browser: Browser, place: Gallery, scheme: str, width: int, directory: Path
) -> Iterator[str]:
    """Draw every page twice, and yield the names of those that differed."""
    size = {"width": width, "height": HEIGHT}
    options = {"color_scheme": scheme, "viewport": size, "reduced_motion": "reduce"}
    with watched(browser, place.url, timezone_id="UTC", locale="en-GB", **options) as visitor:
        visitor.context.add_init_script(QUIET_STREAM)
        page = visitor.page()
        place.enter(page)
        tape = Tape()
        page.route("**/v1/**", lambda route: tape.answer(route))
        page.clock.set_fixed_time(datetime.now(UTC))
        for name, path in place.pages.items():
            file = directory / f"{name}-{scheme}-{width}.png"
            pictures = [take(page, path) for _ in range(2)]
            file.write_bytes(pictures[0])
            if pictures[0] != pictures[1]:
                file.with_suffix(".again.png").write_bytes(pictures[1])
                yield file.stem


def take(page: Page, path: str) -> bytes:
    """Open a page and return its picture, once it is the same twice in a row."""
    page.goto("about:blank")
    page.goto(path)
    settle(page)
    expect(page.locator("[data-live=live]")).to_be_visible()
    expect(page.get_by_role("contentinfo", name="Status")).to_contain_text("machine")
    page.evaluate("document.fonts.ready")
    page.evaluate(DRAW_AGAIN)
    picture = b""
    for _ in range(MOST_LOOKS):
        before, picture = (
            picture,
            page.screenshot(full_page=True, animations="disabled", caret="hide"),
        )
        if picture == before:  # what comes late has come
            break
    return picture


def draw_contact_sheet(directory: Path, names: list[str]) -> None:
    """Put all pictures on one sheet, a row for each page."""
    columns = [(scheme, width) for scheme in SCHEMES for width in WIDTHS]
    cell, line = THUMBNAIL + MARGIN, THUMBNAIL + MARGIN + 16
    sheet = Image.new("RGB", (cell * len(columns), line * len(names)), "#888888")
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        for column, (scheme, width) in enumerate(columns):
            picture = Image.open(directory / f"{name}-{scheme}-{width}.png").convert("RGB")
            share = THUMBNAIL / picture.width
            small = picture.resize((THUMBNAIL, max(round(picture.height * share), 1)))
            place = (column * cell, row * line + 16)
            sheet.paste(small.crop((0, 0, THUMBNAIL, THUMBNAIL)), place)
            pen.text((place[0], place[1] - 14), f"{name} {width} {scheme}", fill="white")
    sheet.save(directory / "contact-sheet.png")


if __name__ == "__main__":
    sys.exit(main())
