"""A batch that is read ahead is refused before a weight is wrong; any may be skipped."""

from __future__ import annotations

import dis
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from tests.controller_double import LONG
from tests.crew import SAMPLES, Classifier, Crew, assert_as_alone, crew
from worker_agent.errors import ReadAhead
from worker_agent.pytorch import gradient_buckets, reducer
from worker_agent.session import Session
from worker_agent.training import read_ahead
from worker_agent.training.read_ahead import instruction_at

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = 24
Batches = Iterator[Tensor]
Train = Callable[[Any], None]


class Training(Classifier):
    """One process's worth of objects."""

    def __init__(self, passes: int = 1) -> None:
        super().__init__(passes)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)

    def train(self, indices: Tensor, _: int = 0) -> None:
        self.optimizer.zero_grad()
        for part in indices.chunk(self.passes):
            self.loss(part).backward()
        self.optimizer.step()


# Who reads ahead.


def twice(batches: Batches, train: Train) -> None:
    first = next(batches)
    second = next(batches)
    for indices in (first, second):
        train(indices)


def looking_ahead(batches: Batches, train: Train) -> None:
    """As Accelerate's loaders do, to know which batch is the last."""

    def ahead() -> Batches:
        current = next(batches)
        while True:
            try:
                following = next(batches)
                yield current
                current = following
            except StopIteration:
                yield current
                break

    for indices in ahead():
        train(indices)


class Fetcher:
    """As Lightning's does where a loader has no length."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.kept = batches, deque[Tensor]()

    def __iter__(self) -> Fetcher:
        self.kept.append(next(self.batches))
        return self

    def __next__(self) -> Tensor:
        batch = self.kept.popleft()
        self.kept.append(next(self.batches))
        return batch


def fetched(batches: Batches, train: Train) -> None:
    for indices in Fetcher(batches):
        train(indices)


class Primed:
    """As PyTorch's DataLoader does with worker processes."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.kept = batches, deque[Any]()
        for _ in range(2):
            self.put()

    def put(self) -> None:
        self.kept.append(next(self.batches).tolist())

    def __iter__(self) -> Primed:
        return self

    def __next__(self) -> Any:
        batch = self.kept.popleft()
        self.put()
        return torch.tensor(batch)


def primed(batches: Batches, train: Train) -> None:
    for indices in Primed(batches):
        train(indices)


def on_a_thread(batches: Batches, train: Train) -> None:
    loaded: queue.Queue[list[int]] = queue.Queue()

    def load() -> None:
        with suppress(ReadAhead):  # raised where the model is
            for indices in batches:
                loaded.put(indices.tolist())
                if loaded.qsize() > 2:
                    break

    threading.Thread(target=load, daemon=True).start()
    while True:
        train(torch.tensor(loaded.get(timeout=LONG)))


def on_a_thread_that_lags_at_first(batches: Batches, train: Train) -> None:
    """The first batch is trained on before the thread asks for another, as chance may have it."""
    loaded, is_first_trained = queue.Queue[list[int]](), threading.Event()

    def load() -> None:
        with suppress(ReadAhead):
            loaded.put(next(batches).tolist())
            is_first_trained.wait()
            loaded.put(next(batches).tolist())

    loader = threading.Thread(target=load)
    loader.start()
    try:
        train(torch.tensor(loaded.get()))
    finally:
        is_first_trained.set()
        loader.join()


def several_at_once(batches: Batches, train: Train) -> None:
    """As trainers do to accumulate gradients over batches."""

    def draw() -> list[list[int]]:
        return [batch.tolist() for batch in islice(batches, 3)]

    while parts := draw():
        for part in parts:
            train(torch.tensor(part))


def in_pairs(batches: Batches, train: Train) -> None:
    for one, other in zip(batches, batches, strict=False):
        train(torch.cat([one, other]))


def delayed(batches: Batches, train: Train) -> None:
    before = None
    for indices in batches:
        if before is not None:
            train(before)
        before = indices


def buffered(batches: Batches, train: Train) -> None:
    def buffer() -> Batches:
        kept = deque[Tensor]()
        for indices in batches:
            kept.append(indices)
            if len(kept) > 1:
                yield kept.popleft()

    for indices in buffer():
        train(indices)


def gathered(batches: Batches, train: Train) -> None:
    while True:
        kept = []
        for _ in range(3):
            kept.append(next(batches))
        for indices in kept:
            train(indices)


def gathered_copies(batches: Batches, train: Train) -> None:
    while True:
        kept = []
        for _ in range(3):
            kept.append(next(batches).tolist())
        for indices in kept:
            train(torch.tensor(indices))


READERS_AHEAD = (
    *(twice, looking_ahead, fetched, primed, on_a_thread, on_a_thread_that_lags_at_first),
    *(several_at_once, in_pairs, delayed, buffered, gathered),
)


@pytest.mark.parametrize("read", READERS_AHEAD, ids=lambda read: read.__name__)
@pytest.mark.parametrize("is_loaded", [False, True], ids=["indices", "samples"])
def test_a_script_that_reads_ahead_is_refused_before_it_trains(
    tmp_path: Path, read: Callable[[Batches, Train], None], *, is_loaded: bool
) -> None:
    """Whether it draws from the session, or from a generator of its own between the two."""
    training = Training()
    before = training.weights()

    def script(job: Session, _: Any) -> None:
        job.prepare(training.model, training.optimizer)
        batches = job.batches(SAMPLES, BATCH, epochs=1, seed=9)
        read((indices for indices in batches) if is_loaded else batches, training.train)

    with crew(tmp_path, script) as workers, pytest.raises(ReadAhead, match=r"length.*Lightning"):
        workers.play(1, BATCH, iterations=4)
    assert torch.equal(training.weights(), before)


def test_a_model_on_another_thread_is_noticed_between_two_batches_too() -> None:
    """The thread that draws may be about to hand the next batch out as the model begins."""
    training, told = Training(), []
    parameters = training.model.parameters()
    averaging = reducer.Reducer(
        parameters,
        micro_batches=1,
        should_abort=lambda: False,
        on_work=lambda **how: told.append(how),
    )
    averaging.watch_forward(training.model)

    def run() -> None:
        training.loss(torch.arange(4))

    def evaluate() -> None:
        with torch.no_grad():
            run()

    def elsewhere(target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    elsewhere(run)
    assert not told, "nothing was drawn yet"
    averaging.begin(reducer.WHOLE_BATCH)
    averaging.skip()
    averaging.end()
    run()
    elsewhere(evaluate)
    assert not told
    elsewhere(run)
    assert told == [{"is_called_by_script": True}], "it trains on what another thread has drawn"


def test_copies_of_batches_that_are_gathered_first_are_refused(tmp_path: Path) -> None:
    def script(job: Session, _: Any) -> None:
        training = Training()
        job.prepare(training.model, training.optimizer)
        gathered_copies(job.batches(SAMPLES, BATCH, epochs=1, seed=9), training.train)

    with crew(tmp_path, script) as workers, pytest.raises(ReadAhead):
        workers.play(1, BATCH, iterations=4)


@pytest.mark.parametrize("strategy", ["parameter_server", "downpour"])
def test_reading_ahead_is_refused_with_every_strategy(tmp_path: Path, strategy: str) -> None:
    def script(job: Session, _: Any) -> None:
        training = Training()
        training.optimizer = optim.Adagrad(training.model.parameters(), lr=0.1)
        job.prepare(training.model, training.optimizer)
        looking_ahead(job.batches(SAMPLES, BATCH, epochs=1, seed=9), training.train)

    with crew(tmp_path, script, strategy=strategy) as workers, pytest.raises(ReadAhead):
        workers.play(1, BATCH, iterations=4)


def functions_in(module: Any) -> Iterator[CodeType]:
    """Return the code of all functions of a module."""
    waiting = [compile(Path(module.__file__).read_text(), "module", "exec")]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield code


@pytest.mark.parametrize("module", [read_ahead, queue, dis], ids=lambda module: module.__name__)
def test_a_place_is_that_of_its_instruction_at_whichever_of_its_caches_it_stands(
    module: Any,
) -> None:
    """Which of them it is depends on how often Python has run the instruction."""
    cached = 0
    for code in functions_in(module):
        start = 0
        for instruction in dis.get_instructions(code, show_caches=True):
            is_cache = instruction.opname == "CACHE"
            start = start if is_cache else instruction.offset
            cached += is_cache
            assert instruction_at(code, instruction.offset) == start
    assert cached > 100


# Who skips.


def plain(batches: Batches) -> Iterable[Tensor]:
    return batches


def counted(batches: Batches) -> Iterable[Tensor]:
    for _, indices in enumerate(batches):
        yield indices


def shown(batches: Batches) -> Iterable[Tensor]:
    """As a progress bar does."""
    for indices in counted(batches):
        yield indices
        len(indices)


class Loader:
    """As PyTorch's DataLoader does without worker processes."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Tensor:
        return self.draw()

    def draw(self) -> Tensor:
        indices = next(self.batches)
        return torch.tensor(indices.tolist())


def drawn(batches: Batches) -> Iterable[Tensor]:
    return Loader(batches)


def before_the_model(training: Training, indices: Tensor) -> None:
    """Nothing that the agent could notice."""


def after_a_loss(training: Training, indices: Tensor) -> None:
    training.loss(indices)


def after_evaluating(training: Training, indices: Tensor) -> None:
    with torch.no_grad():
        training.loss(indices)


def in_the_middle(training: Training, indices: Tensor) -> None:
    training.optimizer.zero_grad()
    training.loss(indices.chunk(training.passes)[0]).backward()


def fail_halfway(training: Training, part: Tensor) -> None:
    """Run out of memory when the gradients of the last layer have been made."""
    *first, last = training.model

    def fail(_: Tensor) -> None:
        raise torch.OutOfMemoryError("out of memory")

    hidden = nn.Sequential(*first)(training.inputs[part])
    hidden.register_hook(fail)
    with suppress(torch.OutOfMemoryError):
        nn.functional.cross_entropy(last(hidden), training.labels[part]).backward()


def halfway_back(training: Training, indices: Tensor) -> None:
    *before, last = indices.chunk(training.passes)
    training.optimizer.zero_grad()
    for part in before:
        training.loss(part).backward()
    fail_halfway(training, last)


def step_without_a_pass(training: Training, indices: Tensor) -> None:
    training.optimizer.zero_grad()
    training.optimizer.step()


def closure_without_a_pass(training: Training, indices: Tensor) -> None:
    step: Any = training.optimizer.step
    step(training.optimizer.zero_grad)


LOOPS = (plain, counted, shown, drawn)
WAYS = (before_the_model, after_a_loss, after_evaluating, in_the_middle)
EMPTY_STEPS = (step_without_a_pass, closure_without_a_pass)
BAD = {3, 70, 71, 140, 141, 200}  # their part of a batch is skipped, of the first one too


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the last layer are sent before those of the first one are made."""
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 64)


def workers_of(made: Crew, iteration: int) -> int:
    """Return how many workers the iteration that counted had."""
    newest = max(row["turn"] for row in made.rows[iteration])
    return len({row["worker"] for row in made.rows[iteration] if row["turn"] == newest})


def is_bad(indices: Tensor) -> bool:
    return bool(BAD & set(indices.tolist()))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_batches_are_skipped_as_without_the_agent(
    tmp_path: Path, loop: Callable[[Batches], Iterable[Tensor]], way: Callable[..., None]
) -> None:
    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(passes=2)
        job.prepare(training.model, training.optimizer, micro_batches=2)
        for number, indices in enumerate(loop(job.batches(SAMPLES, BATCH, epochs=1, seed=9))):
            note(indices=indices, weights=training.weights())
            if number in (0, 1, 4):
                way(training, indices)
                continue
            training.train(indices)

    with crew(tmp_path, script) as workers:
        workers.play(1, BATCH, iterations=7)
    alone = Training()

    def train(indices: Tensor, iteration: int) -> None:
        if iteration not in (0, 1, 4):
            alone.train(indices)

    assert assert_as_alone(workers, alone.weights, train) == 6


# Other forms of loops that skip their first two batches: each calls train with the others.


def replaced(batches: Batches, train: Train) -> None:
    for number, indices in enumerate(batches):
        indices = torch.tensor(indices.tolist())
        if number >= 2:
            train(indices)


def mapped(batches: Batches, train: Train) -> None:
    for number, indices in enumerate(map(torch.clone, batches)):
        if number >= 2:
            train(indices)


def filtered(batches: Batches, train: Train) -> None:
    numbers = iter(range(SAMPLES))
    for indices in filter(lambda _: next(numbers) >= 2, batches):
        train(indices)


def sliced(batches: Batches, train: Train) -> None:
    for indices in islice(batches, 2, None):
        train(indices)


def in_tuples(batches: Batches, train: Train) -> None:
    for item in enumerate(batches):
        if item[0] >= 2:
            train(item[1])


def deleted(batches: Batches, train: Train) -> None:
    for number, indices in enumerate(batches):
        if number >= 2:
            train(indices)
        del indices


def loaded_and_deleted(batches: Batches, train: Train) -> None:
    def load() -> Batches:
        for indices in batches:
            samples = indices.clone()
            del indices
            yield samples

    for number, samples in enumerate(load()):
        if number >= 2:
            train(samples)


FORMS = (replaced, mapped, filtered, sliced, in_tuples, deleted, loaded_and_deleted)


@pytest.mark.parametrize("loop", FORMS, ids=lambda loop: loop.__name__)
def test_a_loop_may_skip_its_first_batches_in_every_form(
    tmp_path: Path, loop: Callable[[Batches, Train], None]
) -> None:
    training, alone = Training(), Training()
    trained_on: list[Tensor] = []

    def train(indices: Tensor) -> None:
        trained_on.append(indices)
        training.train(indices)

    def script(job: Session, _: Any) -> None:
        job.prepare(training.model, training.optimizer)
        loop(job.batches(SAMPLES, BATCH, epochs=1, seed=9), train)

    with crew(tmp_path, script) as workers:
        workers.play(1, BATCH, iterations=5)
    assert len(trained_on) == 3
    for indices in trained_on:
        alone.train(indices)
    assert torch.equal(training.weights(), alone.weights())


@pytest.mark.parametrize(
    ("strategy", "way"),
    [
        *(("all_reduce", way) for way in (before_the_model, in_the_middle, after_a_loss)),
        *(("parameter_server", way) for way in (in_the_middle, after_evaluating)),
        *(
            (strategy, way)
            for strategy in ("all_reduce", "parameter_server")
            for way in (halfway_back, *EMPTY_STEPS)
        ),
    ],
)
@pytest.mark.usefixtures("many_buckets")
def test_what_one_worker_skips_all_do_over_resizes(
    tmp_path: Path, strategy: str, way: Callable[..., None]
) -> None:
    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(passes=2)
        schedule = optim.lr_scheduler.ExponentialLR(training.optimizer, 0.999)
        job.prepare(training.model, training.optimizer, micro_batches=2, scheduler=schedule)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=9):
            rate = torch.tensor([schedule.get_last_lr()[0]], dtype=torch.float64)
            note(indices=indices, weights=torch.cat([training.weights(), rate]))
            if is_bad(indices):
                way(training, indices)
                continue
            training.train(indices)
            schedule.step()

    with crew(tmp_path, script, strategy=strategy, split_every=3) as workers:
        for count in (1, 3, 2):
            workers.order(count, BATCH, iterations=6)
        workers.end()
    alone = Training()
    schedule = optim.lr_scheduler.ExponentialLR(alone.optimizer, 0.999)
    trained: set[bool] = set()

    def weights() -> Tensor:
        rate = torch.tensor([schedule.get_last_lr()[0]], dtype=torch.float64)
        return torch.cat([alone.weights(), rate])

    def train(indices: Tensor, _: int) -> None:
        trained.add(is_bad(indices))
        if not is_bad(indices):
            alone.train(indices)
            schedule.step()

    assert assert_as_alone(workers, weights, train) > 15
    assert trained == {True, False}


@pytest.mark.parametrize("way", [*WAYS, halfway_back, *EMPTY_STEPS], ids=lambda way: way.__name__)
def test_a_batch_that_is_skipped_at_a_workers_own_pace_leaves_nothing_to_the_next(
    tmp_path: Path, way: Callable[..., None]
) -> None:
    differences: list[float] = []

    def script(job: Session, note: Callable[..., None]) -> None:
        watched, alone = Training(passes=2), Training(passes=2)
        for training in (watched, alone):
            training.optimizer = optim.SGD(training.model.parameters(), 0.1, weight_decay=0.1)
        job.prepare(watched.model, watched.optimizer, micro_batches=2)
        for number, indices in enumerate(job.batches(SAMPLES, BATCH, epochs=1, seed=9)):
            differences.append(float((watched.weights() - alone.weights()).abs().max()))
            if number in (0, 1, 4):
                way(watched, indices)
                continue
            watched.train(indices)
            alone.train(indices)

    with crew(tmp_path, script, strategy="downpour") as workers:
        workers.play(1, BATCH, iterations=8)
    assert len(differences) == 8
    assert max(differences) < 1e-12
    times = [t for report in workers.conductor.reports for t in report.steps.compute_time]
    assert times
    assert min(times) >= 0


@pytest.mark.parametrize("is_sent_early", [False, True], ids=["one bucket", "many buckets"])
def test_a_pass_that_failed_is_made_again_or_its_batch_is_skipped_by_all(
    tmp_path: Path, request: pytest.FixtureRequest, *, is_sent_early: bool
) -> None:
    """Whose gradients have been sent in part can make no others: the rest would not fit them."""
    if is_sent_early:
        request.getfixturevalue("many_buckets")

    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(passes=2)
        job.prepare(training.model, training.optimizer, micro_batches=2)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=9):
            note(indices=indices, weights=training.weights())
            training.optimizer.zero_grad()
            for number, part in enumerate(indices.chunk(2)):
                if is_bad(indices) and number == job.iteration % 2:
                    kept = [parameter.grad for parameter in training.model.parameters()]
                    fail_halfway(training, part)
                    for parameter, before in zip(training.model.parameters(), kept, strict=True):
                        parameter.grad = before
                training.loss(part).backward()
            training.optimizer.step()

    with crew(tmp_path, script, split_every=3) as workers:
        for count in (1, 3, 2):
            workers.order(count, BATCH, iterations=8)
        workers.end()
    alone = Training()
    skipped: set[bool] = set()

    def train(indices: Tensor, iteration: int) -> None:
        is_shared = workers_of(workers, iteration) > 1
        is_skipped = is_sent_early and is_shared and is_bad(indices) and iteration % 2 == 1
        skipped.add(is_skipped)
        if not is_skipped:
            alone.train(indices)

    assert assert_as_alone(workers, alone.weights, train) > 20
    assert skipped == ({True, False} if is_sent_early else {False})


@pytest.mark.parametrize("strategy", ["all_reduce", "parameter_server"])
@pytest.mark.parametrize("style", ["before the passes", "after a skip", "after an empty step"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_that_is_stepped_for_every_batch_stays_equal_where_one_worker_skips(
    tmp_path: Path, strategy: str, style: str
) -> None:
    """Where one worker alone skips, it advances as without the agent; else it is skipped too."""

    def scheduled() -> tuple[Training, Any]:
        training = Training()
        cycle_momentum = strategy == "all_reduce"  # servers are told rates alone
        return training, optim.lr_scheduler.CyclicLR(
            training.optimizer, 0.001, 0.01, 5, cycle_momentum=cycle_momentum
        )

    def facts(training: Training) -> Tensor:
        group = training.optimizer.param_groups[0]
        cycled = torch.tensor([group["lr"], *group["betas"]], dtype=torch.float64)
        return torch.cat([training.weights(), cycled])

    def script(job: Session, note: Callable[..., None]) -> None:
        training, schedule = scheduled()
        job.prepare(training.model, training.optimizer, scheduler=schedule)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=9):
            note(indices=indices, weights=facts(training))
            if style == "before the passes":
                schedule.step()
            loss = training.loss(indices)
            training.optimizer.zero_grad()
            if not is_bad(indices):
                loss.backward()
            if not is_bad(indices) or style == "after an empty step":
                training.optimizer.step()
            if style != "before the passes":
                schedule.step()

    with crew(tmp_path, script, strategy=strategy) as workers:
        for count in (1, 3, 2):
            workers.order(count, BATCH, iterations=6)
        workers.end()
    alone, schedule = scheduled()
    seen: set[tuple[bool, bool]] = set()

    def train(indices: Tensor, iteration: int) -> None:
        is_shared = workers_of(workers, iteration) > 1
        seen.add((is_bad(indices), is_shared))
        if is_bad(indices) and is_shared:
            return
        if style == "before the passes":
            schedule.step()
        if not is_bad(indices):
            alone.train(indices)
        if style != "before the passes":
            schedule.step()

    assert assert_as_alone(workers, lambda: facts(alone), train) > 15
    assert len(seen) == 4


def test_passes_that_were_made_before_a_batch_is_skipped_stay_as_without_the_agent(
    tmp_path: Path,
) -> None:
    """The script clears its gradients behind its steps, and goes on without one."""

    def loop(training: Training, number: int, indices: Tensor) -> None:
        for part in indices.chunk(2):
            training.loss(part).backward()
            if number == 1:
                return
        training.optimizer.step()
        training.optimizer.zero_grad()

    def script(job: Session, note: Callable[..., None]) -> None:
        training = Training(passes=2)
        job.prepare(training.model, training.optimizer, micro_batches=2)
        for number, indices in enumerate(job.batches(SAMPLES, BATCH, epochs=1, seed=9)):
            note(indices=indices, weights=training.weights())
            loop(training, number, indices)

    with crew(tmp_path, script) as workers:
        workers.play(1, BATCH, iterations=5)
    alone = Training(passes=2)

    def train(indices: Tensor, iteration: int) -> None:
        loop(alone, iteration, indices)

    assert assert_as_alone(workers, alone.weights, train) == 4
