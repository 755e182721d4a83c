"""What a person does on the pages: sign in, find a job, look at the curve, walk by keyboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.controller import Controller

MOST_TABS = 120
MARKS = """
(svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("path[data-x], g[data-x]")].map((mark) => {
    const origin = mark.getScreenCTM();
    return {
      role: mark.dataset.role, config: mark.dataset.config,
      time: Number(mark.dataset.x), cost: Number(mark.dataset.y),
      left: origin.e - frame.left, top: origin.f - frame.top,
    };
  });
}
"""


@dataclass(frozen=True, slots=True)
class PlottedMark:
    """A mark of the chart as the browser has drawn it, in pixels from the corner of the chart."""

    role: str
    config: str | None
    time: float
    cost: float
    left: float
    top: float


def sign_in(page: Page, controller: Controller) -> None:
    """Open the page as ``scavenger dashboard`` does, with a one-time code."""
    code = controller.ask("POST", "/v1/session/codes").json()["code"]
    page.goto(f"/#code={code}")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def open_curve(page: Page, name: str) -> Locator:
    """Find a job by its name, open its curve and return the chart."""
    page.get_by_role("searchbox", name="Name or id").fill(name)
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("link", name="Curve", exact=True).click()
    return shown_chart(page)


def shown_chart(page: Page) -> Locator:
    chart = page.locator("svg[data-chart=curve]")
    expect(chart).to_be_visible()
    return chart


def marks(chart: Locator) -> list[PlottedMark]:
    """Return every mark that stands for an option."""
    return [PlottedMark(**mark) for mark in chart.evaluate(MARKS)]


def expected_place(chart: Locator, time: float, cost: float) -> tuple[float, float]:
    """Return where the axes of a chart put a time and a cost."""
    plot, times, costs = (
        [float(part) for part in (chart.get_attribute(f"data-{name}") or "").split(",")]
        for name in ("plot", "time-domain", "cost-domain")
    )
    left, top, width, height = plot
    if chart.get_attribute("data-axes") == "log":
        time, cost = math.log(time), math.log(cost)
        times, costs = [math.log(end) for end in times], [math.log(end) for end in costs]
    share_of_time = (time - times[0]) / (times[1] - times[0])
    share_of_cost = (cost - costs[0]) / (costs[1] - costs[0])
    return left + width * share_of_time, top + height * (1 - share_of_cost)


def click_mark(mark: Locator) -> None:
    """Click an option of the front on its sign, beside which its error bars may reach far."""
    mark.scroll_into_view_if_needed()
    box = mark.locator("circle").first.bounding_box()
    assert box is not None
    mark.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until an element has the focus, as a person without a mouse does."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if target.count() == 1 and target.evaluate("each => each === document.activeElement"):
            return
    focused = page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    raise AssertionError(f"Tab does not reach {target}; the focus is on {focused}")


def config_id(config: Any) -> str:
    """Return how the chart calls a configuration."""
    return f"k{config.workers}-b{config.global_batch}"
