"""What a stack does to the seconds of an iteration: two factors on compute, and their fit.

One factor is on what no batch changes, such as launches of kernels, one on what each sample takes:
a stack that is fast with many samples may be slow with few. Synchronisation, noise and epochs are
the same for all stacks, so two probes tell what a stack is worth everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ConfigColumns, Floats, RowIndices
from scavenger.stack import EAGER_NAME, Stack, StackFactors

# Logarithms of both factors before anything is measured: of 22 models, most lie within this.
PRIOR_DEVIATION = 0.3
NEWTON_ROUNDS = 20
MAX_LOG_STACK_FACTOR = 3.0
TINY = 1e-18  # keeps a covariance of nothing positive definite

UNMEASURED = StackFactors(
    covariance=((PRIOR_DEVIATION**2, 0.0), (0.0, PRIOR_DEVIATION**2)),
)
SAME = StackFactors()
NOTHING_EXPECTED: Mapping[str, StackFactors] = MappingProxyType({})


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


def expected_factors(
    name: str, expected: Mapping[str, StackFactors], reference: str
) -> StackFactors:
    """Return what a stack is expected to do that was not measured.

    Args:
        name: The stack.
        expected: What is expected of stacks, relative to eager.
        reference: The stack that the law was fitted on.
    """
    told = {EAGER_NAME: SAME, **expected}
    if name not in told or reference not in told or not {name, reference} & expected.keys():
        return UNMEASURED
    own, fitted = told[name], told[reference]
    # Of two stacks that were forecast the one is as uncertain as the other.
    wide = own if own.covariance != SAME.covariance else fitted
    return replace(own.relative_to(fitted), covariance=wide.covariance)


def factor_columns(
    grid: ConfigColumns,
    factors: Mapping[str, StackFactors],
    reference: str,
    expected: Mapping[str, StackFactors] = NOTHING_EXPECTED,
) -> FactorColumns | None:
    """Return the factors of each configuration; None where all have the reference stack.

    Args:
        grid: The configurations.
        factors: What was measured, by stack.
        reference: The stack that the law was fitted on.
        expected: What is expected of stacks that were not measured, relative to eager.
    """
    if grid.stacks == (reference,):
        return None
    known = [
        SAME
        if name == reference
        else factors.get(name) or expected_factors(name, expected, reference)
        for name in grid.stacks
    ]
    whole = [has_whole_backward(Stack.parse(name)) for name in grid.stacks]
    rows = grid.stack_index
    return FactorColumns(
        np.array([each.compute_fixed for each in known])[rows],
        np.array([each.compute_per_sample for each in known])[rows],
        np.array(whole)[rows],
        rows,
        np.array([each.covariance for each in known]),
    )


def has_whole_backward(stack: Stack) -> bool:
    """Whether all gradients are there before the first is sent, so that nothing overlaps."""
    return "compiled_whole" in stack.parts or stack.layout.pipeline > 1


def fit_stack_factors(
    fixed: Floats,
    variable: Floats,
    flatness: float,
    seconds: Floats,
    deviation: float,
    prior: StackFactors,
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
        prior: What was expected before.
    """
    center = np.log([prior.compute_fixed, prior.compute_per_sample])
    logs, precision = center.copy(), np.linalg.inv(np.array(prior.covariance) + TINY * np.eye(2))
    for _ in range(NEWTON_ROUNDS):
        parts = np.column_stack([fixed, variable]) * np.exp(logs)
        powers = parts**flatness
        whole = powers.sum(axis=1)
        slopes = powers / whole[:, None]
        errors = np.log(seconds) - np.log(whole) / flatness
        information = slopes.T @ slopes / deviation**2 + precision
        step = np.linalg.solve(
            information, slopes.T @ errors / deviation**2 - precision @ (logs - center)
        )
        logs = np.clip(logs + step, -MAX_LOG_STACK_FACTOR, MAX_LOG_STACK_FACTOR)
        if np.abs(step).max() < 1e-9:
            break
    (a, b), (c, d) = np.linalg.inv(information).tolist()
    alpha, beta = np.exp(logs).tolist()
    return StackFactors(alpha, beta, ((a, b), (c, d)))
