"""What a cloud does while a job trains in it, in words, and its bill beside the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.demo_report import render_heading
from scavenger.cli.output import (
    ResponsiveTable,
    Terminal,
    format_amount,
    format_dollars,
    format_seconds,
    number_column,
    pluralize,
    render_facts,
    word_column,
)
from scavenger.cli.watch import HappenedMoment
from scavenger.schemas.jobs import JobView
from service.ledger import MONEY_RESOLUTION
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import Machine, Reason

ENDS = {
    Reason.ORDERED: "the controller ended it",
    Reason.POWERED_OFF: "it powered itself off",
    Reason.PREPAID: "its paid time was over",
    Reason.INTERRUPTED: "the cloud took it back",
}
MARKETS = {"on_demand": "on demand", "spot": "on spot"}


@dataclass(frozen=True, slots=True)
class Narrator:
    """Prints a line for each machine that a cloud makes or ends."""

    terminal: Terminal

    def began(self, machine: Machine) -> None:
        request = machine.request
        self._tell(
            f"launches {machine.id}: {request.machine_type} in {request.zone}, "
            f"{MARKETS[request.market]}, ${machine.price_per_hour:g}/h and its disk"
        )

    def ended(self, machine: Machine) -> None:
        lived = format_seconds(machine.ends_at - machine.created_at)
        why = ENDS.get(machine.stop.reason, machine.stop.reason.value)
        self._tell(f"{machine.id} has ended after {lived}: {why}")

    def _tell(self, message: str) -> None:
        self.terminal.stdout.print(HappenedMoment("", "EC2", message))


BILL_COLUMNS = (
    word_column("MACHINE"),
    word_column("TYPE", 3),
    word_column("ZONE", 2),
    number_column("RAN"),
    number_column("BILLED"),
    number_column("COST"),
    word_column("ENDED", 1),
)


def render_bill(cloud: FakeCloud, job: JobView) -> RenderableType:
    """Render what the cloud bills, beside what the controller booked and what it may spend."""
    bill, left = cloud.bill(), 0
    rows = []
    for line in bill.lines:
        machine = cloud.find(line.machine)
        tariff = cloud.settings.tariffs[machine.request.machine_type]
        left += machine.gone_at > bill.until
        rows.append(
            (
                line.machine,
                machine.request.machine_type,
                machine.request.zone,
                format_seconds(line.life),
                format_seconds(float(tariff.billed(line.life))),
                format_dollars(line.dollars),
                ENDS.get(machine.stop.reason, machine.stop.reason.value),
            )
        )
    facts = [
        ("bill", f"{format_dollars(bill.total)}, what EC2 charges: a minute at least"),
        ("ledger", f"{format_amount(job.cost.accrued)}, what the controller booked"),
        ("cap", f"{format_amount(job.cost.cap)}, what the job may cost"),
        ("left", pluralize(left, "machine")),
    ]
    title = f"The bill: {pluralize(len(rows), 'machine')}, {format_dollars(bill.total)}"
    return Group(
        render_heading(6, title), ResponsiveTable(BILL_COLUMNS, rows), Text(), render_facts(facts)
    )


def is_covered(cloud: FakeCloud, job: JobView) -> bool:
    """Tell whether the bill is at most what was booked, and that at most the cap."""
    accrued, cap = job.cost.accrued.amount, job.cost.cap
    # A page rounds what the ledger has of each machine.
    is_booked = cloud.bill().total <= accrued + 1000 * MONEY_RESOLUTION
    return is_booked and (cap is None or accrued <= cap.amount)
