"""The evaluation tasks that a set of tables allows, and means of their errors by group of tables.

Names of tables are paths; groups form by their first part, and by their last where several share
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, ParamSpec

import numpy as np

from scavenger.models.epochs import LawFamily
from scavenger.models.forms import Topology
from scavenger.offline.evaluation.prediction_errors import (
    EpochsAccuracy,
    NoiseAccuracy,
    StepTimeAccuracy,
    epochs_accuracy,
    noise_accuracy,
    step_time_accuracy,
)
from scavenger.offline.evaluation.regret import Regret, RegretObjective, regrets
from scavenger.offline.evaluation.sampling import Design, DesignName, Restriction, SearchDesign
from scavenger.offline.tables.files import MeasurementTables
from scavenger.offline.tables.runs import EpochsTable, common_target, nearest_ancestor
from scavenger.offline.tables.steps import StepTable


def groups_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return groups with their members: one by first part, and within it one by last word.

    A last part makes a group where it is a word, not a figure, several tables share it, and
    others end in another word.

    >>> list(groups_of(["p/a/x", "p/b/x", "p/a/y", "p/b/y"]))
    ['p', 'p/*/x', 'p/*/y']
    """
    by_first: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        by_first[name.partition("/")[0]].append(name)
    groups: dict[str, tuple[str, ...]] = {}
    for first, members in by_first.items():
        groups[first] = tuple(members)
        groups |= groups_by_last(first, members)
    return groups


def groups_by_last(first: str, members: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return groups of the tables under one first part that end in the same word."""
    by_last: dict[str, list[str]] = defaultdict(list)
    for name in members:
        last = name.rpartition("/")[2]
        if name.count("/") > 1 and not last.replace(".", "").isdigit():
            by_last[last].append(name)
    shared = {last: names for last, names in by_last.items() if len(names) > 1}
    if len(shared) < 2:
        return {}
    return {f"{first}/*/{last}": tuple(names) for last, names in sorted(shared.items())}


EvaluationFinding = StepTimeAccuracy | EpochsAccuracy | NoiseAccuracy | Regret
EvaluationTask = Callable[[], tuple[EvaluationFinding, ...]]
EvaluatedFigure = Literal["step_time", "epochs", "noise"] | RegretObjective

EPOCH_BATCHES = (2, 3)
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """What is evaluated, and how.

    Attributes:
        points: Numbers of probed configurations to fit to.
        laws: Laws to compare.
        restriction: Which part of each table of seconds counts.
        topology: How gradients travelled where a table does not say.
        designs: How the configurations to fit to are chosen.
    """

    points: tuple[int, ...] = (4, 6, 8)
    laws: tuple[LawFamily, ...] = ("measured", "paper")
    restriction: Restriction = Restriction()  # noqa: RUF009
    topology: Topology = "all_reduce"
    designs: tuple[Design, ...] = (SearchDesign(),)


@dataclass(frozen=True, slots=True)
class GroupMean:
    """Mean over the tables of a group.

    Attributes:
        group: Name of the group; empty for all tables.
        figure: What the error is of: predicted seconds, predicted epochs, predicted noise, or
            the regret of an objective.
        laws: Laws it was predicted with.
        points: Configurations or batches the laws were fitted to.
        design: How configurations were chosen; extreme batches are what a search knows first.
        tables: Tables the mean is over.
        error: Mean of the tables' errors, each table once.
        covered: Share of all predictions inside their 80 % band; for objectives with a deadline
            the share of choices that meet it; None where there is neither.
    """

    group: str
    figure: EvaluatedFigure
    laws: LawFamily
    points: int
    design: DesignName
    tables: int
    error: float
    covered: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well the laws predict what tables hold.

    Attributes:
        step_times: Seconds per iteration.
        epochs: Epochs to target.
        noise: Gradient noise.
        regrets: Choices.
        means: Means of all of these by group, all tables first.
    """

    step_times: tuple[StepTimeAccuracy, ...]
    epochs: tuple[EpochsAccuracy, ...]
    noise: tuple[NoiseAccuracy, ...]
    regrets: tuple[Regret, ...]
    means: tuple[GroupMean, ...]


def list_tasks(tables: MeasurementTables, scope: EvaluationScope) -> tuple[EvaluationTask, ...]:
    """Return what there is to evaluate, so that a caller can show how far it has come."""
    epochs = list_epochs_tables(tables)
    return (
        *steps_tasks(tables.steps, scope),
        *epochs_tasks(epochs, scope),
        *(partial(as_findings, noise_accuracy, table) for table in tables.noise),
        *regret_tasks(tables.steps, epochs, scope),
    )


def list_epochs_tables(tables: MeasurementTables) -> tuple[EpochsTable, ...]:
    """Return the tables of epochs, and those that metrics along runs tell."""
    told = ((table.name, common_target(table)) for table in tables.noise)
    return (
        *tables.epochs,
        *(EpochsTable(name, target.runs) for name, target in told if target is not None),
    )


def steps_tasks(tables: Iterable[StepTable], scope: EvaluationScope) -> Iterator[EvaluationTask]:
    """Yield a task for each table of seconds, number of points, design and laws."""
    for table in tables:
        topology = table.topology or scope.topology
        for points, design, laws in product(scope.points, scope.designs, scope.laws):
            yield partial(
                as_findings,
                step_time_accuracy,
                table,
                points,
                laws,
                scope.restriction,
                topology,
                design,
            )


def epochs_tasks(tables: Iterable[EpochsTable], scope: EvaluationScope) -> Iterator[EvaluationTask]:
    """Yield a task for each table of epochs, number of batches and laws."""
    for table, batches, laws in product(tables, EPOCH_BATCHES, scope.laws):
        yield partial(as_findings, epochs_accuracy, table, batches, laws)


def as_findings(
    predict: Callable[_P, EvaluationFinding | None], *args: _P.args, **kwargs: _P.kwargs
) -> tuple[EvaluationFinding, ...]:
    """Return what a prediction found; nothing where the table is too small for it."""
    found = predict(*args, **kwargs)
    return () if found is None else (found,)


def regret_tasks(
    steps: Iterable[StepTable], epochs: Iterable[EpochsTable], scope: EvaluationScope
) -> Iterator[EvaluationTask]:
    """Yield a task of choices for each table of seconds whose epochs are known."""
    by_name = {table.name: table for table in epochs}
    for table in steps:
        name = nearest_ancestor(table.name, by_name)
        if name is None:
            continue
        runs, topology = by_name[name].runs, table.topology or scope.topology
        for points, design, laws in product(scope.points, scope.designs, scope.laws):
            yield partial(regrets, table, runs, points, laws, scope.restriction, topology, design)


def summarise_findings(findings: Iterable[EvaluationFinding]) -> Evaluation:
    """Put findings together with their means by group."""
    found = tuple(findings)
    return Evaluation(
        step_times=tuple(each for each in found if isinstance(each, StepTimeAccuracy)),
        epochs=tuple(each for each in found if isinstance(each, EpochsAccuracy)),
        noise=tuple(each for each in found if isinstance(each, NoiseAccuracy)),
        regrets=tuple(each for each in found if isinstance(each, Regret)),
        means=tuple(means_of(found)),
    )


MeanSeries = tuple[EvaluatedFigure, LawFamily, int, DesignName]


@dataclass(frozen=True, slots=True)
class MeanEntry:
    """One finding in the terms that means are made of."""

    table: str
    series: MeanSeries
    error: float
    covered: float | None
    weight: int


def means_of(findings: Iterable[EvaluationFinding]) -> Iterator[GroupMean]:
    """Yield the mean of every figure over all tables, then over each group."""
    entries = [entry for finding in findings for entry in entries_of(finding)]
    # By what was measured, so that a table of seconds does not split the groups of epochs.
    for series in dict.fromkeys(entry.series for entry in entries):
        own = [entry for entry in entries if entry.series == series]
        groups = groups_of([entry.table for entry in own])
        if len(groups) > 1:
            groups = {"": tuple(entry.table for entry in own), **groups}
        for group, members in groups.items():
            yield mean_of(group, series, [entry for entry in own if entry.table in members])


def entries_of(finding: EvaluationFinding) -> Iterator[MeanEntry]:
    """Yield what a finding contributes to means."""
    match finding:
        case StepTimeAccuracy(table=table, laws=laws, points=points, design=design):
            series: MeanSeries = ("step_time", laws, points, design)
            yield MeanEntry(table, series, finding.error, finding.covered, finding.rest)
        case EpochsAccuracy(table=table, laws=laws, batches=batches):
            series = ("epochs", laws, batches, "search")
            yield MeanEntry(table, series, finding.error, finding.covered, finding.rest)
        case NoiseAccuracy(table=table):
            yield MeanEntry(table, ("noise", "measured", 2, "search"), finding.error, None, 1)
            yield MeanEntry(table, ("noise", "paper", 2, "search"), finding.root_error, None, 1)
        case Regret(table=table, laws=laws, points=points, design=design, wish=wish):
            met = 1 - finding.late if "in_time" in wish else None
            series = (wish, laws, points, design)
            yield MeanEntry(table, series, finding.regret, met, finding.windows)


def mean_of(group: str, series: MeanSeries, entries: list[MeanEntry]) -> GroupMean:
    """Return the mean of a group: of errors over tables, of coverage over all predictions."""
    figure, laws, points, design = series
    shares = [(entry.covered, entry.weight) for entry in entries if entry.covered is not None]
    covered = (
        float(np.average([share for share, _ in shares], weights=[weight for _, weight in shares]))
        if shares
        else None
    )
    return GroupMean(
        group=group,
        figure=figure,
        laws=laws,
        points=points,
        design=design,
        tables=len({entry.table for entry in entries}),
        error=float(np.mean([entry.error for entry in entries])),
        covered=covered,
    )
