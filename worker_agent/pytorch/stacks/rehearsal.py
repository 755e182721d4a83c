"""`StackRehearsal`: one pass of the loop body that does not count, before a stack is trained with.

The script computes its loss on a batch once, eager. What the model was given then is computed again
by the stack, without the script: that compiles it, and compares its gradients with eager's.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from scavenger.stack import MAX_REFUSAL_LENGTH, REHEARSED_PARTS, Stack, StackCheck, StackPartName
from worker_agent.pytorch.stacks.code_cache import CodeCache
from worker_agent.pytorch.stacks.compiled import Compiled
from worker_agent.pytorch.stacks.gradient_guard import find_wrong_gradient, relative_error
from worker_agent.pytorch.stacks.model_call import (
    CallRecorder,
    ModelCall,
    buffers_kept,
    copy_in_float64,
)
from worker_agent.pytorch.stacks.switch import StackSwitch
from worker_agent.pytorch.state import random_states, restore_random_states
from worker_agent.pytorch.tensors import encode_torch_state
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import Stateful, collect_states

log = logging.getLogger(__name__)

MAX_LOSS_REDUCTIONS = 12
MAX_SKIPPED_BATCHES = 3  # a script may skip one that it was handed in a rehearsal


class StackRehearsal:
    """Compiles and checks the stack of a script before it is trained with; `Rehearsals`.

    Attributes:
        is_open: Whether the script runs its loop body now, which must not count.
        checks: What was found, oldest first.
        refused: Stacks that this script cannot be trained with, and why.

    Args:
        switch: The stack of the script.
        extra_state: Objects that the loop body may change, besides model and optimizer.
        on_work: Called when the model begins to work on the batch.
        cache: Where compiled code is kept.
    """

    def __init__(
        self,
        switch: StackSwitch,
        extra_state: Mapping[str, Stateful],
        on_work: Callable[[], None],
        cache: CodeCache,
    ) -> None:
        self.switch, self.on_work, self.cache = switch, on_work, cache
        # Of these the steps are suppressed anyway.
        self.extra_state = {
            name: each
            for name, each in extra_state.items()
            if not isinstance(each, (LRScheduler, GradScaler))
        }
        self.is_open = False
        self.checks: list[StackCheck] = []
        self.refused: dict[Stack, str] = {}
        self.seen: set[tuple[Stack, int]] = set()
        self.skipped: Counter[Stack] = Counter()

    def due(
        self, batches: Sequence[int], stack: Stack | None = None
    ) -> AbstractContextManager[None] | None:
        if stack is not None:
            self.use(stack)
        return self.opened(batches) if self.is_needed(batches) else None

    def use(self, stack: Stack) -> None:
        """Change to a stack; parts that this script cannot run with are left out."""
        if stack in self.refused:
            stack = stack.without(REHEARSED_PARTS)
        why_not = self.switch.refusals(stack)
        if why_not:
            self.note_refusal(stack, why_not)
        self.switch.change(stack.without(why_not.keys()))

    def is_needed(self, batches: Sequence[int]) -> bool:
        """Whether the stack is yet to be rehearsed with one of these local batches."""
        stack = self.switch.stack
        return stack.is_rehearsed and any((stack, batch) not in self.seen for batch in batches)

    @contextmanager
    def opened(self, batches: Sequence[int]) -> Iterator[None]:
        """Let the script run its loop body once on the largest of these batches, then check.

        Nothing is raised: a stack that fails is left out. Where the script skips the batch, another
        is asked for.
        """
        stack, largest, model = self.switch.stack, max(batches), self.model
        began_at = time.perf_counter()
        recorder = CallRecorder(model, largest, self.on_work)
        self.is_open = True
        try:
            with self._eager(), self._state_kept(), buffers_kept(model):
                yield
        finally:
            self.is_open = False
            call = recorder.close()
            for parameter in model.parameters():
                parameter.grad = None
        if call is None and self.skipped[stack] < MAX_SKIPPED_BATCHES:
            self.skipped[stack] += 1
            return
        error, why = 0.0, "the script computed no gradient in the rehearsal"
        trouble, share = "", 1.0
        if call is not None:
            try:
                trouble = self.cache.open() if stack.is_compiled else ""
                error, why = self._check(call, batches)
                share = self._memory_share(call)
                trouble = trouble or self.cache.share()
            except Exception as failure:
                log.debug("rehearsing %s failed", stack, exc_info=True)
                why = explain_failure(failure)
        self.seen.update((stack, batch) for batch in batches)
        seconds = time.perf_counter() - began_at
        said = why[:MAX_REFUSAL_LENGTH]
        lacking = trouble[:MAX_REFUSAL_LENGTH]
        self.checks.append(StackCheck(str(stack), largest, seconds, error, said, lacking, share))
        if why:
            self._refuse(stack, why)

    def note_refusal(self, stack: Stack, why_not: Mapping[StackPartName, str]) -> None:
        """Note that parts of a stack are left out, as the script cannot run with them."""
        why = "; ".join(f"{name}: {said}" for name, said in why_not.items())
        if any(check.stack == str(stack) and check.refusal == why for check in self.checks):
            return
        log.warning("of the stack %s is left out %s", stack, why)
        self.checks.append(StackCheck(str(stack), 0, 0.0, 0.0, why[:MAX_REFUSAL_LENGTH]))

    def _refuse(self, stack: Stack, why: str) -> None:
        rest = stack.without(REHEARSED_PARTS)
        log.warning("the stack %s is left out: %s; training goes on with %s", stack, why, rest)
        self.refused[stack] = why
        self.switch.change(rest)

    def _check(self, call: ModelCall, batches: Sequence[int]) -> tuple[float, str]:
        """Compile and compare; returns the error of all gradients, and what is wrong if any."""
        model = self.model
        exact_model = copy_in_float64(model)
        names = [name for name, each in model.named_parameters() if each.requires_grad]
        call = self._without_overflow(call)
        parts = [call.first(batch) for batch in sorted(set(batches), reverse=True)]
        exact = [part.in_float64().gradients(exact_model) for part in parts]
        with self._eager():
            eager = [part.gradients(model) for part in parts]
        error = max(map(relative_error, eager, exact))
        if not math.isfinite(error):
            return 0.0, "its gradients are not finite"
        compiled = self._compiled
        while compiled is not None:
            for part, *known in zip(parts, eager, exact, strict=True):
                with compiled.compiling(part.batch):
                    computed = part.gradients(model)
                wrong = find_wrong_gradient(names, computed, *known)
                if wrong is not None:
                    break
            else:
                break
            self.seen.clear()  # code that was compiled before has other options
            if not compiled.repair():
                return error, f"of {part.batch} samples {wrong}"
            log.info("%s: of %d samples %s; compiled otherwise", compiled.name, part.batch, wrong)
        return error, ""

    def _memory_share(self, call: ModelCall) -> float:
        """Return what the stack keeps for the backward pass, relative to the script as it is."""
        model = self.model
        # Eager in float64 keeps the same tensors, with numbers of eight bytes.
        wide = call.in_float64().kept_bytes(copy_in_float64(model))
        kept, size = call.kept_bytes(model), next(model.parameters()).element_size()
        return kept * 8 / (wide * size) if kept and wide else 1.0

    def _without_overflow(self, call: ModelCall) -> ModelCall:
        """Return a call with so small a loss that its gradients are finite, if that helps.

        A loss scaler begins with a scale that overflows in float16, and finds a smaller one.
        """
        for _ in range(MAX_LOSS_REDUCTIONS):
            with self._eager():
                found = [each for each in call.gradients(self.model) if each is not None]
            if all(bool(each.isfinite().all()) for each in found):
                break
            call = call.scaled(1 / 4)
        return call

    @property
    def model(self) -> nn.Module:
        """The model of the script."""
        return self.switch.script.model

    @property
    def _compiled(self) -> Compiled | None:
        return next((part for part in self.switch.on if isinstance(part, Compiled)), None)

    def _eager(self) -> Any:
        """Run without graphs, in the precision of the stack."""
        compiled = self._compiled
        return nullcontext() if compiled is None else compiled.eager()

    @contextmanager
    def _state_kept(self) -> Iterator[None]:
        """Restore random streams and the script's objects at the end."""
        states = random_states()
        encoded = encode_torch_state(collect_states(self.extra_state))
        tensors = {name: tensor.clone() for name, tensor in encoded.arrays.items()}
        try:
            yield
        finally:
            restore_random_states(states)
            kept = decode_state(encoded.tree, tensors)
            for name, each in self.extra_state.items():
                each.load_state_dict(kept[name])


def explain_failure(error: BaseException) -> str:
    """Say in one line why a stack fails; a compiler's own text may be pages."""
    inner = getattr(error, "inner_exception", error)  # PyTorch's compilers wrap what they meet
    first = next(iter(str(inner).splitlines()), "")
    return f"it fails: {type(inner).__name__}: {first}"
