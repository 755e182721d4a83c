"""``scavenger agent selftest``: what the agent costs, measures and can do on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import typer
from rich.table import Table
from rich.text import Text

from scavenger.cli.exit_code import ExitCode
from scavenger.cli.terminal import open_console

MOST_OVERHEAD = 0.05  # of an iteration; the machine's own noise is part of what is measured
MOST_NOISE_ERROR = 1e-5
MOST_PAUSE = 2.0
MOST_DIFFERENCE = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: What it is.
        figure: What was measured, in words.
        bound: What it has to be, in words.
        is_met: Whether it is.
    """

    name: str
    figure: str
    bound: str
    is_met: bool


def selftest() -> None:
    """Try the agent here: what it costs, whether its noise is right, and a resize in rehearsal."""
    console = open_console()
    table = Table(title="The agent on this machine")
    for heading in ("check", "measured", "must be", ""):
        table.add_column(heading)
    failed = 0
    for doing, examine in STAGES:
        with console.status(doing):
            checks = list(attempt(doing, examine))
        for check in checks:
            mark = Text("✔", "green") if check.is_met else Text("✘", "red")
            table.add_row(check.name, check.figure, check.bound, mark)
            failed += not check.is_met
    console.print(table)
    if failed:
        console.print(
            f"{failed} of these failed. Training under the agent may be slow or wrong here: "
            "run it once more on an idle machine, and tell us if it stays so."
        )
        raise typer.Exit(ExitCode.FAILED)
    console.print("All is well: scripts with worker_agent.session() train here as they should.")


def attempt(doing: str, examine: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Examine; what cannot be tried at all is a check that failed."""
    try:
        yield from examine()
    except (ImportError, OSError, RuntimeError, TimeoutError) as error:
        yield Check(doing, f"{type(error).__name__}: {error}", "possible", is_met=False)


def examine_overhead() -> Iterator[Check]:
    """What the agent adds to an iteration."""
    from worker_agent.selftest.overhead import measure_overhead

    cost = measure_overhead()
    figure = f"{cost.share:+.1%} of {cost.plain * 1000:.1f} ms CPU ({cost.added * 1e6:+.0f} µs)"
    is_met = cost.share <= MOST_OVERHEAD
    yield Check("overhead", figure, f"at most {MOST_OVERHEAD:.0%}", is_met)


def examine_noise() -> Iterator[Check]:
    """Whether the noise that is measured is right."""
    from worker_agent.selftest.noise import measure_noise_error

    error = measure_noise_error()
    bound = f"within {MOST_NOISE_ERROR:g} of it"
    yield Check(
        "gradient noise",
        f"{error:.1e} from a direct computation",
        bound,
        error <= MOST_NOISE_ERROR,
    )


def examine_resize() -> Iterator[Check]:
    """Whether a resize is quick and loses nothing."""
    from worker_agent.selftest.rehearsal import rehearse

    seen = rehearse()
    bound = f"at most {MOST_PAUSE:g} s"
    yield Check("grow 1 → 2", f"{seen.growing:.3f} s", bound, seen.growing <= MOST_PAUSE)
    yield Check("shrink 2 → 1", f"{seen.shrinking:.3f} s", bound, seen.shrinking <= MOST_PAUSE)
    yield Check(
        "weights afterwards",
        f"{seen.difference:.1e} from one process over {seen.iterations} iterations",
        f"within {MOST_DIFFERENCE:g} of it",
        seen.difference <= MOST_DIFFERENCE,
    )


STAGES: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
    ("training in turns with and without the agent", examine_overhead),
    ("comparing the gradient noise", examine_noise),
    ("rehearsing a resize", examine_resize),
)
