"""Replanning of a running job whose noise scale has drifted; the maths is in the library."""

from __future__ import annotations

from scavenger.planning import replanning
from scavenger.planning.replanning import Remainder
from scavenger.report import CurveReport
from service.reconciler.actions import Replan
from service.state.job_state import JobState


def replan(state: JobState) -> Replan | None:
    """The noise scale has left the one the configuration was chosen with: choose again."""
    directive, chosen, level = state.directive, state.job.chosen, state.job.spec.level
    if chosen is None or directive is None or directive.config != chosen or level == "observe":
        return None
    if not state.is_review_due:
        return None
    found = replanning.replan(state.knowledge, chosen, state.steps, what_is_left(state))
    if found is None:
        return None
    if level != "control":
        return Replan(None, found.noise_scale, f"{found.why}; the job is only advised")
    if found.better is None:
        return Replan(None, found.noise_scale, found.why)
    better = found.better
    drawing = CurveReport(better.preview, better.objective, better.choice, "rest")
    return Replan(better.config, found.noise_scale, found.why, drawing)


def what_is_left(state: JobState) -> Remainder:
    """Return what is left of the target, and of the limits."""
    spec, expected = state.job.spec, state.knowledge.known_epochs
    done = state.epochs
    cap, longest = spec.limits.max_cost, spec.limits.max_time
    return Remainder(
        epochs=None if expected is None else expected - done,
        most_epochs=spec.stop_rule.max_progress - done,
        money=None if cap is None else float(cap - state.accrued),
        time=None if longest is None else longest - state.elapsed,
    )
