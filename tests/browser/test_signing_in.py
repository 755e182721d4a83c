"""Who is let in, who is put out, and what is shown while the controller is away."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Watched
from tests.browser.visit import sign_in
from tests.controller import Controller


def test_a_controller_without_jobs_says_how_to_begin(page: Page) -> None:
    expect(page.get_by_role("heading", name="No job yet")).to_be_visible()
    expect(page.get_by_label("Command line").first).to_have_text("scavenger init")


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_page_that_was_wanted(
    visitor: Watched, controller: Controller
) -> None:
    page = visitor.page()
    page.goto("/cost")
    page.get_by_label("Token").fill("scv_000000000000_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not know this token")
    page.get_by_label("Token").fill(controller.connection["token"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Cost", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_code_signs_in_once(visitor: Watched, controller: Controller) -> None:
    page = visitor.page()
    code = controller.ask("POST", "/v1/session/codes").json()["code"]
    page.goto(f"/#code={code}")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert code not in page.url
    page.get_by_role("button", name="Sign out").click()
    page.goto("about:blank")
    page.goto(f"/#code={code}")
    expect(page.get_by_text("That link was used already")).to_be_visible()


def test_a_token_that_is_revoked_puts_its_pages_out(
    visitor: Watched, controller: Controller
) -> None:
    made = controller.ask("POST", "/v1/tokens", json={"name": "guest", "role": "viewer"}).json()
    page = visitor.page()
    page.goto("/")
    page.get_by_label("Token").fill(made["token"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("[data-live=live]")).to_be_visible()
    revoked = controller.ask("POST", f"/v1/tokens/{made['id']}/actions/revoke")
    assert revoked.is_success, revoked.text
    expect(page.get_by_text("Your session has ended")).to_be_visible()


@pytest.mark.slow
def test_while_the_controller_is_away_the_last_data_stay_and_are_marked_as_old(
    visitor: Watched, controller: Controller
) -> None:
    page = visitor.page()
    sign_in(page, controller)
    expect(page.locator("[data-live=live]")).to_be_visible()
    expect(page.get_by_role("heading", name="No job yet")).to_be_visible()
    dated = [page.get_by_role("main"), page.get_by_role("contentinfo")]
    for part in dated:
        expect(part).to_have_attribute("data-stale", "false")
    controller.kill()
    expect(page.locator("[data-live=gone]")).to_be_visible()
    expect(page.get_by_text("The controller does not answer since")).to_be_visible()
    expect(page.get_by_role("heading", name="No job yet")).to_be_visible()
    for part in dated:
        expect(part).to_have_attribute("data-stale", "true")
    controller.start()
    expect(page.locator("[data-live=live]")).to_be_visible()
    expect(page.get_by_text("The controller does not answer since")).to_be_hidden()
    for part in dated:
        expect(part).to_have_attribute("data-stale", "false")


@pytest.mark.slow
def test_a_page_that_is_opened_while_the_controller_is_away_comes_by_itself(
    visitor: Watched, controller: Controller
) -> None:
    page = visitor.page()
    sign_in(page, controller)
    expect(page.get_by_role("heading", name="No job yet")).to_be_visible()
    controller.kill()
    expect(page.locator("[data-live=gone]")).to_be_visible()
    page.get_by_role("link", name="Models", exact=True).click()
    expect(page.locator("[data-state=unloaded]")).to_contain_text("opens by itself")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="No job yet")).to_be_visible()
    page.get_by_role("link", name="Models", exact=True).click()
    expect(page.locator("[data-state=unloaded]")).to_be_visible()
    controller.start()
    expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()
    # What React says of the module that did not come is not of the page that came after it.
    assert all("dynamically imported module" in fault for fault in visitor.faults)
    visitor.faults.clear()
