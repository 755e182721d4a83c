"""What the demo tells afterwards: what was measured, what was chosen, and what it saved."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from scavenger.cli.curve_plot import plot_curve
from scavenger.cli.curve_table import law_facts, point_at, show_points
from scavenger.cli.figures import (
    configuration,
    cost_to_target,
    counted,
    dollars,
    milliseconds,
    money,
    number,
    percent,
    span,
    time_to_target,
    words,
)
from scavenger.cli.fitted_table import FittedTable, figure, key_figure, name, word
from scavenger.cli.job_table import phase_of, show_facts
from scavenger.cli.probe_table import show_probes, show_resizes
from scavenger.view import CurveView, JobView, Money, PointView

Cells = tuple[str, ...]
# On a quiet computer two measurements of a configuration differ by less.
AGREEMENT = 0.2


def tell_first_job(job: JobView, curve: CurveView, *, width: int) -> RenderableType:
    """Tell the story of the job that searched."""
    return Group(
        *tell_probes(curve),
        *tell_curve(curve, width),
        *tell_choice(curve),
        *tell_resizes(curve),
        *tell_outcome(job, curve),
    )


def heading(number_of: int, title: str) -> RenderableType:
    """Return the heading of a chapter."""
    return Group(Text(), Text(f"{number_of}  {title}", "bold"))


def tell_probes(curve: CurveView) -> list[RenderableType]:
    """Tell what was measured."""
    if not curve.probes:
        title = "Nothing was probed: a stored model was reused"
        return [heading(1, title), indented(words(curve.source))]
    seconds = sum(probe.seconds for probe in curve.probes)
    cost = sum(probe.cost for probe in curve.probes)
    probes = f"{counted(len(curve.probes), 'probe')} of {counted(len(curve.points), 'choice')}"
    title = f"While it trained, {probes} took {span(seconds)} and {dollars(cost)}"
    return [heading(1, title), show_probes(curve.probes)]


def tell_curve(curve: CurveView, width: int) -> list[RenderableType]:
    """Tell the laws, and the curve that follows from them."""
    if not curve.points:
        return [heading(2, "No curve: too little was measured")]
    laws = [] if curve.laws is None else law_facts(curve.laws, curve.points)
    return [
        heading(2, "What was measured gives laws, and the laws a curve of cost and time"),
        show_facts(laws),
        Text(),
        plot_curve(curve, width=min(width, 100)),
        Text(),
        show_points(curve),
    ]


def tell_choice(curve: CurveView) -> list[RenderableType]:
    """Tell the configuration that was chosen, and why."""
    return [heading(3, f"Chosen: {configuration(curve.chosen)}"), indented(words(curve.why))]


def indented(text: Text) -> RenderableType:
    """Indent a text, every line of it."""
    return Padding(text, (0, 0, 0, 2))


def tell_resizes(curve: CurveView) -> list[RenderableType]:
    """Tell every change of configuration."""
    changes = [resize for resize in curve.resizes if resize.before is not None]
    if not changes:
        return [heading(4, "It never had to change its configuration")]
    pauses = [resize.pause for resize in changes if resize.pause is not None]
    lost = sum(resize.iterations_lost or 0 for resize in changes)
    paused = f", {span(sum(pauses))} of pause" if pauses else ""
    title = f"{counted(len(changes), 'resize')} while it ran{paused}, {lost} iterations lost"
    return [heading(4, title), show_resizes(changes)]


def tell_outcome(job: JobView, curve: CurveView) -> list[RenderableType]:
    """Tell what was reached, and what the choice saved against the start."""
    reached = " · ".join(f"{name} {number(value)}" for name, value in job.progress.metrics.items())
    title = Text.assemble("5  Outcome: ", phase_of(job), f"  {reached}", style="bold")
    spent = (
        f"{span(job.elapsed)} and {money(job.cost.accrued)} in all, "
        f"{money(job.cost.search)} of it searching ({search_share(job)})"
    )
    return [
        Text(),
        title,
        show_facts([("reason", job.reason), ("took", spent), *check_prediction(job, curve)]),
        *tell_saving(curve),
    ]


def check_prediction(job: JobView, curve: CurveView) -> list[tuple[str, str]]:
    """Compare the iteration that was predicted with the one that was seen in the end."""
    point = point_at(curve, curve.chosen)
    if point is None or job.indicators is None or job.applied != curve.chosen:
        return []
    predicted, seen = point.step_time, job.indicators.step_time
    if predicted <= 0 or seen <= 0:
        return []
    off = f"{round(100 * (predicted / seen - 1)):+d} %"
    line = f"{milliseconds(predicted)} predicted, {milliseconds(seen)} seen ({off})"
    return [("iteration", line), *check_probe(point.measured_step_time, seen)]


def check_probe(probed: float | None, seen: float) -> list[tuple[str, str]]:
    """Say so when one configuration took much more or less time than while it was probed."""
    if not probed or abs(seen / probed - 1) <= AGREEMENT:
        return []
    how = "slower" if seen > probed else "faster"
    said = (
        f"{how} now than while it was probed ({milliseconds(probed)}): other programs on this "
        "computer come and go, and every time above is of one moment or the other"
    )
    return [("careful", said)]


def search_share(job: JobView) -> str:
    """Write the share of the cost that searching took."""
    accrued = float(job.cost.accrued.amount)
    return percent(float(job.cost.search.amount) / accrued) if accrued > 0 else "0 %"


def tell_saving(curve: CurveView) -> list[RenderableType]:
    """Compare the whole training on the chosen configuration with that on the start's."""
    start, chosen = point_at(curve, curve.start), point_at(curve, curve.chosen)
    if start is None or chosen is None:
        return []
    basis = curve.basis
    columns = (name("WHOLE TRAINING ON"), name("CONFIG"), figure("TIME", 1), figure("COST", 1))
    rows = [prediction_row("start", start, basis), prediction_row("chosen", chosen, basis)]
    rows.append(("", "", faster(start.time, chosen.time), cheaper(start.cost, chosen.cost)))
    if start == chosen:
        dearest = max(curve.points, key=lambda point: point.cost)
        rows = [
            prediction_row("start, and chosen", chosen, basis),
            prediction_row("dearest", dearest, basis),
        ]
    return [Text(), FittedTable(columns, rows)]


def prediction_row(name: str, point: PointView, basis: str) -> Cells:
    """Return the cells of one configuration."""
    time, cost = time_to_target(point.time, basis), cost_to_target(point.cost, basis)
    return (name, configuration(point), time, cost)


def faster(before: float, after: float) -> str:
    """Say how much faster something became.

    >>> faster(30.0, 10.0), faster(10.0, 30.0), faster(1.0, 1.0)
    ('3.0× faster', '3.0× slower', 'as fast')
    """
    if before <= 0 or after <= 0:
        return ""
    if abs(before / after - 1) < 0.005:
        return "as fast"
    if after < before:
        return f"{factor(before / after)} faster"
    return f"{factor(after / before)} slower"


def factor(ratio: float) -> str:
    """Write a factor, with as many digits as tell it from 1.

    >>> factor(1.034), factor(3.31)
    ('1.03×', '3.3×')
    """
    return f"{ratio:.2f}×" if ratio < 1.1 else f"{ratio:.1f}×"


def cheaper(before: float, after: float) -> str:
    """Say how much cheaper something became.

    >>> cheaper(4.0, 1.0), cheaper(1.0, 1.5), cheaper(1.0, 1.0)
    ('75 % cheaper', '50 % dearer', 'as cheap')
    """
    if before <= 0:
        return ""
    if abs(after / before - 1) < 0.005:
        return "as cheap"
    change = percent(abs(after / before - 1))
    return f"{change} cheaper" if after < before else f"{change} dearer"


def tell_second_job(
    first: JobView, second: JobView, first_curve: CurveView, second_curve: CurveView
) -> RenderableType:
    """Tell that the same job needs no search the second time, and what that saves."""
    probes = len(second_curve.probes)
    title = f"The same job again: {counted(probes, 'probe')}"
    columns = (
        name("JOB"),
        word("SEARCH", 2),
        key_figure("CONFIG"),
        figure("TIME", 1),
        figure("COST", 1),
        figure("SEARCHING", 3),
    )
    rows = [
        job_row("first", first, first_curve),
        job_row("second", second, second_curve),
        (
            "",
            "",
            "",
            faster(first.elapsed, second.elapsed),
            cheaper(amount(first.cost.accrued), amount(second.cost.accrued)),
            "",
        ),
    ]
    facts = [("search", second.search), ("outcome", f"{second.phase.value}: {second.reason}")]
    return Group(heading(6, title), show_facts(facts), Text(), FittedTable(columns, rows))


def job_row(name: str, job: JobView, curve: CurveView) -> Cells:
    """Return the cells of one job as it really went."""
    return (
        name,
        counted(len(curve.probes), "probe"),
        configuration(curve.chosen),
        span(job.elapsed),
        money(job.cost.accrued),
        money(job.cost.search),
    )


def amount(value: Money) -> float:
    """Return an amount of money as a number to compare."""
    return float(value.amount)
