"""Every command there is, each with a line to type and what its ``-o json`` is read as.

``tests/integration/test_every_command.py`` types them, and ``tests/docs/command_reference.py``
writes the schemas into the docs. A command without a line here fails both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scavenger.cli.evaluate import Evaluation
from scavenger.cli.main import MainCommands
from scavenger.cli.simulate import ComparisonResult
from scavenger.client.notebook import ShownCurve
from scavenger.errors import ExitCode
from scavenger.schemas.access import NewTokenView, TokenList, TokenView
from scavenger.schemas.diagnostics import DiagnosticsView, VersionView
from scavenger.schemas.events import EventList
from scavenger.schemas.jobs import JobList, JobView
from scavenger.schemas.machines import MachineList, SweepList
from scavenger.schemas.models import ForgottenModelView, ModelDetailView, StoredModelList
from scavenger.schemas.orders import OrderList
from scavenger.schemas.plans import PlanView
from scavenger.schemas.prices import CostReportView, OfferList, PriceImportView, PriceList
from scavenger.schemas.telemetry import LogList
from scavenger.schemas.webhooks import DeliveryList, DeliveryView, WebhookList, WebhookView
from tests.contract.host import DOOMED, JOB, PREY, THERE

ENDED = "job_3"
UNKNOWN = "job_unknown"
HOOK = THERE["{webhook}"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line to type.

    Attributes:
        words: What stands after ``scavenger``; ``{place}`` is a directory with files.
        view: What ``-o json`` writes; None for a command that writes no result.
        code: Exit code.
        lacking: The line with an id that is nowhere; empty where a command takes none.
        asks: Whether it asks a controller.
        has_names: Whether there is anything to name.
    """

    words: str
    view: Any = None
    code: ExitCode = ExitCode.SUCCESS
    lacking: str = ""
    asks: bool = True
    has_names: bool = True


LINES: dict[str, Line | None] = {
    "demo": None,
    "serve": None,
    "agent": None,
    "admin backup": None,
    "admin restore": None,
    "init": Line("init {place} --force", asks=False),
    "dashboard": Line(f"dashboard {JOB} --no-browser", lacking=f"dashboard {UNKNOWN}"),
    "doctor": Line("doctor --home {place}", DiagnosticsView, ExitCode.OTHER, asks=False),
    "plan": Line("plan {place}/job.yaml", PlanView),
    "explain": Line(f"explain {JOB}", ShownCurve, lacking=f"explain {UNKNOWN}"),
    "stacks": Line(f"stacks {JOB}", ShownCurve, lacking=f"stacks {UNKNOWN}"),
    "submit": Line("submit {place}/job.yaml", JobView),
    "list": Line("list", JobList),
    "show": Line(f"show {JOB}", JobView, lacking=f"show {UNKNOWN}"),
    "watch": Line(f"watch {ENDED}", JobView, ExitCode.CANCELLED, f"watch {UNKNOWN}"),
    "curve": Line(f"curve {JOB}", ShownCurve, lacking=f"curve {UNKNOWN}"),
    "events": Line(f"events {JOB}", EventList, lacking=f"events {UNKNOWN}"),
    "export": Line(
        f"export {JOB} {{place}} --to mlflow",
        code=ExitCode.NOT_FOUND,
        lacking=f"export {UNKNOWN} {{place}} --to mlflow",
    ),
    "resize": Line(f"resize {JOB} --to 2,128 --yes", lacking=f"resize {UNKNOWN} --to auto --yes"),
    "probe": Line(f"probe {JOB} 1,128", lacking=f"probe {UNKNOWN} 1,128"),
    "pause": Line(f"pause {JOB}", lacking=f"pause {UNKNOWN}"),
    "resume": Line(f"resume {JOB}", None, ExitCode.CONFLICT, f"resume {UNKNOWN}"),
    "limit": Line(f"limit {JOB} --max-time 3h", lacking=f"limit {UNKNOWN} --max-time 3h"),
    "orders": Line(f"orders {JOB}", OrderList, lacking=f"orders {UNKNOWN}", has_names=False),
    "cancel": Line(f"cancel {JOB} --yes", lacking=f"cancel {UNKNOWN} --yes"),
    "logs": Line(f"logs {JOB}", LogList, lacking=f"logs {UNKNOWN}", has_names=False),
    "version": Line("version", VersionView),
    "model list": Line("model list", StoredModelList),
    "model show": Line("model show signature-1", ModelDetailView, lacking="model show nothing"),
    "model forget": Line(
        "model forget signature-4 --yes", ForgottenModelView, lacking="model forget nothing --yes"
    ),
    "machine list": Line("machine list", MachineList, lacking=f"machine list --job {UNKNOWN}"),
    "offers": Line("offers", OfferList, has_names=False),
    "prices": Line("prices", PriceList),
    "prices import": Line("prices import {place}/prices.csv", PriceImportView, has_names=False),
    "cost": Line("cost", CostReportView, has_names=False),
    "simulate": Line(
        "simulate --strategy none --seeds 1 --workers 8,20 --batches 384,1024",
        ComparisonResult,
        asks=False,
    ),
    "fit": Line("fit {place}/steps.csv --laws paper", dict[str, Any], asks=False),
    "evaluate": Line("evaluate {place}/steps.csv --points 4", Evaluation, asks=False),
    "token create": Line("token create ci", NewTokenView),
    "token list": Line("token list", TokenList),
    "token revoke": Line(f"token revoke {PREY.id}", TokenView, lacking="token revoke zzz"),
    "webhook create": Line("webhook create https://hooks.example.org/events", WebhookView),
    "webhook list": Line("webhook list", WebhookList),
    "webhook show": Line(f"webhook show {HOOK}", DeliveryList, lacking="webhook show whk_0"),
    "webhook test": Line(
        f"webhook test {HOOK}", DeliveryView, ExitCode.OTHER, "webhook test whk_0"
    ),
    "webhook replay": Line(
        f"webhook replay {HOOK} {THERE['{delivery}']}",
        DeliveryView,
        lacking=f"webhook replay {HOOK} 999",
    ),
    "webhook rotate": Line(f"webhook rotate {HOOK}", WebhookView, lacking="webhook rotate x"),
    "webhook enable": Line(f"webhook enable {HOOK}", WebhookView, lacking="webhook enable x"),
    "webhook disable": Line(
        f"webhook disable {DOOMED['{webhook}']}", WebhookView, lacking="webhook disable x"
    ),
    "webhook delete": Line(f"webhook delete {DOOMED['{webhook}']}", lacking="webhook delete x"),
    "admin sweep": Line("admin sweep", SweepList),
}


def walk(group: Any = None, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command there is, as its words; groups that work by themselves are commands."""
    inside = MainCommands(name="scavenger").load_all() if group is None else group.commands
    for name, command in inside.items():
        words = (*above, name)
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield words, command
        if hasattr(command, "commands"):
            yield from walk(command, words)


def takes_output(command: Any) -> bool:
    """Tell whether a command takes ``-o``."""
    return any("--output" in option.opts for option in command.params)
