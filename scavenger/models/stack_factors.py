"""What a stack does to the seconds of an iteration: two factors on compute, and their fit.

One factor is on what no batch changes, such as launches of kernels, one on what each sample takes:
a stack that is fast with many samples may be slow with few. Synchronisation, noise and epochs are
the same for all stacks, so two probes tell what a stack is worth everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ConfigColumns, Floats, RowIndices
from scavenger.number_checks import require_above_zero
from scavenger.stack import Stack

# Logarithms of both factors before anything is measured: of 22 models, most lie within this.
PRIOR_DEVIATION = 0.3
NEWTON_ROUNDS = 20
MAX_LOG_STACK_FACTOR = 3.0
TINY = 1e-18  # keeps a covariance of nothing positive definite

Matrix = tuple[tuple[float, float], tuple[float, float]]
NOTHING_OPEN: Matrix = ((0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True, slots=True)
class StackFactors:
    """How much longer compute takes with a stack than with the one a law was fitted on.

    Attributes:
        compute_fixed: Factor on seconds that no batch size changes, α.
        compute_per_sample: Factor on seconds per sample, β.
        covariance: Covariance of the logarithms of both.
    """

    compute_fixed: float = 1.0
    compute_per_sample: float = 1.0
    covariance: Matrix = NOTHING_OPEN

    def __post_init__(self) -> None:
        require_above_zero(self, "compute_fixed", "compute_per_sample")


UNMEASURED = StackFactors(
    covariance=((PRIOR_DEVIATION**2, 0.0), (0.0, PRIOR_DEVIATION**2)),
)
SAME = StackFactors()


@dataclass(frozen=True, slots=True, eq=False)
class FactorColumns:
    """The factors of each configuration of a grid.

    Attributes:
        compute_fixed: α of each configuration.
        compute_per_sample: β of each configuration.
        is_whole: Which configurations compute all gradients before the first is sent.
        index: Stack of each configuration.
        covariances: Covariance of the logarithms of both factors, by stack, shape (stacks, 2, 2).
    """

    compute_fixed: Floats
    compute_per_sample: Floats
    is_whole: NDArray[np.bool_]
    index: RowIndices
    covariances: Floats

    def variances(self, shares: Floats) -> Floats:
        """Relative variances of predictions.

        Args:
            shares: Shares of both parts of compute in the seconds of each configuration.
        """
        of_rows = self.covariances[self.index]
        return np.asarray(np.einsum("ri,rij,rj->r", shares, of_rows, shares))

    def draw_log_factors(self, shares: Floats, normals: Floats) -> Floats:
        """Draw posterior samples, one column each: logarithms of factors on each row's seconds.

        Args:
            shares: As in ``variances``.
            normals: Standard normal numbers by stack, sample and factor.
        """
        roots = [np.linalg.cholesky(each + TINY * np.eye(2)) for each in self.covariances]
        drawn = np.stack([own @ root.T for own, root in zip(normals, roots, strict=True)])
        return np.asarray(np.einsum("ri,rsi->rs", shares, drawn[self.index]))


def factor_columns(
    grid: ConfigColumns, factors: Mapping[str, StackFactors], reference: str
) -> FactorColumns | None:
    """Return the factors of each configuration; None where all have the reference stack.

    Args:
        grid: The configurations.
        factors: What was measured, by stack.
        reference: The stack that the law was fitted on.
    """
    if grid.stacks == (reference,):
        return None
    known = [SAME if name == reference else factors.get(name, UNMEASURED) for name in grid.stacks]
    whole = ["compiled_whole" in Stack.parse(name).parts for name in grid.stacks]
    rows = grid.stack_index
    return FactorColumns(
        np.array([each.compute_fixed for each in known])[rows],
        np.array([each.compute_per_sample for each in known])[rows],
        np.array(whole)[rows],
        rows,
        np.array([each.covariance for each in known]),
    )


def fit_stack_factors(
    fixed: Floats, variable: Floats, flatness: float, seconds: Floats, deviation: float
) -> StackFactors:
    """Fit both factors to measured seconds of compute, from their prior.

    Gauss-Newton on logarithms. Where the law has no fixed part, or one batch was measured, the
    prior tells what measurements leave open.

    Args:
        fixed: Seconds of each row that no batch changes, by the law.
        variable: Seconds of each row in proportion to its samples, by the law.
        flatness: r of the law, which joins both.
        seconds: Measured seconds of compute.
        deviation: Relative standard deviation of each measurement.
    """
    logs = np.zeros(2)
    precision = np.eye(2) / PRIOR_DEVIATION**2
    for _ in range(NEWTON_ROUNDS):
        parts = np.column_stack([fixed, variable]) * np.exp(logs)
        powers = parts**flatness
        whole = powers.sum(axis=1)
        slopes = powers / whole[:, None]
        errors = np.log(seconds) - np.log(whole) / flatness
        information = slopes.T @ slopes / deviation**2 + precision
        step = np.linalg.solve(information, slopes.T @ errors / deviation**2 - precision @ logs)
        logs = np.clip(logs + step, -MAX_LOG_STACK_FACTOR, MAX_LOG_STACK_FACTOR)
        if np.abs(step).max() < 1e-9:
            break
    (a, b), (c, d) = np.linalg.inv(information).tolist()
    alpha, beta = np.exp(logs).tolist()
    return StackFactors(alpha, beta, ((a, b), (c, d)))
