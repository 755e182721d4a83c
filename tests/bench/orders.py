"""Seconds from an order to the published Directive that obeys it. Run by ``make bench-orders``.

One job of two workers on this computer is ordered to and fro between two batches, for which it has
all machines. A user's clock starts before the request is sent, and stops when its event is read;
the controller's starts when the order is stored, and stops when the tick begins that publishes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from scavenger.schemas.orders import OrderView
from tests.acceptance.test_orders import is_on
from tests.acceptance.test_told_to_leave import training
from tests.controller import Controller

ORDERS = 20
LOOK = 0.02  # seconds between two looks


def main() -> None:
    """Print median, 95th percentile and the slowest of the orders; fail if the goal is missed."""
    with tempfile.TemporaryDirectory(prefix="scavenger-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with Controller(directory / "home") as controller:
            seen, own = ordered(controller, directory / "work")
    print(f"{len(seen)} orders, seconds to the published Directive: median, p95, slowest")
    for name, seconds in (("user", seen), ("controller", own)):
        figures = (median(seconds), quantiles(seconds, n=20)[-1], max(seconds))
        print(f"{name:12}" + "".join(f"{figure:8.2f}" for figure in figures))
    sys.exit(0 if median(seen) <= 1.0 else 1)


def ordered(controller: Controller, work: Path) -> tuple[list[float], list[float]]:
    """Return how long each order took, by the user's clock and by the controller's."""
    limits = {"workers": 2, "batch": [24, 48], "max_cost": "1 USD"}
    job = controller.submit({**training(work, workers=2), "level": "control", "limits": limits})
    controller.wait(lambda: controller.job(job).progress.iteration > 5)
    seconds, own = [], []
    for number in range(ORDERS + 1):
        batch = (24, 48)[number % 2]
        last = controller.events(job)[-1].sequence
        began = time.monotonic()
        wish = {"to": {"workers": 2, "global_batch": batch}}
        answer = controller.ask("POST", f"/v1/jobs/{job}/actions/resize", json=wish)
        while not is_resized(controller, job, last, batch):
            time.sleep(LOOK)
        seconds.append(time.monotonic() - began)
        given = OrderView.model_validate_json(answer.text)
        published = controller.curve(job).resizes[-1].at
        own.append((published - given.at).total_seconds())
        controller.wait(lambda batch=batch: is_on(controller, job, 2, batch))  # type: ignore[misc]
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    controller.finished(job)
    return seconds[1:], own[1:]  # the first ends the search


def is_resized(controller: Controller, job: str, last: int, batch: int) -> bool:
    """Whether an event tells of a Directive with a batch."""
    found = controller.ask("GET", f"/v1/jobs/{job}/events?after={last}").json()["events"]
    return any(
        each["kind"] == "resize" and each["data"].get("global_batch") == batch for each in found
    )


if __name__ == "__main__":
    main()
