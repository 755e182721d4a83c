"""The story of the product: find a job, read its curve, move a limit, take a cheaper point."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

import pytest
from playwright.sync_api import Browser, Locator, Page, Response, expect

from scavenger.cluster import ClusterConfig
from scavenger.schemas.jobs import JobView
from tests.browser.chromium import watched
from tests.browser.conftest import paced
from tests.browser.visit import click_mark, config_id, open_curve, shown_chart, sign_in, tab_to
from tests.controller import Controller

JOB = "story"


@pytest.fixture(scope="module")
def job(controller: Controller) -> Iterator[str]:
    """A job whose search is over, for all tests of this file: it trains for an hour."""
    job = controller.submit(paced(JOB))
    controller.wait(lambda: controller.curve(job).chosen is not None)
    yield job
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")


@pytest.fixture(scope="module")
def fast(controller: Controller, job: str) -> ClusterConfig:
    """The fastest configuration: which batch it has, measurements on this computer decide."""
    fastest = controller.curve(job).fastest
    assert fastest is not None
    return ClusterConfig(fastest.workers, fastest.global_batch)


@pytest.fixture
def fast_job(controller: Controller, job: str, fast: ClusterConfig) -> str:
    """The same job, where it is fastest, with the limits that it was submitted with."""
    limits = {"limits": {"max_cost": paced(JOB)["limits"]["max_cost"]}}
    assert controller.ask("PATCH", f"/v1/jobs/{job}", json=limits).status_code == 202
    order_resize(controller, job, fast)
    return job


def order_resize(controller: Controller, job: str, config: ClusterConfig) -> None:
    """Order a configuration by the API, and wait until the job trains on it."""
    to = {"workers": config.workers, "global_batch": config.global_batch}
    answer = controller.ask("POST", f"/v1/jobs/{job}/actions/resize", json={"to": to})
    assert answer.status_code == 202, answer.text
    wait_until_applied(controller, job, config)


def wait_until_applied(controller: Controller, job: str, config: ClusterConfig) -> JobView:
    def applied() -> JobView | None:
        view = controller.job(job)
        is_there = view.applied is not None and config_id(view.applied) == config_id(config)
        return view if is_there and view.workers_alive == config.workers else None

    return controller.wait(applied)


def running_mark(page: Page, config: ClusterConfig) -> Locator:
    return page.locator(f"[data-role=running][data-config={config_id(config)}]")


def cheapest_mark(page: Page) -> Locator:
    """The end of the front as the page draws it, which is the cheapest option."""
    return shown_chart(page).locator("[data-front]").last


def cheaper_config(controller: Controller, job: str, option: str | None) -> ClusterConfig:
    """Return the configuration of an option, which by the API costs less than the running one."""
    curve = controller.curve(job)
    options = {option.id: option for option in curve.points}
    found = options[option or ""]
    assert curve.current is not None
    assert Decimal(found.cost) < Decimal(options[config_id(curve.current)].cost)
    return ClusterConfig(found.workers, found.global_batch)


def test_a_cheaper_point_is_taken_with_the_mouse(
    page: Page, controller: Controller, fast_job: str, fast: ClusterConfig
) -> None:
    chart = open_curve(page, JOB)
    expect(running_mark(page, fast)).to_be_visible()
    expect(page.locator("[data-summary]")).to_contain_text("on the front")
    mark = cheapest_mark(page)
    cheap = cheaper_config(controller, fast_job, mark.get_attribute("data-config"))
    click_mark(mark)
    selection = page.get_by_role("region", name="Selection")
    expect(selection.get_by_role("heading", name=str(cheap))).to_be_visible()
    selection.get_by_role("button", name="Apply now").click()
    dialog = page.get_by_role("alertdialog", name=re.compile("^Resize"))
    expect(dialog).to_contain_text("Saves about $")
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(dialog).to_be_hidden()
    wait_until_applied(controller, fast_job, cheap)
    expect(running_mark(page, cheap)).to_be_visible()
    expect(running_mark(page, fast)).to_have_count(0)
    expect(chart.locator("[data-role=pinned]")).to_have_attribute("data-config", config_id(cheap))


def test_a_job_is_pinned_where_it_runs_without_a_resize(
    page: Page, controller: Controller, fast_job: str
) -> None:
    controller.ask("POST", f"/v1/jobs/{fast_job}/actions/resize", json={"to": "fastest"})
    controller.wait(lambda: not controller.job(fast_job).open_orders)
    before = controller.wait(lambda: settled(controller.job(fast_job)))
    assert before.applied is not None
    here = config_id(before.applied)
    chart = open_curve(page, JOB)
    flag = chart.locator("[data-role=pinned]")
    expect(flag).to_have_count(0)
    page.locator(f"tr[data-config={here}]").click()
    selection = page.get_by_role("region", name="Selection")
    selection.get_by_role("button", name="⚑ Pin").click()
    dialog = page.get_by_role("alertdialog", name=re.compile("^Pin"))
    dialog.get_by_role("button", name="Pin", exact=True).click()
    expect(flag).to_have_attribute("data-config", here)
    expect(selection.get_by_role("button", name="Unpin")).to_be_visible()
    assert controller.job(fast_job).generation == before.generation


def settled(job: JobView) -> JobView | None:
    """Return a job that has got where it was told to be."""
    return job if job.applied is not None and job.applied == job.target else None


def test_a_limit_is_moved_with_the_mouse_and_applied(
    page: Page, controller: Controller, fast_job: str
) -> None:
    chart = open_curve(page, JOB)
    before = controller.job(fast_job).cost.cap
    slider = chart.get_by_role("slider", name="max_cost")
    grip = slider.locator("rect").last
    box = grip.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 60, steps=4)
    page.mouse.up()
    words = re.compile(r"^\$.*; excludes \d+ of 4 options")
    expect(slider).to_have_attribute("aria-valuetext", words)
    expect(page.get_by_text("What if: nothing is changed yet.")).to_be_visible()
    assert controller.job(fast_job).cost.cap == before
    page.get_by_role("button", name="Apply these limits").click()
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        page.get_by_role("alertdialog").get_by_role("button", name="Apply", exact=True).click()
    # What is left of the other limit shrinks with every second; sent along, it would change it.
    assert [*sent.value.post_data_json["limits"]] == ["max_cost"]
    expect(page.get_by_text("What if: nothing is changed yet.")).to_be_hidden()
    after = controller.job(fast_job).cost.cap
    assert before is not None
    assert after is not None
    assert after.amount < before.amount


@pytest.mark.slow
def test_the_whole_story_by_keyboard_alone(
    page: Page, controller: Controller, fast_job: str
) -> None:
    tab_to(page, page.get_by_role("searchbox", name="Name or id"))
    page.keyboard.type(JOB)
    link = page.get_by_role("link", name=JOB, exact=True)
    expect(link).to_have_count(1)
    tab_to(page, link)
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("link", name="Curve", exact=True))
    page.keyboard.press("Enter")
    chart = shown_chart(page)
    slider = chart.get_by_role("slider", name="max_time")
    tab_to(page, slider)
    before = slider.get_attribute("data-value")
    page.keyboard.press("PageDown")
    expect(slider).not_to_have_attribute("data-value", before or "")
    tab_to(page, page.get_by_role("button", name="Back to what holds"))
    page.keyboard.press("Enter")
    expect(slider).to_have_attribute("data-value", re.compile("."))
    page.keyboard.press("Home")
    tab_to(page, chart.locator("[data-front][tabindex='0']"))
    page.keyboard.press("End")
    mark = cheapest_mark(page)
    expect(mark).to_be_focused()
    cheap = cheaper_config(controller, fast_job, mark.get_attribute("data-config"))
    table = page.get_by_role("region", name="Options", exact=True)
    page.keyboard.press("t")
    expect(table).to_be_hidden()
    page.keyboard.press("T")
    expect(table).to_be_focused()
    mark.focus()
    page.keyboard.press("Enter")
    apply = page.get_by_role("button", name="Apply now")
    tab_to(page, apply)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("alertdialog", name=re.compile("^Resize"))
    expect(dialog).to_be_visible()
    tab_to(page, dialog.get_by_role("button", name="Apply", exact=True))
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    wait_until_applied(controller, fast_job, cheap)
    expect(running_mark(page, cheap)).to_be_visible()


@pytest.mark.slow
def test_of_two_people_who_order_at_once_one_is_shown_what_the_other_decided(
    page: Page, browser: Browser, controller: Controller, fast_job: str
) -> None:
    refused: list[int] = []
    with watched(browser, controller.connection["url"]) as other:
        theirs = other.page()
        sign_in(theirs, controller)
        for each in (page, theirs):
            each.on("response", lambda answer: note_refusal(answer, refused))
            open_curve(each, JOB)
            click_mark(cheapest_mark(each))
            each.get_by_role("button", name="Apply now").click()
            expect(each.get_by_role("alertdialog")).to_be_visible()
        selected = page.locator("[data-selected]").get_attribute("data-selected")
        cheap = cheaper_config(controller, fast_job, selected)
        for each in (page, theirs):
            each.get_by_role("button", name="Apply", exact=True).click()
        dialog = theirs.get_by_role("alertdialog")
        expect(page.get_by_role("alertdialog")).to_be_hidden()
        expect(dialog).to_contain_text("Something was decided since this page was shown")
        assert refused == [412]
        dialog.get_by_role("button", name="I have read it: ask again").click()
        expect(dialog.get_by_role("button", name="Apply", exact=True)).to_be_enabled()
    wait_until_applied(controller, fast_job, cheap)


def note_refusal(answer: Response, refused: list[int]) -> None:
    if answer.request.method == "POST" and answer.status >= 400:
        refused.append(answer.status)


def test_a_loss_that_is_nan_is_said_and_breaks_no_page(page: Page, controller: Controller) -> None:
    run = paced("nan")["run"] | {"env": {"NAN_FROM": "30"}}
    limits = {"workers": 1, "batch": 16, "max_cost": "50 USD"}
    job = controller.submit(paced("nan", run=run, limits=limits))
    controller.wait(lambda: controller.job(job).progress.diverged)
    page.get_by_role("searchbox", name="Name or id").fill("nan")
    page.get_by_role("link", name="nan", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="NaN")).to_be_visible()
    page.get_by_role("link", name="Telemetry", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("not finite")
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
