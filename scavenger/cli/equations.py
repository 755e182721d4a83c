"""Equations of fitted models, as ``scavenger curve``, ``fit`` and ``demo`` print them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from scavenger.cli.output import format_milliseconds, format_number, format_percent, pluralize
from scavenger.models.epochs import EpochsLaw, RootNoiseLaw
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.schemas.curves import LawsView, LawView, PointView

MAX_NAMED_FORMS = 4
HEAVIEST_LAW_NOTE = "; the equations above are the one with the largest weight"


# One model of iteration time, as the API shows it and as it was fitted here; in seconds.
IterationLaw = LawView | StepTimeLaw


def curve_equations(laws: LawsView, points: Sequence[PointView]) -> list[tuple[str, str]]:
    """Return the fitted models of a curve as equations."""
    is_average = len(laws.averaged) > 1
    shares = [(law.weight, law) for law in laws.averaged]
    forms = [("forms", describe_average(shares) + HEAVIEST_LAW_NOTE)] if is_average else []
    noise = [("noise", noise_equation(laws))] if laws.noise_scale is not None else []
    elsewhere = "" if laws.spread is None else f", ±{format_percent(laws.spread)} elsewhere"
    error = f"iteration times ±{format_percent(laws.mean_relative_error)} where measured{elsewhere}"
    return [
        *iteration_equations(laws),
        *forms,
        ("epochs", epochs_equation(laws, points)),
        *noise,
        ("error", error),
    ]


def iteration_equations(law: IterationLaw) -> list[tuple[str, str]]:
    """Return a model of iteration time as equations."""
    fixed = format_milliseconds(law.compute_fixed)
    growing = f"{format_milliseconds(law.compute_per_sample)} × b"
    compute = combine_terms(fixed, growing, law.flatness)
    return [
        ("compute", f"{compute}, with b = B / K samples per worker"),
        ("sync", sync_equation(law)),
        ("iteration", f"τ = {combine_terms('compute', 'sync', law.overlap)}"),
    ]


def combine_terms(one: str, other: str, power: float) -> str:
    """Write a sum, or a smooth maximum for a power above 1.

    >>> combine_terms("compute", "sync", 1.0), combine_terms("compute", "sync", 2.0)
    ('compute + sync', '(compute^2 + sync^2)^(1/2)')
    """
    if power == 1:
        return f"{one} + {other}"
    bases = (f"({part})" if " " in part else part for part in (one, other))
    return f"({' + '.join(f'{base}^{power:g}' for base in bases)})^(1/{power:g})"


def sync_equation(law: IterationLaw) -> str:
    """Write the equation of synchronization time."""
    fixed, slope = format_milliseconds(law.sync_fixed), format_milliseconds(law.sync_per_worker)
    across = format_milliseconds(law.sync_across_machines)
    more = f", {across} more across machines" if law.sync_across_machines else ""
    if law.growth == "servers":
        # Parameter servers exchange gradients with a single worker, too.
        return f"{slope} × K, and {fixed} more for K above 1{more}"
    size = "log2 K" if law.growth == "log" else "K"
    return f"{fixed} + {slope} × {size}, for K above 1{more}"


def epochs_equation(laws: LawsView, points: Sequence[PointView]) -> str:
    """Write the equation of epochs; a point of the curve gives its factor."""
    if laws.critical_batch == 0:
        return (
            "e(B) is proportional to B: gradients have no noise that larger batches would average"
        )
    terms = epochs_terms(laws)
    if not terms:
        return "e(B) is assumed constant: nothing was measured about it"
    shapes = [unscaled_epochs(laws, point.global_batch) for point in points[:1]]
    factor = format_number(points[0].epochs / shapes[0]) if shapes and shapes[0] > 0 else "e*"
    return f"e(B) = {factor} × ({' + '.join(terms)})"


def epochs_terms(laws: LawsView) -> list[str]:
    """Return the terms that epochs are proportional to; none where the batch does not matter."""
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        return [format_number(laws.noise_floor), f"{format_number(laws.noise_per_root)} / √B"]
    terms = []
    if laws.noisy_samples:
        terms.append(
            f"{format_number(laws.noisy_samples)} / (B + {format_number(laws.noise_scale or 0.0)})"
        )
    if laws.critical_batch is not None:
        terms.append(f"B / {format_number(laws.critical_batch)}")
    return ["1", *terms] if terms else []


def unscaled_epochs(laws: LawsView, global_batch: int) -> float:
    """Return the sum of these terms at a batch in samples."""
    root = None
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        root = RootNoiseLaw(laws.noise_floor, laws.noise_per_root)
    law = EpochsLaw(laws.critical_batch, laws.noise_scale, laws.noisy_samples, root)
    shape = float(law.unscaled_epochs(np.array([float(global_batch)]))[0])
    # The law is written up to a factor, with B_crit as that factor where it is known.
    return shape / laws.critical_batch if laws.critical_batch and root is None else shape


def noise_equation(laws: LawsView) -> str:
    """Write the equation of gradient noise."""
    scale = format_number(laws.noise_scale)
    if laws.noise_floor is not None and laws.noise_per_root is not None:
        root = f"{format_number(laws.noise_floor)} + {format_number(laws.noise_per_root)} / √B"
        return f"γ = K × ({root}), the paper's law; measured φ = {scale} samples"
    return f"γ = K × (b + φ) / (B + φ), with φ = {scale} samples"


def describe_average(laws: Iterable[tuple[float, IterationLaw]]) -> str:
    """Name the forms that are averaged with their weights, largest weight first.

    Weights of forms with the same name are added.
    """
    shares: dict[str, float] = defaultdict(float)
    for weight, law in laws:
        shares[describe_form(law)] += weight
    ranked = sorted(shares.items(), key=lambda named: -named[1])
    named = [f"{name} {format_percent(share)}" for name, share in ranked[:MAX_NAMED_FORMS]]
    others = ranked[MAX_NAMED_FORMS:]
    if others:
        named.append(f"{len(others)} more {format_percent(sum(share for _, share in others))}")
    return f"average of {pluralize(len(ranked), 'form')}: {', '.join(named)}"


def describe_form(law: IterationLaw) -> str:
    """Name the form of a model: growth of synchronization, overlap and flatness.

    Symbols are those of the equations: K workers, q overlap, r flatness.
    """
    grows = "log2 K" if law.growth == "log" else "K"
    parts = [grows if law.sync_per_worker > 0 else "constant" if law.sync_fixed > 0 else ""]
    if law.sync_across_machines > 0:
        parts.append("step to machines")
    name = " + ".join(part for part in parts if part) or "no sync"
    flat = f" r={law.flatness:g}" if law.flatness > 1 else ""
    return f"{name} q={law.overlap:g}{flat}"
