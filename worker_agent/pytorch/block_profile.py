"""`BlockProfiler`: times the blocks of a script's model, and writes a profile of its layouts.

A call of the model is recorded and computed again, with two batches: a block's time has a part that
no batch changes. The profile is what ``scavenger plan --layouts`` reads.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from scavenger.layout import Layout
from scavenger.measurement.layout_profile import (
    LAYOUT_PROFILE,
    USUAL_LINK,
    BlockProfile,
    LayoutProfile,
)
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.block_timing import measure_link, measure_optimizer, time_blocks
from worker_agent.pytorch.layouts.chain import cut_model, edges_at
from worker_agent.pytorch.layouts.chain import find_chain as find_parts
from worker_agent.pytorch.layouts.tensor import (
    KNOWN_PLAN,
    TensorGroup,
    choose_cuts,
    share_weights,
)
from worker_agent.pytorch.stacks.compiled import CONTAINERS, repeated_blocks
from worker_agent.pytorch.stacks.model_call import (
    CallRecorder,
    ModelCall,
    devices_of,
)
from worker_agent.session import sharing_of

SHARD_COUNTS = (2, 4, 8)
MOST_STAGES_TRIED = 8  # a search looks for no more
LONGEST_REASON = 300
FEWER = 8  # times fewer samples are timed, too
MAX_STEPS = 10  # within these a model is called twice, and given gradients


class BlockProfiler:
    """Profiles the model of this process once an optimizer has stepped, and ends the process.

    Args:
        report: File to write the profile to, as JSON.
    """

    def __init__(self, report: Path) -> None:
        self.report = report
        self.recorder: CallRecorder | None = None
        self.model: nn.Module | None = None
        self.steps, self.first_step_at = 0, 0.0
        self.hooks: list[Any] = []

    def listen(self) -> None:
        """Wait for the first call of a module with gradients, and for steps of its optimizer."""
        self.hooks = [
            register_module_forward_pre_hook(self._find_model),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def _find_model(self, module: nn.Module, _: Any) -> None:
        has_weights = any(each.requires_grad for each in module.parameters())
        if self.model is None and has_weights and torch.is_grad_enabled():
            wrapped: Any = module
            model = wrapped.module if isinstance(module, DistributedDataParallel) else module
            self.model, self.recorder = model, CallRecorder(model, 0, lambda: None)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        recorder, self.steps = self.recorder, self.steps + 1
        self.first_step_at = self.first_step_at or time.time()
        if recorder is None or self.model is None:
            return
        is_recorded = any(each is not None for each in recorder.cotangents)
        if not is_recorded and self.steps < MAX_STEPS:
            return
        for hook in self.hooks:
            hook.remove()
        call = recorder.close()
        batch = 0 if call is None else batch_of((call.arguments, call.named))
        if call is None:
            print(f"no gradient came to the model in {MAX_STEPS} steps", file=sys.stderr)
        elif batch <= fewest_samples(self.model):
            more = "two" if fewest_samples(self.model) == 1 else "three"
            print(
                f"the first tensor that the model is given has no {more} samples", file=sys.stderr
            )
        else:
            whole = replace(call, batch=batch)
            found = profile_call(self.model, whole, optimizer)
            began = psutil.Process().create_time()
            self._write(replace(found, start_seconds=max(self.first_step_at - began, 0.0)))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # the script would go on for hours

    def _write(self, found: LayoutProfile) -> None:
        fresh = self.report.with_suffix(".new")
        fresh.write_bytes(LAYOUT_PROFILE.dump_json(found, exclude_defaults=True))
        fresh.replace(self.report)


def batch_of(values: Any) -> int:
    """Return the samples of a batch: the length of the first tensor."""
    tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor) and each.dim())
    return next((len(each) for each in tensors), 0)


def profile_call(model: nn.Module, call: ModelCall, optimizer: Optimizer) -> LayoutProfile:
    """Return what the time of any layout of a model follows from.

    Args:
        model: The model.
        call: A call of it, of two samples or more.
        optimizer: Its optimizer, which has stepped.

    Returns:
        The profile; the link between machines is a usual one, as one machine cannot measure it.
    """
    chain, said = find_chain(model), sharing_of(model)
    cuts = find_cuts(model, said.tensor_plan)
    # What no batch changes tells how many micro-batches pay, and shows in small batches only.
    few = call.first(max(call.batch // FEWER, fewest_samples(model)))
    large, small = (time_blocks(model, chain, each) for each in (call, few))
    own = [list(module.parameters()) for module in chain.values()]
    within = {id(each) for parameters in own for each in parameters}
    before = [each for each in model.parameters() if id(each) not in within]
    profiles = []
    for place, (name, parameters) in enumerate(
        zip(["before", *chain, "after"], [before, *own, []], strict=True)
    ):
        seconds = large.seconds(place)
        added = max(seconds - small.seconds(place), 0.0)
        per_sample = min(added / (call.batch - few.batch), seconds / call.batch)
        profiles.append(
            BlockProfile(
                name,
                fixed_seconds=seconds - per_sample * call.batch,
                seconds_per_sample=per_sample,
                output_bytes=large.handed_over[place] / call.batch,
                saved_bytes=large.saved[place] / call.batch,
                weight_bytes=sum(each.nbytes for each in parameters),
                all_reduces=(sums := count_sums(name, chain, cuts)),
                all_reduce_bytes=large.handed_over[place] / call.batch if sums else 0.0,
            )
        )
    most_stages, uncut, starts = find_stages(model, optimizer, said.blocks)
    profiles = [replace(each, begins_no_stage=each.name not in starts) for each in profiles]
    slots, seconds = measure_optimizer(optimizer)
    hosted, at_once, memory = machine_of(model)
    return LayoutProfile(
        tuple(without_empty_ends(profiles)),
        inside=measure_link(),
        across=USUAL_LINK,
        processes_per_machine=hosted,
        concurrent_processes=at_once,
        machine_memory_bytes=memory,
        optimizer_slots=slots,
        optimizer_seconds=seconds,
        heads=most_shards(model, call, said.tensor_plan) if cuts else 1,
        has_batch_statistics=has_batch_statistics(model),
        most_stages=most_stages,
        uncut_reason=uncut,
        has_own_passes=said.loss is None,
    )


def find_stages(
    model: nn.Module, optimizer: Optimizer, blocks: Sequence[Any] | None
) -> tuple[int, str, frozenset[str]]:
    """Return how many stages a model can be cut into, why not more, and what one can begin with."""
    try:
        chain = find_parts(model, blocks)
    except Exception as error:  # noqa: BLE001 - a tracer fails in any way, and trains nothing here
        return 1, f"it cannot be cut: {error}"[:LONGEST_REASON], frozenset()
    starts = set()
    for name, _ in model.named_modules():
        with suppress(UnsupportedModel):
            edges_at((name,), model, chain)
            starts.add(name)
    for count in range(2, MOST_STAGES_TRIED + 1):
        try:
            cut_model(model, optimizer, blocks, Layout(count))
        except UnsupportedModel as error:
            return count - 1, str(error)[:LONGEST_REASON], frozenset(starts)
    return MOST_STAGES_TRIED, "", frozenset(starts)


def find_cuts(model: nn.Module, plan: Mapping[str, str] | None) -> dict[str, str]:
    """Return how processes could share each layer, by its name; empty where nothing says so."""
    wanted: Any = KNOWN_PLAN if plan is None else plan
    try:
        return dict(choose_cuts(model, wanted, 1, is_known=plan is None))
    except UnsupportedModel:
        return {}


def count_sums(block: str, chain: Mapping[str, nn.Module], cuts: Mapping[str, str]) -> int:
    """Return the sums over processes in both passes of a block whose layers they share.

    One in the forward pass after a layer that is cut by rows, and one in the backward pass before
    the layers that it follows. What lies outside all blocks counts for what is before the first.
    """

    def is_in(name: str, place: str) -> bool:
        return name == place or name.startswith(f"{place}.")

    if block == "before":
        own = [cut for name, cut in cuts.items() if not any(is_in(name, each) for each in chain)]
        return len(own)
    own = [cut for name, cut in cuts.items() if is_in(name, block)]
    return 2 * own.count("row")


class _OneOfMany(TensorGroup):
    """One of the processes that share weights, to whose sums the others add nothing."""

    def __init__(self, count: int) -> None:
        super().__init__(None, 0, count)

    def divided(self, scores: Tensor) -> Any:
        return scores

    def gather(self, x: Tensor) -> Tensor:
        return torch.cat([x] * self.count, -1)

    def sum(self, x: Tensor) -> Tensor:
        return x


def most_shards(model: nn.Module, call: ModelCall, plan: Mapping[str, str] | None) -> int:
    """Return how many processes can share the weights, of those that are tried: one part is run.

    A model may count its heads in a way that no name tells, and fail with a part of them.
    """
    few, most = call.first(fewest_samples(model)), 1
    for count in SHARD_COUNTS:
        try:
            part, cuts = copy.deepcopy(model), cast(Any, plan)
            optimizer = torch.optim.SGD(part.parameters())
            share_weights(part, optimizer, _OneOfMany(count), cuts)
            with torch.no_grad(), torch.random.fork_rng(devices_of(model)):
                part(*few.arguments, **few.named)
        except Exception:  # noqa: BLE001 - it is the model's own, and says that so many cannot
            return most
        most = count
    return most


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether a part of the model normalises by the samples of its batch."""
    return any(isinstance(each, _BatchNorm) for each in model.modules())


def fewest_samples(model: nn.Module) -> int:
    """Return how few samples a model can train on: one has no variance."""
    return 2 if has_batch_statistics(model) else 1


def machine_of(model: nn.Module) -> tuple[int, int, float]:
    """Return processes that this machine hosts and that compute at once, and bytes for all.

    On GPUs each has one of its own. On CPUs they share the cores, of which each takes as many as it
    has threads, and memory, of which nothing tells how much is left.
    """
    if any(each.is_cuda for each in model.parameters()):
        count = torch.cuda.device_count()
        sizes = [torch.cuda.get_device_properties(n).total_memory for n in range(count)]
        return count, count, float(min(sizes) * count)
    cores = len(os.sched_getaffinity(0))
    return cores, max(cores // torch.get_num_threads(), 1), math.inf


def without_empty_ends(profiles: Sequence[BlockProfile]) -> list[BlockProfile]:
    """Leave out what is before the first block or after the last one, if it computes nothing."""
    first, *blocks, last = profiles
    begins = [first] if first.weight_bytes or first.saved_bytes else []
    return [*begins, *blocks, *([last] if last.saved_bytes else [])]


def find_chain(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by name: its repeated ones, or else the parts it is made of."""
    names = {module: name for name, module in model.named_modules()}
    found = list(repeated_blocks(model)) or list(parts_of(model))
    return {names[module]: module for module in found}


def parts_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a module is made of; of containers, what they hold."""
    for child in module.children():
        if isinstance(child, CONTAINERS):
            yield from parts_of(child)
        else:
            yield child
