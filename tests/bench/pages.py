"""Weight and speed of the dashboard: what is loaded, first paint, a limit moved on a large curve.

The list has 1 000 jobs beside those that train, the database as many records as are asked for, and
the large curve 2 000 options. One job has a million records of its own. An event counts from before
it is recorded until the page of its job shows it. Prints each figure beside its limit and fails
when one is missed. Other programs on the computer make figures worse. Run by ``make bench-pages``.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Engine, func, select, text

from service.dashboard_files import STATIC_DIRECTORY
from service.db.jobs import record_event
from service.db.schema import chunks
from tests.bench.load import percentile
from tests.browser.chromium import PATIENCE, chromium, watched
from tests.browser.gallery import JOB, Gallery, copy_jobs, gallery, settle
from tests.browser.pictures import database
from tests.browser.visit import shown_chart

FIRST_WEIGHT, WEIGHT = 250_000, 330_000  # bytes by gzip
FIRST_PAINT, INTERACTIVE, FRAME, ON_SCREEN = 0.5, 1.0, 0.05, 1.0  # seconds
SERIES, LONG_SERIES = 0.15, 0.5  # seconds
VISITS, MOVES, OPTIONS, EVENTS = 5, 40, 2000, 25
LONG_JOB, LONG_RECORDS = "job_0003", 1_000_000
PAUSE = 1.0  # seconds at most between two events, so that they fall anywhere between two looks
TRAINING = 100  # jobs that share the records: 100 000 each of ten million
# More reports of a job, like those it has, between the first and the last of them.
LENGTHEN = text("""
INSERT INTO chunks (received_at, worker, sequence, job, generation, rows, columns)
SELECT first + (last - first) * random(), like_it.worker, 1000000000 + n * like_it.rows,
    like_it.job, like_it.generation, like_it.rows, like_it.columns
FROM (SELECT * FROM chunks WHERE job = :job LIMIT 1) AS like_it,
    (SELECT min(received_at) AS first, max(received_at) AS last
        FROM chunks WHERE job = :job) AS span,
    LATERAL generate_series(1, :rows / like_it.rows) AS n
""")
# From the start of the navigation until rows are there, a click on the first was answered by the
# button that acts on what is selected, and the browser has drawn it.
CLICK_A_ROW = """
(() => {
  const find = (wanted, then) => () => {
    const found = wanted();
    if (found) then(found);
    else requestAnimationFrame(find(wanted, then));
  };
  const row = () => document.querySelectorAll("tr[data-job] [type=checkbox]")[20];
  const answer = () => [...document.querySelectorAll("main button")].find(
    (button) => button.textContent === "Cancel 1 job");
  const now = () => performance.now() / 1000;
  window.interactive = new Promise((tell) => find(row, (box) => {
    const shown = now();
    box.click();
    find(answer, () => requestAnimationFrame(() => setTimeout(() => tell([shown, now()]))))();
  })());
})();
"""
FIRST_PAINTED = """
() => new Promise((tell) => new PerformanceObserver((list) => {
  const [found] = list.getEntriesByName("first-contentful-paint");
  if (found) tell(found.startTime / 1000);
}).observe({type: "paint", buffered: true}))
"""
REQUESTS = """
() => performance.getEntriesByType("resource").filter((each) => each.name.includes("/v1/"))
  .map((each) => [each.name, each.startTime / 1000, each.responseEnd / 1000])
"""
FRAME_TIMES = """
async (moves) => {
  const slider = document.querySelector("[data-limit=maxCost]");
  slider.focus();
  const taken = [];
  for (let move = 0; move < moves; move++) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    const key = move % 20 < 10 ? "ArrowDown" : "ArrowUp";
    slider.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    taken.push((performance.now() - began) / 1000);
  }
  return taken;
}
"""


def main() -> int:
    """Print what was measured; 1 if a limit was missed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--jobs", type=int, default=1000)
    reader.add_argument("--records", type=int, default=10_000_000)
    asked = reader.parse_args()
    expect.set_options(timeout=1000 * PATIENCE)
    results = weigh(STATIC_DIRECTORY)
    began = time.monotonic()
    with (
        database() as engine,
        gallery(engine, TRAINING, asked.records) as place,
        chromium() as browser,
    ):
        fill(engine, asked.jobs, min(LONG_RECORDS, asked.records))
        print(f"  {count_records(engine):,} records, filled in {time.monotonic() - began:.0f} s")
        results += time_list(browser, place)
        results.append(time_series(place, JOB, SERIES))
        results.append(time_series(place, LONG_JOB, LONG_SERIES))
        results.append(time_limit(browser, place))
        results.append(time_events(engine, browser, place))
    return 0 if all(results) else 1


def fill(engine: Engine, jobs: int, records: int) -> None:
    """Add jobs, and records to the one that is to have many."""
    with engine.begin() as connection:
        copy_jobs(connection, jobs)
        known = count_records(engine, LONG_JOB)
        connection.execute(LENGTHEN, {"job": LONG_JOB, "rows": max(0, records - known)})


def count_records(engine: Engine, job: str | None = None) -> int:
    query = select(func.coalesce(func.sum(chunks.c.rows), 0))
    with engine.connect() as connection:
        return int(
            connection.execute(query.where(chunks.c.job == job) if job else query).scalar_one()
        )


def told(what: str, value: float, limit: float, unit: str) -> bool:
    """Print a figure beside its limit; whether it is kept."""
    verdict = "ok" if value <= limit else "MISSED"
    print(f"  {what:40} {value:10,.3f} of {limit:10,.3f} {unit} {verdict}", flush=True)
    return value <= limit


def weigh(static: Path) -> list[bool]:
    """Weigh what the first page loads, and all there is."""
    sizes = {
        file.relative_to(static).as_posix(): len(gzip.compress(file.read_bytes()))
        for file in static.rglob("*.*")
    }
    first = set(re.findall(r'(?:src|href)="/?(assets/[^"]+)"', (static / "index.html").read_text()))
    return [
        told("first page", sum(sizes[name] for name in first | {"index.html"}), FIRST_WEIGHT, "B"),
        told("all pages", sum(sizes.values()), WEIGHT, "B"),
    ]


def time_list(browser: Browser, place: Gallery) -> list[bool]:
    """Time the list of jobs in browsers that are signed in; the best of several visits."""
    painted, shown, interactive = [], [], []
    for _ in range(VISITS):
        with watched(browser, place.url) as visitor:
            before = visitor.page()
            place.enter(before)
            settle(before)
            expect(before.get_by_role("contentinfo", name="Status")).to_contain_text("machine")
            before.close()  # else two pages would be timed
            page = visitor.page()
            page.add_init_script(CLICK_A_ROW)
            page.goto("/jobs")
            rows, answered = page.evaluate("window.interactive")
            requests = page.evaluate(REQUESTS)
            painted.append(first_paint(page))
            # A busy computer may draw the first picture after the script has done its work.
            shown.append(max(rows, painted[-1]))
            interactive.append(max(answered, painted[-1]))
    for address, began, ended in requests:
        print(f"  {urlsplit(address).path:40} from {began:6.3f} to {ended:6.3f} s")
    return [
        told("first paint of the list, best", min(painted), FIRST_PAINT, "s"),
        told("rows of the list shown, best", min(shown), INTERACTIVE, "s"),
        told("a click on a row answered, best", min(interactive), INTERACTIVE, "s"),
    ]


def first_paint(page: Page) -> float:
    return float(page.evaluate(FIRST_PAINTED))


def time_series(place: Gallery, job: str, limit: float) -> bool:
    """Time three series of one job, at 2 000 points."""
    path = f"/v1/jobs/{job}/telemetry?series=step_time,compute_time,sync_time&points=2000"
    taken = []
    for _ in range(VISITS):
        began = time.perf_counter()
        answer = place.ask("GET", path)
        taken.append(time.perf_counter() - began)
        assert answer.is_success, answer.text
    return told(f"three series of {job}, median", statistics.median(taken), limit, "s")


def time_events(engine: Engine, browser: Browser, place: Gallery) -> bool:
    """Time events from before they are recorded until a page shows them."""
    taken = []
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.goto(f"/jobs/{JOB}/events")
        settle(page)
        for number in range(EVENTS):
            said = f"bench event {number:03}"
            began = time.perf_counter()
            with engine.begin() as connection:
                record_event(connection, JOB, datetime.now(UTC), "bench", said)
            page.get_by_text(said).first.wait_for()
            taken.append(time.perf_counter() - began)
            page.wait_for_timeout(PAUSE * 1000 * random.random())
    return told(f"{EVENTS} events to the screen, p95", percentile(taken, 0.95), ON_SCREEN, "s")


def time_limit(browser: Browser, place: Gallery) -> bool:
    """Time frames while a limit is moved over a curve of many options."""
    curve = place.ask("GET", f"/v1/jobs/{JOB}/curve").json()
    large = enlarged(curve)
    with watched(browser, place.url) as visitor:
        page = visitor.page()
        place.enter(page)
        page.route(f"**/v1/jobs/{JOB}/curve", lambda route: route.fulfill(json=large))
        page.route("**/curve/whatif*", lambda route: route.fulfill(json=large))
        page.goto(f"/jobs/{JOB}/curve")
        shown_chart(page)
        frames = page.evaluate(FRAME_TIMES, MOVES)
    return told(f"a move over {OPTIONS} options, median", statistics.median(frames), FRAME, "s")


def enlarged(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve with many options, each a little slower and dearer than the one it copies."""
    points = list(curve["points"])
    while len(points) < OPTIONS:
        like = points[len(points) % len(curve["points"])]
        share = 1 + len(points) / OPTIONS
        batch = like["global_batch"] + len(points)
        points.append(
            {
                **like,
                "id": f"k{like['workers']}-b{batch}",
                "global_batch": batch,
                "time": like["time"] * share,
                "cost": str(float(like["cost"]) * share),
                "on_front": False,
            }
        )
    return {**curve, "points": points}


if __name__ == "__main__":
    sys.exit(main())
