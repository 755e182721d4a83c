"""`CompiledBlocks` and `CompiledWhole`: forward and backward passes by Inductor.

Compiling takes minutes, so it happens in a rehearsal only (``stacks/rehearsal.py``). A shape that
no rehearsal has compiled, as in an evaluation, runs eager instead of stalling.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from worker_agent.pytorch.stacks.switch import PreparedScript

Options = Mapping[str, bool]
Mode = Literal["run", "compile", "eager"]

# Random numbers are eager's, so that dropout drops the same neurons.
OPTIONS: Options = {"fallback_random": True}
# For code with wrong gradients, in the order in which they are tried: PyTorch 2.13 may read a
# buffer before a scatter has written it (pytorch #185509).
REPAIRS: Sequence[Options] = (
    {"reorder_for_peak_memory": False},
    {"reorder_for_peak_memory": False, "layout_optimization": False},
)
# Blocks of one class may differ in their shapes, and each shape is a graph of its own.
MAX_GRAPHS = 64
COMPILER_NICENESS = 10
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class CompiledCall:
    """Calls a module with a compiled ``forward``; its hooks stay outside the graph.

    Attributes:
        mode: Whether graphs are compiled now, run if there are any, or not used.
        batch: While graphs are compiled, length of dimensions that will change.

    Args:
        module: The module.
        backend: What compiles, as ``torch.compile`` takes it.
        options: Its options.
    """

    def __init__(self, module: nn.Module, backend: Any, options: Options) -> None:
        self.module = module
        self.mode: Mode = "run"
        self.batch = 0
        self.compiled = torch.compile(module.forward, backend=backend, options=dict(options))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        module: Any = self.module
        if self.mode == "eager":
            return module._call_impl(*arguments, **named)
        if self.mode == "compile" and self.batch > 1:
            mark_dynamic((arguments, named), self.batch)
        attributes = module.__dict__
        before = attributes.get("forward")
        attributes["forward"] = self.compiled
        stance = "default" if self.mode == "compile" else "eager_on_recompile"
        try:
            with torch.compiler.set_stance(stance):
                return module._call_impl(*arguments, **named)
        finally:
            if before is None:
                del attributes["forward"]
            else:
                attributes["forward"] = before


class Compiled(ABC):
    """Some modules of a model, compiled; an instance serves one script.

    Attributes:
        backend: What compiles them.
    """

    name: str
    backend: Any = "inductor"

    def __init__(self) -> None:
        self.calls: list[CompiledCall] = []
        self.options = OPTIONS
        self.repairs = iter(REPAIRS)

    @abstractmethod
    def modules(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules to compile, each as one graph."""

    def refusal(self, script: PreparedScript) -> str | None:
        """Say why this model cannot be compiled; None as far as that can be told beforehand."""
        if any(is_compiled(module) for module in script.model.modules()):
            return "the script compiles its model itself"
        if not self.modules(script.model):
            return "no block of the model is repeated: compiled_whole compiles a model as one"
        return explain_missing_compiler(next(script.model.parameters()).device)

    def turn_on(self, script: PreparedScript) -> None:
        self._compile(self.modules(script.model))

    def turn_off(self, script: PreparedScript) -> None:
        for call in self.calls:
            vars(call.module).pop("_compiled_call_impl", None)
        self.calls = []

    def repair(self) -> bool:
        """Change to options with which code is right that was wrong; False without any more."""
        repair = next(self.repairs, None)
        if repair is not None:
            self.options = {**OPTIONS, **repair}
            self._compile([call.module for call in self.calls])
        return repair is not None

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Use no graph as long as this context is open."""
        with self._in_mode("eager"):
            yield

    @contextmanager
    def compiling(self, batch: int) -> Iterator[None]:
        """Compile what is called in this context, for batches of other sizes too if possible.

        What the compiler warns of is about its own code, which no script can change.
        """
        if self.backend == "inductor":
            lower_compilers()
        with (
            self._in_mode("compile", batch),
            torch._dynamo.config.patch(recompile_limit=MAX_GRAPHS),
            warnings.catch_warnings(action="ignore"),
        ):
            yield

    @contextmanager
    def _in_mode(self, mode: Mode, batch: int = 0) -> Iterator[None]:
        try:
            for call in self.calls:
                call.mode, call.batch = mode, batch
            yield
        finally:
            for call in self.calls:
                call.mode, call.batch = "run", 0

    def _compile(self, modules: Sequence[nn.Module]) -> None:
        self.calls = [CompiledCall(module, self.backend, self.options) for module in modules]
        for call in self.calls:
            call.module._compiled_call_impl = call


class CompiledBlocks(Compiled):
    """Compiles each repeated block: one small graph serves all of them.

    Gradients of the last block are there while those of the first are computed, so that averaging
    still overlaps with the backward pass.
    """

    name = "compiled"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return list(repeated_blocks(model))


class CompiledWhole(Compiled):
    """Compiles the model as one graph; its gradients are all there at the end only."""

    name = "compiled_whole"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [model]


@cache
def lower_compilers() -> None:
    """Let C++ compilers yield to what trains on this machine: they inherit it from their threads.

    With a single thread the training thread itself compiles, and keeps its priority. Linux alone
    gives threads priorities of their own.
    """
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    threads = get_compile_threads()
    if threads == 1 or sys.platform != "linux":
        return
    all_threads = threading.Barrier(threads)

    def lower() -> None:
        all_threads.wait()  # so that each of them takes one of these tasks
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILER_NICENESS)

    for lowered in [AsyncCompile.pool().submit(lower) for _ in range(threads)]:
        lowered.result()


def mark_dynamic(values: Any, length: int) -> None:
    """Mark that the first dimension of tensors with this length will change."""
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == length:
            torch._dynamo.maybe_mark_dynamic(value, 0)


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that are one of several of their class beside each other.

    Containers, which only hold others, and modules without any part are no blocks.
    """
    children = list(module.children())
    blocks = [
        child
        for child in children
        if not isinstance(child, CONTAINERS) and next(child.children(), None) is not None
    ]
    kinds = [type(child) for child in blocks]
    for child in children:
        if child in blocks and kinds.count(type(child)) > 1:
            yield child
        else:
            yield from repeated_blocks(child)


def is_compiled(module: nn.Module) -> bool:
    """Whether the script has compiled a module itself."""
    by_itself: Callable[..., Any] | None = module._compiled_call_impl
    is_ours = by_itself is None or isinstance(by_itself, CompiledCall)
    return not is_ours or isinstance(module, torch._dynamo.OptimizedModule)


def explain_missing_compiler(device: torch.device) -> str | None:
    """Say what a device misses that code for it can be compiled; None if it misses nothing."""
    dynamo: Any = torch._dynamo
    if not dynamo.is_dynamo_supported():
        return "PyTorch cannot compile with this version of Python"
    if device.type != "cpu":
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "this machine has no C++ compiler: install g++, or name one in CXX"
    return None
