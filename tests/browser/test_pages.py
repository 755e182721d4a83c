"""Every page of a controller with something of each kind: accessible, in bounds, and true."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import Connection, Engine, create_engine, text

from scavenger.protocol import LogBatch, LogLine
from scavenger.schemas.curves import CurveView
from scavenger.schemas.jobs import JobPhase
from service.db import clock, curves, jobs, log_lines
from service.postgres.server import EmbeddedPostgres
from tests.browser.chromium import Watched, watched
from tests.browser.gallery import JOB, OTHER, PAGES, Gallery, copy_jobs, gallery, settle
from tests.browser.visit import click_mark, expected_place, marks, shown_chart, tab_to

GRAVE = ("serious", "critical")
# All that differs between light and dark.
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
PIXEL = 1.0
MANY = 1000
REPLAYED = "job_0003"
FINISHED = re.compile(r"Finished: .*; predicted for K=.* were .*\([+−].*%\) and \$.*\([+−].*%\)")
MOVE_JOBS = text("UPDATE jobs SET project = 'vision' WHERE id LIKE 'many_000%'")
MOVED = 9


@pytest.fixture(scope="module")
def filled(postgres: EmbeddedPostgres, admin: Connection) -> Iterator[Engine]:
    """One database for all tests of this file, of which only the last ones change it."""
    admin.execute(text("CREATE DATABASE gallery TEMPLATE template"))
    engine = create_engine(postgres.url("gallery"))
    yield engine
    engine.dispose()
    admin.execute(text("DROP DATABASE gallery WITH (FORCE)"))


@pytest.fixture(scope="module")
def place(filled: Engine) -> Iterator[Gallery]:
    with gallery(filled) as place:
        yield place


@pytest.fixture(scope="module")
def many(filled: Engine, place: Gallery) -> Engine:
    """The same, with a thousand jobs more."""
    with filled.begin() as connection:
        copy_jobs(connection, MANY)
    return filled


@pytest.fixture
def visitor(browser: Browser, place: Gallery) -> Iterator[Watched]:
    with watched(browser, place.url) as visitor:
        yield visitor


def grave_faults(page: Page, where: str) -> list[str]:
    """Return what keeps some people from using the page, as axe judges it in light and dark."""
    found = Axe().run(page).response["violations"]
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html[data-theme=dark]")).to_be_attached()
    found += Axe().run(page, options=COLOURS).response["violations"]
    page.emulate_media(color_scheme="light")
    expect(page.locator("html[data-theme=light]")).to_be_attached()
    return [
        f"{where}: {fault['id']}: {node['html'][:120]}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]


def faults_of_pages(page: Page, pages: Mapping[str, str]) -> list[str]:
    faults = []
    for name, path in pages.items():
        page.goto(path)
        settle(page)
        faults += grave_faults(page, name)
    return faults


@pytest.mark.slow
def test_every_page_is_accessible(visitor: Watched, place: Gallery) -> None:
    page = visitor.page()
    page.goto("/")
    expect(page.get_by_label("Token")).to_be_visible()
    faults = grave_faults(page, "login")
    place.enter(page)
    assert faults + faults_of_pages(page, place.pages) == []


@pytest.mark.slow
def test_the_main_pages_and_every_dialog_are_accessible(visitor: Watched, place: Gallery) -> None:
    page = visitor.page()
    place.enter(page)
    main = {name: place.pages[name] for name in ("jobs", "job", "curve")}
    faults = faults_of_pages(page, main)
    marks_of_front = shown_chart(page).locator("[data-front]")
    marks_of_front.first.focus()
    for key, focused in (("Right", 1), ("Down", 2), ("Up", 1), ("Left", 0)):
        page.keyboard.press(f"Arrow{key}")
        expect(marks_of_front.nth(focused)).to_be_focused()
    page.keyboard.press("Enter")
    faults += grave_faults(page, "selection")
    for opens in ("Copy as CLI / API", "Pause", "Cancel job", "Apply now"):
        page.get_by_role("button", name=opens).first.click()
        dialog = page.get_by_role("dialog").or_(page.get_by_role("alertdialog"))
        expect(dialog).to_be_visible()
        faults += grave_faults(page, opens)
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option", name="Fleet")).to_be_visible()
    faults += grave_faults(page, "command palette")
    page.keyboard.type("pause")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alertdialog", name=re.compile("^Pause"))).to_be_visible()
    assert faults == []


@pytest.mark.parametrize(
    ("width", "zoom"), [(360, 1.0), pytest.param(1280, 2.0, marks=pytest.mark.slow)]
)
def test_a_narrow_or_enlarged_page_is_not_wider_than_its_window(
    width: int, zoom: float, browser: Browser, place: Gallery
) -> None:
    size = {"width": round(width / zoom), "height": round(720 / zoom)}
    with watched(browser, place.url, viewport=size, device_scale_factor=zoom) as visitor:
        page = visitor.page()
        place.enter(page)
        wide = []
        for name, path in place.pages.items():
            page.goto(path)
            settle(page)
            if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
                wide.append(f"{name} is {over} pixels too wide")
        assert wide == []


def test_each_mark_stands_where_the_numbers_of_the_api_say(
    visitor: Watched, place: Gallery
) -> None:
    page = visitor.page()
    place.enter(page)
    page.goto(PAGES["curve"])
    chart = shown_chart(page)
    left = CurveView.model_validate_json(place.ask("GET", f"/v1/jobs/{JOB}/curve").text)
    assert left.basis == "remaining"
    check_places(chart, left)
    page.get_by_role("button", name="log", exact=True).click()
    expect(chart).to_have_attribute("data-axes", "log")
    check_places(chart, left)
    with page.expect_response(re.compile("curve.basis=total")) as answered:
        page.get_by_role("button", name="total", exact=True).click()
    expect(page.get_by_text("of the whole job")).to_be_visible()
    check_places(chart, CurveView.model_validate(answered.value.json()))


def check_places(chart: Locator, told: CurveView) -> None:
    points = {point.id: point for point in told.points}
    shown = [mark for mark in marks(chart) if mark.config is not None]
    assert {mark.config for mark in shown} <= set(points)
    assert {config_of(front) for front in told.front} <= {mark.config for mark in shown}
    for mark in shown:
        assert mark.config is not None
        point = points[mark.config]
        assert (mark.time, mark.cost) == pytest.approx((point.time, float(point.cost)), rel=1e-12)
        if mark.role != "pinned":
            place_of_numbers = expected_place(chart, point.time, float(point.cost))
            assert (mark.left, mark.top) == pytest.approx(place_of_numbers, abs=PIXEL), mark


def config_of(front: object) -> str:
    return re.sub(r".*?(\d+).*?(\d+).*", r"k\1-b\2", str(front))


def test_roles_are_told_by_shape_without_colour(visitor: Watched, place: Gallery) -> None:
    page = visitor.page()
    place.enter(page)
    page.goto(PAGES["curve"])
    chart = shown_chart(page)
    click_mark(chart.locator("[data-front]").first)
    expect(chart.locator("[data-role=selected]")).to_be_visible()
    outlines = chart.evaluate("""
      (svg) => [...svg.querySelectorAll("path[data-role][transform]")].map((mark) => [
        mark.dataset.role,
        mark.getAttribute("d").replace(/[-\\d.]+/g, "") + getComputedStyle(mark).strokeDasharray
          + getComputedStyle(mark).fillOpacity + (getComputedStyle(mark).fill === "none"),
      ])
    """)
    shapes: dict[str, set[str]] = {}
    for role, outline in outlines:
        shapes.setdefault(role, set()).add(outline)
    assert {*shapes} == {"measured", "predicted", "infeasible", "knee", "running", "selected"}
    assert len({frozenset(each) for each in shapes.values()}) == len(shapes)


def test_jobs_beside_each_other_are_told_by_shape_and_name(
    visitor: Watched, place: Gallery
) -> None:
    page = visitor.page()
    place.enter(page)
    page.goto(PAGES["compare"])
    settle(page)
    shapes = set()
    for job in (JOB, OTHER):
        told = CurveView.model_validate_json(place.ask("GET", f"/v1/jobs/{job}/curve").text)
        drawn = page.locator(f"svg [data-job={job}] [data-config]")
        chosen = config_of(told.chosen)
        assert {each.get_attribute("data-config") for each in drawn.all()} == {
            *map(config_of, told.front),
            chosen,
        }
        filled_sign = page.locator(f"svg [data-job={job}] [data-role=measured]")
        expect(filled_sign).to_have_attribute("data-config", chosen)
        outline = drawn.first.get_attribute("d") or ""
        dash = page.locator(f"svg [data-job={job}] path").first.get_attribute("stroke-dasharray")
        shapes.add((re.sub(r"[-\d.]+", "", outline), dash))
        expect(page.get_by_label("Signs").get_by_text(job[-8:])).to_be_visible()
    assert len({shape for shape, _ in shapes}) == len({dash for _, dash in shapes}) == 2


def test_lines_come_as_they_are_printed_until_the_reader_pauses(
    filled: Engine, browser: Browser, place: Gallery
) -> None:
    machine = place.ask("GET", f"/v1/machines?job={JOB}").json()["machines"][0]["id"]

    def print_line(number: int) -> None:
        line = LogLine(number, datetime.now(UTC), f"epoch {number}")
        with filled.begin() as connection:
            log_lines.store_lines(connection, JOB, LogBatch(machine, number, (line,)))

    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.goto(PAGES["logs"])
        expect(page.locator("[data-lines=live]")).to_be_visible()
        print_line(1)
        expect(page.get_by_text("epoch 1")).to_be_visible()
        page.get_by_role("button", name="Pause lines").click()
        expect(page.locator("[data-lines=paused]")).to_be_visible()
        print_line(5)
        expect(page.get_by_text("epoch 5")).to_have_count(0)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_text("epoch 5")).to_be_visible()
        expect(page.get_by_text("3 lines not kept")).to_be_visible()
        assert grave_faults(page, "lines") == []


def test_a_curve_is_sorted_saved_replayed_relaxed_and_compared_with_what_came(
    filled: Engine, browser: Browser, place: Gallery
) -> None:
    path = f"/v1/jobs/{REPLAYED}/curve"
    drawn = CurveView.model_validate_json(place.ask("GET", path, params={"basis": "total"}).text)
    with filled.begin() as connection:
        now = clock.read(connection)
        for number in (1, 2, 3):
            seen = drawn.model_copy(update={"why": f"choice {number}", "chosen": drawn.front[0]})
            curves.store_curve(connection, REPLAYED, seen, now)
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.goto(f"/jobs/{REPLAYED}/curve")
        replay = page.get_by_role("slider", name="Decision")
        expect(replay).to_be_visible()  # it comes last, above all else, and moves what is below
        check_table(page, drawn)
        replay.press("Home")
        expect(page.get_by_text(re.compile("^Decision 1 of 3, .*choice 1$"))).to_be_visible()
        expect(page.get_by_text("This is the curve of an earlier decision.")).to_be_visible()
        page.get_by_role("button", name="Back to now").click()
        expect(page.get_by_text("Now, after 3 decisions.")).to_be_visible()
        page.get_by_role("textbox", name="max_cost").fill("0.0001")
        page.keyboard.press("Enter")
        excluded = page.locator("[data-state=all-infeasible]")
        expect(excluded).to_be_visible()
        offers = page.get_by_role("button", name=re.compile("^Raise .*K="))
        expect(offers).to_have_count(2)
        offers.first.click()
        expect(excluded).to_be_hidden()
        with filled.begin() as connection:
            end = {"phase": JobPhase.SUCCEEDED, "finished_at": now}
            jobs.change_outcome(connection, REPLAYED, **end)
        page.goto(f"/jobs/{REPLAYED}/curve")
        expect(page.locator("[data-state=finished]")).to_contain_text(FINISHED)


def check_table(page: Page, drawn: CurveView) -> None:
    """Check that the table twin sorts, and saves what it shows as CSV."""
    page.get_by_role("button", name="cost", exact=True).click()
    expect(page.get_by_role("columnheader", name="cost", exact=True)).to_have_attribute(
        "aria-sort", "ascending"
    )
    with page.expect_download() as saved:
        page.locator("[data-twin]").get_by_role("button", name="CSV").click()
    with saved.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    costs = [float(row["cost"]) for row in rows]
    assert costs == sorted(costs)
    assert {(int(row["workers"]), int(row["global_batch"])) for row in rows} == {
        (point.workers, point.global_batch) for point in drawn.points
    }


def test_a_view_is_saved_and_selected_jobs_are_cancelled_by_keyboard(
    filled: Engine, browser: Browser, place: Gallery
) -> None:
    with filled.begin() as connection:
        copy_jobs(connection, 1, "few")  # by its id the controller refuses to find it
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.goto("/jobs?phase=pending,training&since=2020-01-01T00:00:00Z")
        page.get_by_role("button", name="Views").press("Enter")
        page.get_by_label("Save what is shown as").fill("unfinished")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="unfinished")).to_be_visible()
        faults = grave_faults(page, "views")
        page.goto("/jobs")
        page.get_by_role("button", name="Views").press("Enter")
        page.get_by_role("link", name="unfinished").press("Enter")
        expect(page).to_have_url(re.compile("phase=pending"))
        expect(page.get_by_role("button", name="View: unfinished")).to_be_visible()
        for name in ("digits-4", "few-0001"):
            page.get_by_role("searchbox", name="Name or id").fill(name)
            expect(page.locator("tr[data-job]")).to_have_count(1)
            page.get_by_role("searchbox", name="Name or id").fill("")
            page.get_by_role("checkbox", name=f"Select {name}").press("Space")
        page.get_by_role("button", name="Cancel 2 jobs").press("Enter")
        dialog = page.get_by_role("alertdialog", name="Cancel 2 jobs?")
        expect(dialog).to_contain_text("spent and stay spent")
        faults += grave_faults(page, "bulk cancel")
        tab_to(page, dialog.get_by_role("button", name="Cancel all 2"))
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("status")).to_have_text("1 are cancelled, 1 were refused.")
        expect(dialog.locator("[data-result=cancelled]")).to_contain_text("digits-4")
        expect(dialog.locator("[data-result=refused]")).to_contain_text("no job of that id")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="View").press("Enter")
        page.get_by_role("button", name="Delete the view unfinished").press("Enter")
        expect(page.get_by_text("None yet: set filters")).to_be_visible()
        assert faults == []


@pytest.mark.usefixtures("many")
def test_a_thousand_jobs_are_listed_page_by_page_and_found_by_name(
    browser: Browser, place: Gallery
) -> None:
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        foot = page.get_by_text(re.compile(r"^\d+ rows$"))
        expect(foot).to_have_text("50 rows")
        for count in (100, 150):
            page.get_by_role("button", name="Older jobs").click()
            expect(foot).to_have_text(f"{count} rows")
        assert page.locator("tr[data-job]").count() < 100, "rows are made as they are seen"
        page.get_by_role("searchbox", name="Name or id").fill("many-0777")
        expect(page.locator("tr[data-job]")).to_have_count(1)
        expect(page.get_by_role("link", name="many-0777", exact=True)).to_be_visible()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox", name="Search pages")).to_be_focused()
        page.keyboard.type("many-0888")
        expect(page.get_by_role("option", name=re.compile("^many-0888"))).to_be_visible()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/jobs/many_0888$"))


def test_a_project_is_chosen_kept_and_in_the_address(
    many: Engine, browser: Browser, place: Gallery
) -> None:
    with many.begin() as connection:
        connection.execute(MOVE_JOBS)
    guest = {"name": "guest", "role": "viewer", "project": "vision"}
    assert place.ask("POST", "/v1/tokens", json=guest).is_success
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.get_by_label("Project").select_option("vision")
        expect(page.get_by_text(f"{MOVED} rows")).to_be_visible()
        expect(page).to_have_url(re.compile("/jobs.*project=vision"))
        page.get_by_role("link", name="Cost", exact=True).click()
        expect(page).to_have_url(re.compile("/cost.*project=vision"))
        expect(page.locator("[data-figure=total]")).to_have_attribute(
            "data-amount", re.compile("^0")
        )
        for name in ("Models", "Events"):
            page.get_by_role("link", name=name, exact=True).click()
            expect(page).to_have_url(re.compile(f"/{name.lower()}.*project=vision"))
            expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        page.get_by_role("link", name="Fleet", exact=True).click()
        expect(page).to_have_url(re.compile("/fleet.*project=vision"))
        expect(page.get_by_text("No machine of vision")).to_be_visible()
        page.get_by_label("Project").select_option("all projects")
        expect(page).to_have_url(re.compile("/fleet$"))
        expect(page.get_by_role("region", name="Machines")).to_be_visible()
