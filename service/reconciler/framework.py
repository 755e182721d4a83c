"""What a job trains with: its workers know, and what earlier jobs tell of it depends on that."""

from __future__ import annotations

from scavenger.job.planning import framework_of
from scavenger.planning.transfer import DEFAULT_FRAMEWORK
from service.reconciler.actions import NoteFramework
from service.reconciler.target import is_searched
from service.state.job_state import JobState


def note_framework(state: JobState) -> NoteFramework | None:
    """Write down what the first worker that knows it trains with; it holds for the whole job.

    A configuration that was chosen without a probe rests on a stored model, whose times are those
    of the framework that was assumed until now.
    """
    job, spec = state.job, state.job.spec
    told = next((worker.framework for worker in state.workers if worker.framework), "")
    if not told or job.framework:
        return None
    if framework_of(spec, told) == framework_of(spec):
        return NoteFramework(told, f"the workers train with {told}")
    if spec.framework is None:
        why = (
            f"the workers train with {told}: times that jobs with {DEFAULT_FRAMEWORK} measured are"
            f" not used; framework: {told} in the job document says so before they start"
        )
    else:
        why = (
            f"the job document says framework: {spec.framework}, but the workers train with {told}:"
            f" what they measure counts as {told}'s; correct the document before the next job"
        )
    is_measured = bool(state.probes) or state.standing.pinned is not None
    searches_anew = job.chosen is not None and is_searched(spec) and not is_measured
    again = "; the configuration is chosen anew" if searches_anew else ""
    return NoteFramework(told, f"{why}{again}", is_news=True, searches_anew=searches_anew)
