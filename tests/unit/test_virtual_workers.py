import importlib
import math
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import estimate_noise, noise_at
from scavenger.models.iteration_time import StepTimeLaw
from tests.paper.networks import Perceptron, TrainedNetwork, shard_samples, split
from tests.paper.tasks import TASKS, Task, digits_mlp
from tests.paper.virtual import (
    SampleOrder,
    SimulatedClock,
    VirtualJob,
    measure_noise,
    run_to_target,
)

CLOCK = SimulatedClock(StepTimeLaw(0.1, 0.001, 0.05, 0.01), jitter=0.05)
TIMES = ("compute_time", "sync_time", "step_time")


@pytest.fixture(autouse=True, scope="module")
def one_core():
    """Networks this small are slower on several cores, and wait for them where others compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def virtual_job(task: Task | None = None, *, seed: int = 3, split_every: int = 5) -> VirtualJob:
    return VirtualJob(
        task or digits_mlp(), CLOCK, rule="linear", seed=seed, split_every=split_every
    )


def direct_gradient(task: Task, trainee: TrainedNetwork, indices) -> tuple[torch.Tensor, float]:
    """Gradient of the mean loss of these samples, the ordinary way: one copy of the weights."""
    weights = trainee.weights.detach().clone().requires_grad_()
    inputs = torch.from_numpy(task.examples.inputs[indices])[None]
    classes = torch.from_numpy(task.examples.classes[indices])
    scores = task.network.scores(split(weights[None], task.network.shapes), inputs)[0]
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), classes.flatten())
    loss.backward()
    return weights.grad, loss.item()


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return ((left - right).norm() / right.norm()).item()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("shards", "batch"), [(1, 12), (4, 64), (5, 64), (20, 23), (7, 7)])
def test_one_pass_finds_what_shard_by_shard_would(name, shards, batch):
    task = TASKS[name]()
    trainee = task.trainee(seed=1)
    indices = np.random.default_rng(0).choice(len(task.examples), batch, replace=False)
    found = trainee.gradients(indices, shards)
    edges = [batch * shard // shards for shard in range(shards + 1)]
    parts = [indices[low:high] for low, high in pairwise(edges)]
    direct = [direct_gradient(task, trainee, part) for part in parts]
    whole, loss = direct_gradient(task, trainee, indices)
    local = sum(
        len(part) / batch * float(gradient @ gradient)
        for part, (gradient, _) in zip(parts, direct, strict=True)
    )
    assert found.local_norm_sq == pytest.approx(local, rel=1e-5)
    assert found.mean_norm_sq == pytest.approx(float(whole @ whole), rel=1e-5)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.losses.tolist() == pytest.approx([loss for _, loss in direct], rel=1e-5)
    assert distance(found.mean, whole) <= 1e-5


def test_a_network_over_stacked_weights_is_the_ordinary_one():
    task = digits_mlp()
    trainee = task.trainee(seed=1)
    layers = [torch.nn.Linear(low, high) for low, high in [(64, 64), (64, 32), (32, 10)]]
    network = torch.nn.Sequential(
        torch.nn.Flatten(), layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2]
    )
    matrices = iter(split(trainee.weights.detach()[None], task.network.shapes))
    for layer in layers:
        layer.weight.data, layer.bias.data = next(matrices)[0].T, next(matrices)[0]
    with torch.no_grad():
        scores = network(torch.from_numpy(task.held_out.inputs))
    expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(task.held_out.classes))
    assert trainee.loss(task.held_out) == pytest.approx(float(expected), rel=1e-5)


def test_convolutions_are_the_ordinary_ones():
    task = TASKS["digits_cnn"]()
    trainee = task.trainee(seed=1)
    w = [piece[0] for piece in split(trainee.weights.detach()[None], task.network.shapes)]
    x = torch.from_numpy(task.held_out.inputs).unsqueeze(1)
    functional = torch.nn.functional
    x = functional.conv2d(x, w[0].T.reshape(12, 1, 3, 3), w[1], padding=1).tanh()
    for layer, low, high in [(2, 12, 24), (4, 24, 32)]:
        kernel = w[layer].reshape(2, 2, low, high).permute(3, 2, 0, 1)
        x = functional.conv2d(x, kernel, w[layer + 1], stride=2).tanh()
    scores = x.permute(0, 2, 3, 1).flatten(1) @ w[6] + w[7]
    expected = functional.cross_entropy(scores, torch.from_numpy(task.held_out.classes))
    assert trainee.loss(task.held_out) == pytest.approx(float(expected), rel=1e-5)


def test_the_transformer_sees_no_later_character():
    task = TASKS["characters"]()
    weights = split(task.trainee(seed=1).weights.detach()[None], task.network.shapes)
    inputs = torch.from_numpy(task.examples.inputs[:4])[None]
    changed = inputs.clone()
    changed[..., 10] += 1
    before, after = (task.network.scores(weights, x % 48) for x in (inputs, changed))
    assert torch.allclose(before[:, :, :10], after[:, :, :10], atol=1e-6)
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:], atol=1e-3)


@pytest.mark.parametrize("name", TASKS)
def test_an_iteration_is_an_ordinary_optimizer_step(name):
    task = TASKS[name]()
    job = virtual_job(task)
    weights = job.trainee.weights.detach().clone().requires_grad_()
    rate = task.learning_rate * 128 / task.reference_batch
    optimizer = (
        torch.optim.Adam([weights], lr=rate)
        if task.optimizer == "adam"
        else torch.optim.SGD([weights], lr=rate, momentum=0.9)
    )
    order = SampleOrder(len(task.examples), 3)
    twin = task.trainee(seed=3)
    for _ in range(3):
        twin.weights.data.copy_(weights.detach())
        weights.grad, _ = direct_gradient(task, twin, order.take(128))
        optimizer.step()
    job.advance(ClusterConfig(6, 128), 3)
    # Adam makes steps of full size even along gradients that are nothing but rounding.
    tolerance = 1e-3 if task.optimizer == "adam" else 1e-5
    assert distance(job.trainee.weights, weights) <= tolerance


@pytest.mark.parametrize("samples", range(1, 24))
def test_every_sample_is_dealt_to_one_shard(samples):
    for shards in range(1, samples + 1):
        places, weights, shares = shard_samples(samples, shards)
        counted = places[weights > 0].tolist()
        assert sorted(counted) == list(range(samples))
        assert weights.sum(dim=1).tolist() == pytest.approx([1.0] * shards)
        sizes = (shares * samples).round().int().tolist()
        assert sum(sizes) == samples
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("samples", "shards"), [(3, 4), (3, 0)])
def test_a_shard_without_samples_is_refused(samples, shards):
    with pytest.raises(ValueError, match="shards"):
        shard_samples(samples, shards)


def test_one_worker_splits_as_often_as_told():
    rows = virtual_job(split_every=4).advance(ClusterConfig(1, 32), 9)
    assert rows.shards == (2, 1, 1, 1, 2, 1, 1, 1, 2)
    assert [norm is None for norm in rows.local_norm_sq] == [shards == 1 for shards in rows.shards]
    assert [norm is None for norm in rows.mean_norm_sq] == [shards == 1 for shards in rows.shards]
    assert None not in rows.loss
    assert set(rows.sync_time) == {0.0}


@pytest.mark.parametrize(("config", "every"), [((1, 32), 0), ((1, 1), 2)])
def test_one_worker_may_never_split(config, every):
    rows = virtual_job(split_every=every).advance(ClusterConfig(*config), 4)
    assert rows.shards == (1, 1, 1, 1)


def test_splitting_changes_nothing_but_what_is_measured():
    whole, halved = virtual_job(split_every=0), virtual_job(split_every=1)
    config = ClusterConfig(1, 33)
    losses = [job.advance(config, 10).loss for job in (whole, halved)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_rows_look_like_a_real_job():
    job = virtual_job()
    rows = job.advance(ClusterConfig(4, 64), 200)
    assert rows.iteration == tuple(range(1, 201))
    assert set(rows.shards) == {4}
    assert all(local >= mean > 0 for local, mean in noisy(rows))
    for name, seconds in zip(TIMES, (0.116, 0.09, 0.206), strict=True):
        values = getattr(rows, name)
        assert np.mean(values) == pytest.approx(seconds, rel=0.02)
        assert len(set(values)) == 200
    assert np.std(np.log(rows.compute_time)) == pytest.approx(0.05, rel=0.2)
    assert rows.loss[-1] < rows.loss[0]
    assert job.epochs == 200 * 64 / job.dataset_size


def noisy(rows) -> list[tuple[float, float]]:
    return list(zip(rows.local_norm_sq, rows.mean_norm_sq, strict=True))


def test_a_seed_repeats_a_run_and_another_does_not():
    config = ClusterConfig(3, 64)
    first, second, other = (virtual_job(seed=seed).advance(config, 20) for seed in (1, 1, 2))
    assert first == second
    assert first.loss != other.loss
    assert first.compute_time != other.compute_time


def test_advancing_in_pieces_changes_nothing():
    whole, pieces = virtual_job(), virtual_job()
    config = ClusterConfig(4, 48)
    losses = whole.advance(config, 10).loss
    assert pieces.advance(config, 4).loss + pieces.advance(config, 6).loss == losses


def test_another_configuration_goes_on_from_the_same_weights():
    """The same samples in the same batches train the same with any number of workers."""
    steady, changed = virtual_job(), virtual_job()
    steady.advance(ClusterConfig(2, 64), 8)
    for workers in (1, 2, 5, 16):
        changed.advance(ClusterConfig(workers, 64), 2)
    assert changed.iterations == 8
    assert torch.allclose(steady.trainee.weights, changed.trainee.weights, atol=1e-4)


def test_an_epoch_holds_every_sample_once_for_any_batches():
    order = SampleOrder(100, seed=0)
    batches = [order.take(count) for count in (30, 7, 41, 30, 92, 250, 50)]
    stream = np.concatenate(batches)
    for epoch in range(5):
        assert sorted(stream[100 * epoch : 100 * (epoch + 1)]) == list(range(100))
    assert stream[:100].tolist() != stream[100:200].tolist()


def test_a_run_ends_at_its_target():
    task = replace(digits_mlp(), goal=0.6)
    done = run_to_target(
        task, ClusterConfig(2, 128), clock=CLOCK, rule="linear", seed=0, max_epochs=5
    )
    assert done.reached
    assert done.iterations == len(done.rows)
    assert done.epochs == done.iterations * 128 / len(task.examples) < 5


def test_a_finished_job_does_not_advance():
    job = virtual_job(replace(digits_mlp(), goal=0.6))
    config = ClusterConfig(2, 128)
    while not job.is_finished:
        job.advance(config, 10)
    assert len(job.advance(config, 10)) == 0


def test_a_run_ends_at_the_cap():
    done = run_to_target(
        digits_mlp(), ClusterConfig(2, 1000), clock=CLOCK, rule="linear", seed=0, max_epochs=1
    )
    assert not done.reached
    assert done.iterations == 8
    assert 1 <= done.epochs < 1 + 1000 / 7185


def test_a_loss_beyond_repair_ends_the_run():
    task = replace(TASKS["digits_mlp"](), learning_rate=math.inf)
    done = run_to_target(
        task, ClusterConfig(2, 64), clock=CLOCK, rule="none", seed=0, max_epochs=50
    )
    assert not done.reached
    assert done.epochs < 1
    assert done.rows.loss[-1] is None
    assert done.rows.local_norm_sq[-1] is None


def test_measuring_noise_leaves_no_trace():
    job, twin = virtual_job(), virtual_job()
    config = ClusterConfig(4, 64)
    rows = measure_noise(job, config, 5, np.random.default_rng(0))
    assert rows.iteration == (1, 2, 3, 4, 5)
    assert job.advance(config, 5) == twin.advance(config, 5)


def test_one_worker_measures_noise_in_halves():
    rows = measure_noise(virtual_job(), ClusterConfig(1, 64), 3, np.random.default_rng(0))
    assert rows.shards == (2, 2, 2)
    assert None not in rows.local_norm_sq


def test_one_configuration_predicts_the_noise_of_the_grid():
    job, rng, iterations = virtual_job(), np.random.default_rng(5), 150
    job.advance(ClusterConfig(4, 64), 225)
    seen = ClusterConfig(8, 192)
    scale = estimate_noise(measure_noise(job, seen, 4 * iterations, rng), 192).noise_scale
    errors = []
    for workers in (2, 4, 8, 16):
        for batch in (64, 192, 512):
            config = ClusterConfig(workers, batch)
            gamma = estimate_noise(measure_noise(job, config, iterations, rng), batch).noise
            errors.append(abs(noise_at(scale, config) / gamma - 1))
    assert np.mean(errors) <= 0.04


def test_layers_follow_from_the_widths():
    assert Perceptron((4, 3, 2)).shapes == ((4, 3), (3,), (3, 2), (2,))


def test_without_pytorch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("tasks", "virtual", "networks"):
        monkeypatch.delitem(sys.modules, f"tests.paper.{name}")
    with pytest.raises(ImportError, match=r"scavenger\[torch\]"):
        importlib.import_module("tests.paper.tasks")


def test_adascale_learns_at_the_gain_of_the_noise_it_has_seen():
    """AdaScale's gain (Johnson et al., 2020) from the φ of the iterations before."""
    task, config = digits_mlp(), ClusterConfig(4, 256)
    job = VirtualJob(task, CLOCK, rule="adascale", seed=3)
    assert job._learning_rate(config) == task.learning_rate
    job.advance(config, 60)
    scale = job.noise.noise_scale
    assert scale is not None
    gain = (1 + scale / task.reference_batch) / (1 + scale / 256)
    assert job._learning_rate(config) == pytest.approx(task.learning_rate * gain)
    assert 1 < gain < 256 / task.reference_batch


def test_alone_adascale_follows_the_iterations_that_are_split():
    job = VirtualJob(digits_mlp(), CLOCK, rule="adascale", seed=3, split_every=5)
    job.advance(ClusterConfig(1, 64), 20)
    assert job.noise.rows == 4
