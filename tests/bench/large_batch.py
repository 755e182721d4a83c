"""What eight times the batch costs under each learning-rate rule, in accuracy and in epochs.

A small network learns handwritten digits. First every rule trains the same number of epochs, as in
Goyal et al.; then each trains to a goal at several batches, and the service's own fit of the epoch
law says which arm it sees. Run by ``make bench-large-batch``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

import torch
from rich.console import Console
from rich.table import Table

from scavenger.learning_rate import LearningRateRule, prior_kappa
from tests.bench.rules import (
    BATCHES,
    EPOCHS,
    GOAL,
    LARGE,
    LAW_SEEDS,
    PLAIN,
    RATE,
    SMALL,
    Law,
    Outcome,
    Recipe,
    find_law,
    losses_of,
    scaled,
    train,
)

WARM_UP = 2.0
SEEDS = range(5)
ALLOWED = 0.005  # accuracy that the large batch may lose
RATES = (0.01, RATE, 0.05, 0.1)
COMPARED = 512  # the largest batch that every rule can train

NONE, LINEAR, WARM = scaled("none"), scaled("linear"), scaled("linear", WARM_UP)
SQRT, ADASCALE = scaled("sqrt"), scaled("adascale")
RECIPES = {
    f"batch {SMALL}": PLAIN,
    "none": NONE,
    "linear": LINEAR,
    "linear, warm-up": WARM,
    "sqrt": SQRT,
    "adascale": ADASCALE,
}
RULES: tuple[LearningRateRule, ...] = ("none", "linear", "sqrt", "adascale")
PROMISED: tuple[LearningRateRule, ...] = ("none", "linear")


def main() -> int:
    """Measure and print; 1 if a promise is broken."""
    torch.set_num_threads(1)
    console = Console()
    with console.status("training digits, some minutes"):
        console.print(to_accuracies())
        laws = {rule: find_law(rule) for rule in RULES}
        console.print(to_laws(laws))
        console.print(to_rates())
    promises = {
        f"linear with warm-up loses at most {ALLOWED:.1%}": lost(WARM) <= ALLOWED,
        f"none loses more than {ALLOWED:.1%}": lost(NONE) > ALLOWED,
        **{f"{rule}: the arm chosen is the one seen": laws[rule].is_met for rule in PROMISED},
    }
    for promise, is_kept in promises.items():
        console.print(f"{'met   ' if is_kept else 'missed'} {promise}", highlight=False)
    return int(not all(promises.values()))


def lost(recipe: Recipe) -> float:
    """Mean accuracy lost against the small batch."""
    return fmean(losses_of(recipe, SEEDS))


def to_accuracies() -> Table:
    """Lay the rules below the small batch."""
    title = f"Digits after {EPOCHS} epochs, batch {LARGE}, {len(SEEDS)} seeds"
    table = lay_out(title, "", "accuracy", "sd", f"to {GOAL:.0%}", "lost", "error", "verdict")
    for name, recipe in RECIPES.items():
        runs = [train(recipe, seed) for seed in SEEDS]
        accuracies = [100 * run.accuracy for run in runs]
        table.add_row(
            name,
            *(f"{fmean(accuracies):.2f}", f"{stdev(accuracies):.2f}", epochs_of(runs)),
            *(judge(recipe) if recipe != PLAIN else ()),
        )
    return table


def epochs_of(runs: Sequence[Outcome]) -> str:
    """Say how many epochs the goal took."""
    reached = [run.epochs_to_goal for run in runs if run.epochs_to_goal is not None]
    return f"{fmean(reached):.1f}" if len(reached) == len(runs) else "never"


def judge(recipe: Recipe) -> tuple[str, str, str]:
    """Say what was lost, with the standard error of that mean, and whether it may be."""
    losses = [100 * loss for loss in losses_of(recipe, SEEDS)]
    error = stdev(losses) / len(losses) ** 0.5
    verdict = "kept" if lost(recipe) <= ALLOWED else "lost"
    return f"{fmean(losses):+.2f}", f"{error:.2f}", verdict


def to_laws(laws: Mapping[LearningRateRule, Law]) -> Table:
    """Lay what was assumed before any run beside what was seen."""
    title = f"Epochs to {GOAL:.0%} by batch, geometric means of {len(LAW_SEEDS)} seeds"
    kappas = ("φ", "κ assumed", "κ learned", "B_crit")
    rises = (f"×{COMPARED // SMALL} assumed", "fitted", "seen")
    table = lay_out(title, "rule", *map(str, BATCHES), *kappas, *rises)
    for rule, law in laws.items():
        critical = law.fitted.critical_batch
        table.add_row(
            rule,
            *(f"{law.epochs[b]:.1f}" if b in law.epochs else "never" for b in BATCHES),
            *(f"{law.noise_scale:.0f}", f"{prior_kappa(rule):g}", f"{law.kappa.value:.2f}"),
            "none" if critical is None else f"{critical:.0f}",
            *(f"{each.relative_epochs(COMPARED, SMALL):.2f}" for each in (law.assumed, law.fitted)),
            f"{law.seen(COMPARED):.2f}",
        )
    return table


def to_rates() -> Table:
    """Lay other learning rates of the small batch below each other."""
    names = [f"batch {SMALL}", "none", "sqrt", "linear, warm-up"]
    title = f"Accuracy at batch {LARGE} by the rate written for batch {SMALL}"
    table = lay_out(title, "rate", *names)
    for rate in RATES:
        recipes = [replace(RECIPES[name], rate=rate) for name in names]
        means = [fmean(train(recipe, seed).accuracy for seed in LAW_SEEDS) for recipe in recipes]
        table.add_row(f"{rate:g}", *(f"{100 * mean:.1f}" for mean in means))
    return table


def lay_out(title: str, first: str, *headings: str) -> Table:
    """Return a table with words in its first column and numbers in the others."""
    table = Table(title=title)
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


if __name__ == "__main__":
    sys.exit(main())
