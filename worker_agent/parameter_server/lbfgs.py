"""L-BFGS from scalars alone: what the coordinator of a Sandblaster job decides (Dean et al., 2012).

The vectors lie on the servers in shards, under names that are made from the number of the
evaluation they belong to and never change their content. An evaluation is the loss and its
gradient over one batch at one point. All rules are those of
``torch.optim.LBFGS(line_search_fn="strong_wolfe")``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from worker_agent.transport.connection import Numbers

LEAST_CURVATURE = 1e-10  # yᵀs below which a pair tells nothing of the curvature

MAX_HISTORY, MAX_PORTIONS = 100, 1000  # what a server makes room for
SHORTENING = 0.1  # of a step whose loss is not finite
LEAST_STEP = 1e-20  # a direction along which even this one has no finite loss leads nowhere


def point_name(evaluation: int) -> str:
    """Return the name of the weights of an evaluation."""
    return f"x{evaluation}"


def gradient_name(evaluation: int) -> str:
    """Return the name of the gradient that an evaluation has found."""
    return f"g{evaluation}"


def direction_name(evaluation: int) -> str:
    """Return the name of the search direction that begins at the point of an evaluation."""
    return f"d{evaluation}"


def pair_names(evaluation: int) -> tuple[str, str]:
    """Return the names of s and y: the last step to a point, and the change of the gradient."""
    return f"s{evaluation}", f"y{evaluation}"


@dataclass(frozen=True, slots=True)
class LbfgsOptions:
    """The hyperparameters, with the names of ``torch.optim.LBFGS``.

    Attributes:
        rate: Length of the first trial step of a line search.
        tolerance_grad: Largest entry of a gradient that counts as zero.
        tolerance_change: Changes of weights or loss that count as none.
        history: Most pairs (s, y) kept.
        batch: Samples of an evaluation.
        portions: Parts into which it is cut.
        is_full: Whether the batch is the whole data set, so that the loss of a point is one number.
    """

    rate: float
    tolerance_grad: float
    tolerance_change: float
    history: int
    batch: int
    portions: int
    is_full: bool

    def __post_init__(self) -> None:
        if min(self.history, self.batch, self.portions) < 1 or self.portions > self.batch:
            raise ValueError(f"history, batch and portions make no sense: {self}")
        if self.history > MAX_HISTORY or self.portions > MAX_PORTIONS:
            raise ValueError(f"at most {MAX_HISTORY} pairs and {MAX_PORTIONS} portions: {self}")
        if not all(map(math.isfinite, (self.rate, self.tolerance_grad, self.tolerance_change))):
            raise ValueError(f"rate and tolerances must be finite: {self}")


@dataclass(frozen=True, slots=True)
class Trial:
    """A point at which a line search knows the loss.

    Attributes:
        evaluation: Its number.
        step: t, the length of the step along the direction.
        loss: f(w + t d).
        slope: Derivative of that by t.
        largest: Largest entry of the gradient, by magnitude.
    """

    evaluation: int
    step: float
    loss: float
    slope: float
    largest: float


@dataclass(frozen=True, slots=True)
class LineSearch:
    """A line search as far as it has come.

    Attributes:
        loss: f at its origin.
        slope: Derivative along the direction there, negative.
        largest: Largest entry of the direction, by magnitude.
        first_step: The first t to try.
        trials: What was tried, in order.
        pending: Evaluation and t of the trial in progress; None between two.
        is_blocked: Whether a longer step had no finite loss, though a shorter one is better than
            the origin.
    """

    loss: float
    slope: float
    largest: float
    first_step: float
    trials: tuple[Trial, ...] = ()
    pending: tuple[int, float] | None = None
    is_blocked: bool = False

    @property
    def best(self) -> Trial | None:
        """The trial with the least loss; None if no trial is better than the origin."""
        best = min(self.trials, key=lambda trial: trial.loss, default=None)
        return best if best is not None and best.loss < self.loss else None


# Says what a line search does next: t of the next trial, the trial that it accepts, or None if no
# trial is better than its origin.
LineSearchRule = Callable[[LineSearch], float | Trial | None]


@dataclass(frozen=True, slots=True)
class LbfgsState:
    """All that a coordinator knows, scalars only; with it another one goes on from here.

    Attributes:
        iteration: Iterations so far.
        next_evaluation: The number of the next evaluation.
        point: The evaluation whose point is the result so far.
        repeats: Evaluation that had the same point on other samples; None for a point of its own.
        batch: Batches used before the one that is evaluated now.
        loss: f at the point; None until it is evaluated on this batch.
        history: Evaluations whose pairs (s, y) are kept, oldest first.
        step: Evaluation and t of the step that led to the point, whose pair is not judged yet.
        search: The line search from the point; None before it begins.
        is_first: Whether no step was made since L-BFGS began, or began anew.
        has_converged: Whether nothing is left to improve.
    """

    iteration: int
    next_evaluation: int
    point: int
    repeats: int | None = None
    batch: int = 0
    loss: float | None = None
    history: tuple[int, ...] = ()
    step: tuple[int, float] | None = None
    search: LineSearch | None = None
    is_first: bool = True
    has_converged: bool = False

    @property
    def vectors(self) -> list[str]:
        """The names of all vectors that are needed from here on."""
        names = [point_name(self.point), gradient_name(self.point), direction_name(self.point)]
        for each in self.history:
            names += pair_names(each)
        if self.repeats is not None:
            names.append(point_name(self.repeats))
        if self.step is not None:
            names += [gradient_name(self.step[0]), direction_name(self.step[0])]
        trials = () if self.search is None else self.search.trials
        for trial in trials:
            names += [point_name(trial.evaluation), gradient_name(trial.evaluation)]
        return names


def gram_names(state: LbfgsState) -> list[str]:
    """Return the vectors whose products decide on the next direction: pairs, then the gradient."""
    candidates = [*state.history, *(() if state.step is None else (state.point,))]
    return [
        *(name for each in candidates for name in pair_names(each)),
        gradient_name(state.point),
    ]


def two_loop_coefficients(gram: Numbers) -> Numbers:
    """Return the L-BFGS direction as a combination of the vectors that a Gram matrix is of.

    The two-loop recursion (Nocedal 1980) without its vectors (Chen et al., NIPS 2014): every inner
    product it takes is one of combinations that are known, so it follows from the Gram matrix.

    Args:
        gram: Inner products of s_1, y_1, …, s_m, y_m, g, shape (2m + 1, 2m + 1).

    Returns:
        Coefficients of the direction -H g, shape (2m + 1,).
    """
    pairs = len(gram) // 2
    coefficients = np.zeros(len(gram))
    coefficients[-1] = -1.0
    alphas = np.zeros(pairs)
    for pair in reversed(range(pairs)):
        s, y = 2 * pair, 2 * pair + 1
        alphas[pair] = gram[s] @ coefficients / gram[s, y]
        coefficients[y] -= alphas[pair]
    if pairs:
        s, y = 2 * pairs - 2, 2 * pairs - 1
        coefficients *= gram[s, y] / gram[y, y]
    for pair in range(pairs):
        s, y = 2 * pair, 2 * pair + 1
        beta = gram[y] @ coefficients / gram[s, y]
        coefficients[s] += alphas[pair] - beta
    return coefficients


@dataclass(frozen=True, slots=True)
class Direction:
    """A search direction as a combination of vectors.

    Attributes:
        state: The state with the history that it rests on.
        names: The vectors.
        coefficients: Their coefficients, shape (len(names),).
        slope: Derivative of the loss along it.
    """

    state: LbfgsState
    names: Sequence[str]
    coefficients: Numbers
    slope: float


def choose_direction(options: LbfgsOptions, state: LbfgsState, gram: Numbers) -> Direction:
    """Judge the newest pair, and combine the direction.

    Args:
        options: The hyperparameters.
        state: A state whose point has a loss.
        gram: Inner products of the vectors of `gram_names`.
    """
    names, kept = gram_names(state), list(range(len(gram)))
    history = state.history
    if state.step is not None:
        s, y = len(gram) - 3, len(gram) - 2
        if gram[s, y] > LEAST_CURVATURE:
            history = (*history, state.point)
            surplus = max(len(history) - options.history, 0)
            history, kept = history[surplus:], kept[2 * surplus :]
        else:
            kept = [*kept[:-3], kept[-1]]
    chosen = gram[np.ix_(kept, kept)]
    coefficients = two_loop_coefficients(chosen)
    return Direction(
        state=replace(state, history=history, step=None),
        names=[names[each] for each in kept],
        coefficients=coefficients,
        slope=float(chosen[-1] @ coefficients),
    )


def begin_search(
    options: LbfgsOptions,
    direction: Direction,
    *,
    largest: float,
    gradient_sum: float,
    gradient_largest: float,
) -> LbfgsState:
    """Begin the line search along a direction, unless the point is a minimum.

    Args:
        options: The hyperparameters.
        direction: The direction.
        largest: Its largest entry, by magnitude.
        gradient_sum: Sum of the magnitudes of the gradient's entries.
        gradient_largest: The largest of them.
    """
    state = direction.state
    assert state.loss is not None
    is_finite = all(map(math.isfinite, (state.loss, direction.slope, largest)))
    is_flat = direction.slope > -options.tolerance_change
    if gradient_largest <= options.tolerance_grad or is_flat or largest == 0 or not is_finite:
        return settle(options, state)
    step = options.rate
    if state.is_first:
        step *= min(1.0, 1.0 / gradient_sum)
    search = LineSearch(state.loss, direction.slope, largest, step)
    return replace(state, search=search, is_first=False)


def begin_trial(state: LbfgsState, step: float) -> LbfgsState:
    """Give the next trial of the line search its number."""
    assert state.search is not None
    search = replace(state.search, pending=(state.next_evaluation, step))
    return replace(state, search=search, next_evaluation=state.next_evaluation + 1)


def end_trial(state: LbfgsState, trial: Trial) -> LbfgsState:
    """Add what a trial has found.

    After a loss that is not finite PyTorch would interpolate with it, and end with weights that are
    NaN. Here the search ends with the best trial before, or begins again with a shorter first step
    than it had, so that it ends.
    """
    assert state.search is not None
    search = replace(state.search, pending=None)
    if math.isfinite(trial.loss) and math.isfinite(trial.slope):
        return replace(state, search=replace(search, trials=(*search.trials, trial)))
    if search.best is not None:
        return replace(state, search=replace(search, is_blocked=True))
    shortest = min(trial.step, search.first_step)
    return replace(state, search=replace(search, first_step=shortest * SHORTENING, trials=()))


def choose_step(search: LineSearch, rule: LineSearchRule) -> float | Trial | None:
    """Return t of the next trial, the trial to accept, or None if none beats the origin."""
    if search.is_blocked:
        return search.best
    if search.first_step < LEAST_STEP:
        return None
    chosen = rule(search)
    return None if isinstance(chosen, float) and not math.isfinite(chosen) else chosen


def accept(options: LbfgsOptions, state: LbfgsState, trial: Trial | None) -> LbfgsState:
    """End the line search at a trial, or where it began if no trial is better."""
    search = state.search
    assert search is not None
    if trial is None:
        return settle(options, replace(state, search=None))
    is_same = (
        trial.largest <= options.tolerance_grad
        or search.largest * trial.step <= options.tolerance_change
        or abs(trial.loss - search.loss) < options.tolerance_change
    )
    stepped = replace(
        state,
        iteration=state.iteration + 1,
        point=trial.evaluation,
        loss=trial.loss,
        step=(state.point, trial.step),
        search=None,
    )
    if options.is_full:
        return replace(stepped, has_converged=is_same)
    return on_next_samples(stepped)


def settle(options: LbfgsOptions, state: LbfgsState) -> LbfgsState:
    """End where nothing is left to improve, or forget the curvature and take the next samples."""
    if options.is_full:
        return replace(state, has_converged=True)
    return on_next_samples(replace(state, history=(), step=None, is_first=True))


def on_next_samples(state: LbfgsState) -> LbfgsState:
    """Evaluate the point again on the next samples, which makes it another evaluation."""
    return replace(
        state,
        point=state.next_evaluation,
        next_evaluation=state.next_evaluation + 1,
        repeats=state.point,
        batch=state.batch + 1,
        loss=None,
        search=None,
    )
