import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from scavenger.learning_rate import LearningRateScaling
from worker_agent.pytorch.optimizer_hooks import LearningRateScaler

unhurried = settings(max_examples=20)
brief = settings(max_examples=10)

RULES = ("none", "linear", "sqrt", "adascale")
rules = st.sampled_from(RULES)
batches = st.integers(1, 10**6)
scales = st.floats(0, 1e7)
factors = st.floats(1e-3, 1e3)

RATE = 0.01


@given(rules, batches, st.none() | scales)
def test_the_rate_was_written_for_the_reference_batch(rule, batch, scale):
    assert LearningRateScaling(rule, batch).factor(batch, scale) == 1


@given(rules, batches, batches, batches, st.none() | scales)
def test_a_larger_batch_never_has_a_smaller_rate(rule, reference, one, other, scale):
    scaling = LearningRateScaling(rule, reference)
    small, large = sorted((one, other))
    assert scaling.factor(small, scale) <= scaling.factor(large, scale) * (1 + 1e-12)


@given(batches, batches, scales)
def test_adascale_lies_between_no_scaling_and_the_linear_rule(reference, batch, scale):
    low, high = sorted((1.0, batch / reference))
    gain = LearningRateScaling("adascale", reference).factor(batch, scale)
    assert low * (1 - 1e-12) <= gain <= high * (1 + 1e-12)


@given(batches, batches, scales, scales)
def test_more_noise_takes_adascale_closer_to_the_linear_rule(reference, batch, one, other):
    scaling, linear = LearningRateScaling("adascale", reference), batch / reference
    calm, noisy = (abs(scaling.factor(batch, scale) - linear) for scale in sorted((one, other)))
    assert noisy <= calm + 1e-9 * max(1.0, linear)


@given(batches, batches)
def test_adascale_is_linear_where_all_is_noise_and_nothing_where_there_is_none(reference, batch):
    scaling, largest = LearningRateScaling("adascale", reference), max(reference, batch)
    assert scaling.factor(batch, 1e9 * largest) == pytest.approx(batch / reference, rel=1e-6)
    assert scaling.factor(batch, 1e-9 * min(reference, batch)) == pytest.approx(1, rel=1e-6)
    assert scaling.factor(batch, None) == 1


@given(batches, batches)
def test_the_root_rule_lies_halfway_between_none_and_linear_in_logarithms(reference, batch):
    root, linear = (LearningRateScaling(rule, reference).factor(batch) for rule in RULES[2:0:-1])
    assert root**2 == pytest.approx(linear)


warm_ups = st.floats(1e-3, 100)
whens = st.floats(0, 2)  # in warm-ups


@given(factors, factors, warm_ups, whens, whens)
def test_a_factor_warms_without_a_jump_and_never_beyond_its_end(before, after, warm_up, one, other):
    scaling = LearningRateScaling("linear", 1, warm_up)
    first, last = (
        scaling.warm_up_factor(before, after, when * warm_up) for when in sorted((one, other))
    )
    rise = max(after - before, 0.0)
    rounding = 1e-9 * max(before, after)
    assert first <= last + rounding
    assert last - first <= rise * abs(one - other) + rounding
    assert min(before, after) - rounding <= first <= last <= after + rounding


@given(factors, factors, st.just(0.0) | warm_ups, st.floats(1, 10), whens)
def test_a_factor_is_warm_after_its_warm_up_and_a_smaller_one_at_once(
    one, other, warm_up, more, at
):
    scaling, (low, high) = LearningRateScaling("linear", 1, warm_up), sorted((one, other))
    assert scaling.warm_up_factor(low, high, warm_up * more) == high
    assert scaling.warm_up_factor(high, low, at * warm_up) == low


@given(st.integers(2, 256), st.integers(1, 300), st.integers(1, 10))
def test_the_warm_up_is_that_of_goyal(times, iterations, epochs):
    """From η to kη by a constant amount each iteration, over the first epochs."""
    scaling = LearningRateScaling("linear", 32, warm_up=float(epochs))
    after, count = scaling.factor(32 * times), iterations * epochs
    seen = [
        scaling.warm_up_factor(1.0, after, i / iterations) for i in range(0, count + 1, iterations)
    ]
    increment = (times - 1) / count
    assert seen == pytest.approx([1 + increment * i for i in range(0, count + 1, iterations)])


@pytest.mark.parametrize(
    "wrong", [{"reference_batch": 0}, {"warm_up": -1.0}, {"warm_up": math.inf}]
)
def test_a_scaling_without_meaning_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearningRateScaling(**wrong)


def classes_of(module, kind):
    found = inspect.getmembers(module, inspect.isclass)
    return {name: each for name, each in found if issubclass(each, kind) and each is not kind}


OPTIMIZERS = classes_of(torch.optim, torch.optim.Optimizer)
MORE = {"SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "LBFGS": {"max_iter": 2}}
SCHEDULES = {
    "LambdaLR": {"lr_lambda": lambda count: 0.9**count},
    "MultiplicativeLR": {"lr_lambda": lambda count: 1 - 0.1 / (1 + count)},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [1, 3]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": RATE / 10, "max_lr": RATE, "step_size_up": 3},
    "OneCycleLR": {"max_lr": RATE, "total_steps": 100},
    "ReduceLROnPlateau": {"patience": 0},
    "SequentialLR": {},
    "ChainedScheduler": {},
}


def weight():
    values = torch.linspace(-1, 1, 12, dtype=torch.float64)
    return torch.nn.Parameter(values.reshape(4, 3))


def optimizer_of(name, parameter, lr=RATE):
    return OPTIMIZERS[name]([parameter], lr=lr, **MORE.get(name, {}))


def schedule_of(name, optimizer):
    match name:
        case "SequentialLR":
            parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.8)]
            return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
        case "ChainedScheduler":
            parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.8)]
            return lr_scheduler.ChainedScheduler(parts)
        case _:
            return getattr(lr_scheduler, name)(optimizer, **SCHEDULES[name])


def advance(schedule):
    """The schedule's step; one that asks for a metric is told that it gets no better."""
    asks = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
    schedule.step(*((1.0,) if asks else ()))


def rates_of(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def step(optimizer, parameter):
    """One step down a bowl, with the gradients that this optimizer can take."""

    def closure():
        gradient = parameter.detach() * torch.arange(1.0, 4.0, dtype=torch.float64)
        is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
        parameter.grad = gradient.to_sparse() if is_sparse else gradient
        return float((parameter.detach() * gradient).sum())

    closure()
    optimizer.step(closure)


def step_by_hand(optimizer, parameter, factor):
    """The same step with rates that were multiplied before it and put back after it."""
    written = [group["lr"] for group in optimizer.param_groups]
    if factor != 1:  # L-BFGS keeps the tensor itself, in which its schedule writes
        for group, rate in zip(optimizer.param_groups, written, strict=True):
            group["lr"] = rate * factor
    step(optimizer, parameter)
    for group, rate in zip(optimizer.param_groups, written, strict=True):
        group["lr"] = rate


def test_every_schedule_of_pytorch_is_tried():
    ours = {*SCHEDULES, "LRScheduler", "_LRScheduler"}
    kinds = classes_of(lr_scheduler, object)
    assert {name for name in kinds if name.endswith(("LR", "Scheduler", "Restarts"))} <= ours
    assert len(OPTIMIZERS) > 10


gentle = st.floats(0.1, 10)
# These two refuse optimizers that have no momentum, or tensors.
usual = st.sampled_from(sorted(SCHEDULES.keys() - {"CyclicLR", "OneCycleLR"}))


def rate_in_a_tensor(rate):
    return torch.tensor(rate, dtype=torch.float64)


@pytest.mark.parametrize("kind", [float, rate_in_a_tensor])
@pytest.mark.parametrize("name", OPTIMIZERS)
@brief
@given(steps=st.lists(gentle | st.just(1.0), min_size=1, max_size=6), schedule=usual)
def test_a_step_is_the_one_with_the_multiplied_rate(name, kind, steps, schedule):
    parameter, twin = weight(), weight()
    optimizer, its = (optimizer_of(name, each, lr=kind(RATE)) for each in (parameter, twin))
    schedules = [schedule_of(schedule, each) for each in (optimizer, its)]
    scaled = LearningRateScaler(optimizer)
    for factor in steps:
        scaled.factor = factor
        step(optimizer, parameter)
        step_by_hand(its, twin, factor)
        assert torch.allclose(parameter, twin, rtol=1e-15, atol=1e-15)
        for each in schedules:
            advance(each)
        assert rates_of(optimizer) == rates_of(its)


@pytest.mark.parametrize("name", SCHEDULES)
@brief
@given(steps=st.lists(factors, min_size=1, max_size=8))
def test_no_schedule_notices_that_steps_are_scaled(name, steps):
    parameters = weight(), weight()
    optimizer, plain = (optimizer_of("SGD", each) for each in parameters)
    schedules = [schedule_of(name, each) for each in (optimizer, plain)]
    scaled = LearningRateScaler(optimizer)
    for factor in steps:
        scaled.factor = factor
        for each, parameter in zip((optimizer, plain), parameters, strict=True):
            step(each, parameter)
        for each in schedules:
            advance(each)
        assert rates_of(optimizer) == rates_of(plain)
    assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]


@unhurried
@given(st.lists(st.tuples(gentle, st.floats(-1, 1)), min_size=1, max_size=12), st.floats(0, 0.99))
def test_momentum_is_a_sum_of_gradients_for_any_factors(steps, momentum):
    """u = m u + g and w = w - lr f u: no correction when the factor changes."""
    parameter = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=RATE, momentum=momentum)
    scaled = LearningRateScaler(optimizer)
    w, u = 0.5, 0.0
    for factor, gradient in steps:
        scaled.factor = factor
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        u = momentum * u + gradient
        w -= RATE * factor * u
        assert parameter.item() == pytest.approx(w, rel=1e-12, abs=1e-12)


class Fussy(torch.optim.SGD):
    """Raises in the middle of its step when told to; its step calls another one."""

    is_raising = False

    def step(self, closure=None):
        if self.is_raising:
            raise RuntimeError("no")
        return super().step(closure)


@unhurried
@given(st.lists(st.tuples(factors, st.booleans()), min_size=1, max_size=8))
def test_a_step_that_raises_leaves_the_next_ones_as_written(steps):
    parameter, twin = weight(), weight()
    optimizer, its = (Fussy([each], lr=RATE, momentum=0.5) for each in (parameter, twin))
    scaled = LearningRateScaler(optimizer)
    for factor, raises in steps:
        scaled.factor, optimizer.is_raising = factor, raises
        if raises:
            with pytest.raises(RuntimeError, match="no"):
                step(optimizer, parameter)
            continue
        step(optimizer, parameter)
        step_by_hand(its, twin, factor)
        assert rates_of(optimizer) == [RATE]
        assert torch.allclose(parameter, twin, rtol=1e-15, atol=1e-15)


def test_groups_keep_their_own_rates_and_those_added_later_are_scaled_too():
    first, second = weight(), weight()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}], lr=0.1)
    scaled = LearningRateScaler(optimizer)
    scaled.factor = 2.0
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    optimizer.step()
    optimizer.add_param_group({"params": [second], "lr": 0.01})
    optimizer.step()
    assert torch.allclose(first, weight() - 2 * 0.2)
    assert torch.allclose(second, weight() - 0.02)
    assert rates_of(optimizer) == [0.1, 0.01]
