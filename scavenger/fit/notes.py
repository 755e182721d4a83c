"""Notes: what else to know about a fit, such as what is missing for seconds and dollars."""

from __future__ import annotations

from collections.abc import Iterator

from scavenger.fit.candidates import listed
from scavenger.fit.request import FitRequest
from scavenger.models.epochs import contradiction
from scavenger.models.statistical import StatisticalModel
from scavenger.tables.step_table import StepTable


def note(table: StepTable, request: FitRequest, law: StatisticalModel) -> Iterator[str]:
    """Yield what else to know: what is missing, and what contradicts the law of epochs in use."""
    missing = tuple(name_missing(request))
    if missing:
        yield (
            "time and cost are multiples of the start's, because nothing tells "
            f"{' and '.join(missing)}"
        )
    elif request.price_per_hour is None:
        yield "cost counts machine-hours, because no --price was given"
    warning = contradiction(law, request.runs)
    if warning is not None:
        yield warning
    yield from note_topology(table, request)
    yield from note_design(table, request)


def name_missing(request: FitRequest) -> Iterator[str]:
    """Yield what is not known and options that would tell it."""
    if request.dataset_size is None:
        yield "the samples of one epoch (--dataset-size)"
    if request.epochs is None and not request.runs:
        yield "the epochs to the target (--epochs and --at-batch, or a table of epochs)"


def note_topology(table: StepTable, request: FitRequest) -> Iterator[str]:
    """Yield what is assumed of how gradients travel."""
    if table.topology is not None and request.topology not in (None, table.topology):
        yield f"fitted as {request.topology}, though the table says {table.topology}"
    if request.topology is None and table.topology is None:
        yield "fitted as all-reduce, because neither the table nor --topology says otherwise"


def note_design(table: StepTable, request: FitRequest) -> Iterator[str]:
    """Yield what the measured configurations leave open."""
    counts = {m.config.workers for m in table.measurements}
    shares = {m.config.local_batch for m in table.measurements}
    if len(shares) == 1:
        yield "one local batch was measured, so that compute counts as proportional to it"
    if len(counts) == 1:
        yield "one worker count was measured, so that the cost of further workers is a guess"
    beyond = [count for count in request.workers if not min(counts) <= count <= max(counts)]
    if beyond:
        yield (
            f"workers {listed(beyond)} lie beyond the measured {min(counts)} to {max(counts)}: "
            "expect more error than the intervals say"
        )
