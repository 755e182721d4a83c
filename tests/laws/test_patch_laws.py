"""A function that the agent has replaced is to its callers what it was, in all ways of calling it.

The functions are those that the product names; one that is added to it is held to the same laws.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler

import worker_agent
from worker_agent.launcher.patch import Patch
from worker_agent.pytorch import suppressed_steps
from worker_agent.pytorch.instrumentation import Instrumentation
from worker_agent.pytorch.suppressed_steps import override_method
from worker_agent.pytorch.warm_restart import TrackedObjects, WarmRestart
from worker_agent.settings import InstrumentationSettings, read_instrumentation_settings

AGENT = Path(worker_agent.__file__).parent
KINDS = inspect.Parameter
# What a careless wrapper might call its own arguments.
NAMES = ("self", "module", "owner", "original", "function", "call", "arguments", "options", "args")


class Refused(Exception):
    """What the original raises."""


def attached() -> Instrumentation:
    hook_settings: InstrumentationSettings = read_instrumentation_settings()
    return Instrumentation(0, lambda _: None, restart=WarmRestart(hook_settings, TrackedObjects()))


def every_patch() -> list[Patch]:
    agent = attached()
    return [*agent.patches(), *agent.sharded.patches(), *agent.keras.patches(Keras)]


class Keras:
    """Stands where ``keras.src.backend.torch.trainer`` does, which is not installed here."""

    class optimizers_module:  # noqa: N801
        class Optimizer:
            def apply(self, grads: Any, trainable_variables: Any = None) -> None: ...

            def load_own_variables(self, store: Any) -> None: ...

        class LossScaleOptimizer:
            def apply(self, grads: Any, trainable_variables: Any = None) -> None: ...

    class callbacks_module:  # noqa: N801
        class CallbackList:
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


def name_of(patch: Patch) -> str:
    return f"{patch.owner.__name__}.{patch.name}"


VALUES = st.sampled_from([None, 0, "text", object(), nn.Linear(1, 1), torch.ones(2), Refused("x")])


@st.composite
def legal_calls(draw: st.DrawFn, signature: inspect.Signature) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of one call that the signature allows."""
    parameters = list(signature.parameters.values())
    by_place = (KINDS.POSITIONAL_ONLY, KINDS.POSITIONAL_OR_KEYWORD)
    plain = [p for p in parameters if p.kind in by_place]
    needed = [p for p in plain if p.kind is KINDS.POSITIONAL_ONLY and p.default is KINDS.empty]
    count = draw(st.integers(len(needed), len(plain)))
    positional = [draw(VALUES) for _ in plain[:count]]
    named: dict[str, Any] = {}
    for parameter in parameters:
        match parameter.kind:
            case KINDS.VAR_POSITIONAL if count == len(plain):
                positional += draw(st.lists(VALUES, max_size=2))
            case KINDS.VAR_KEYWORD:
                free = [name for name in NAMES if name not in signature.parameters]
                named |= draw(st.dictionaries(st.sampled_from(free), VALUES, max_size=3))
            case KINDS.POSITIONAL_OR_KEYWORD | KINDS.KEYWORD_ONLY:
                is_given = parameter in plain[:count]
                if not is_given and (parameter.default is KINDS.empty or draw(st.booleans())):
                    named[parameter.name] = draw(VALUES)
    return positional, named


class Stub:
    """Stands where an original stood: has its signature, and does what it is told."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.signature = inspect.signature(original)
        self.heard: list[inspect.BoundArguments] = []
        self.answer: Any = None

        def stub(*positional: Any, **named: Any) -> Any:
            self.heard.append(self.signature.bind(*positional, **named))
            if isinstance(self.answer, Refused):
                raise self.answer
            return self.answer

        stub.__signature__ = self.signature  # type: ignore[attr-defined]
        self.function = stub


def assert_passes_on(
    stub: Stub,
    replacement: Callable[..., Any],
    positional: list[Any],
    named: dict[str, Any],
    answer: Any,
) -> None:
    """Call the replacement; what the original hears and says must be as without it."""
    stub.answer, stub.heard = answer, []
    if isinstance(answer, Refused):
        with pytest.raises(Refused) as caught:
            replacement(*positional, **named)
        assert caught.value is answer
    else:
        assert replacement(*positional, **named) is answer
    expected = stub.signature.bind(*positional, **named)
    (heard,) = stub.heard
    assert list(heard.arguments) == list(expected.arguments)
    for name, value in expected.arguments.items():
        if stub.signature.parameters[name].kind in (KINDS.VAR_POSITIONAL, KINDS.VAR_KEYWORD):
            assert heard.arguments[name] == value
        else:
            assert heard.arguments[name] is value


def around(patch: Patch) -> tuple[Stub, Callable[..., Any]]:
    stub = Stub(getattr(patch.owner, patch.name))
    return stub, patch.around(stub.function)


@pytest.mark.parametrize("patch", every_patch(), ids=name_of)
@settings(max_examples=40)
@given(data=st.data())
def test_every_legal_call_of_what_is_patched_reaches_the_original_as_it_was_made(
    patch: Patch, data: st.DataObject
) -> None:
    stub, replacement = around(patch)
    for _ in range(2):  # the second time its listener may have failed before
        positional, named = data.draw(legal_calls(stub.signature))
        assert_passes_on(stub, replacement, positional, named, data.draw(VALUES))


@pytest.mark.parametrize("patch", every_patch(), ids=name_of)
def test_an_illegal_call_is_refused_in_the_words_of_the_original(patch: Patch) -> None:
    stub, replacement = around(patch)
    for call in (lambda f: f(), lambda f: f(*range(99)), lambda f: f(**{"no such": 1})):
        said = []
        for function in (stub.function, replacement):
            try:
                said.append(call(function))
            except TypeError as error:
                said.append(str(error))
        assert said[0] == said[1]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Patch, Any]]]:
    """Replace everything in this process; yields patches with their originals, and undoes it."""
    pairs = []
    for patch in every_patch():
        original = getattr(patch.owner, patch.name)
        home = sys.modules[original.__module__]
        for owner in (patch.owner, home):
            if getattr(owner, patch.name, None) is original:
                monkeypatch.setattr(owner, patch.name, original)
        patch.apply()
        pairs.append((patch, original))
    yield pairs
    monkeypatch.undo()


def test_what_is_patched_looks_as_it_did(applied: list[tuple[Patch, Any]]) -> None:
    assert len(applied) >= 12
    for patch, original in applied:
        now = getattr(patch.owner, patch.name)
        assert now is not original
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(now, name) == getattr(original, name)
        assert inspect.signature(now) == inspect.signature(original)
        assert inspect.signature(now, follow_wrapped=False) == inspect.signature(original)
        # A few are wrapped already; what does not look behind wrappers is told more than before.
        assert inspect.getfullargspec(now) == inspect.getfullargspec(inspect.unwrap(original))
        assert inspect.unwrap(now) is inspect.unwrap(original)
        assert pickle.loads(pickle.dumps(now)) is now


def test_a_module_that_defines_what_another_passes_on_has_the_same(
    applied: list[tuple[Patch, Any]],
) -> None:
    assert dist.destroy_process_group is dist.distributed_c10d.destroy_process_group


def test_classes_derived_from_what_is_patched_may_rename_their_arguments(
    applied: list[tuple[Patch, Any]],
) -> None:
    class Mine(optim.SGD):
        def __init__(self, *, module: nn.Module, **options: Any) -> None:
            super().__init__(params=module.parameters(), **options)

        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict=state_dict)

    class Schedule(lr_scheduler.LambdaLR):
        def __init__(self, made: optim.Optimizer) -> None:
            super().__init__(optimizer=made, lr_lambda=abs)

    class Scaler(torch.amp.GradScaler):
        def scale(self, outputs: Any) -> Any:
            return super().scale(outputs=outputs)

    optimizer = Mine(module=nn.Linear(2, 2), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(optimizer.state_dict())
    assert Schedule(made=optimizer).get_last_lr() == [0.0]
    assert Scaler(device="cpu", init_scale=2.0).scale(torch.ones(1)).item() == 2.0


def test_listeners_that_fail_are_not_heard_of_and_not_asked_again() -> None:
    asked = []

    def fail(*values: Any) -> None:
        asked.append(values)
        raise Refused

    for listeners in ({"before": fail}, {"after": fail}):
        asked.clear()
        replacement = Patch(None, "", **listeners).around(lambda first, second=2: (first, second))
        assert [replacement(1), replacement(second=3, first=1)] == [(1, 2), (1, 3)]
        assert asked == [(1, 2)]


def test_an_argument_that_is_changed_keeps_its_place_however_it_was_given() -> None:
    def original(first: Any, *others: Any, last: Any = 3, **named: Any) -> Any:
        return first, others, last, named

    def change(first: Any, *rest: Any) -> Any:
        return (-first, *rest)

    replacement = Patch(None, "", before=change).around(original)
    assert replacement(1) == (-1, (), 3, {})
    assert replacement(1, 2, last=4, call=5) == (-1, (2,), 4, {"call": 5})
    assert replacement(first=1) == (-1, (), 3, {})


def test_nothing_is_replaced_but_through_a_patch_that_is_listed() -> None:
    """So that every patch is under the laws above."""
    for path in (*AGENT.glob("launcher/*.py"), *AGENT.glob("pytorch/*.py")):
        if path.name == "patch.py":
            continue
        tree = ast.parse(path.read_text())
        listed = [
            call
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name == "patches"
            for call in calls_of(function, "Patch")
        ]
        assert calls_of(tree, "Patch") == listed, path.name
        assert not calls_of(tree, "setattr"), path.name


def calls_of(tree: ast.AST, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


# What the session overrules: the methods of objects that it was given.


def make_optimizer() -> optim.Optimizer:
    return optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)


OVERRULED: dict[str, tuple[Callable[[], Any], str]] = {
    "scheduler": (lambda: lr_scheduler.StepLR(make_optimizer(), 2), "step"),
    "plateau": (lambda: lr_scheduler.ReduceLROnPlateau(make_optimizer()), "step"),
    "scaler": (lambda: torch.amp.GradScaler("cpu"), "update"),
}


@pytest.mark.parametrize("kind", OVERRULED)
@settings(max_examples=40)
@given(data=st.data())
def test_every_legal_call_of_what_is_overruled_reaches_the_original_as_it_was_made(
    kind: str, data: st.DataObject
) -> None:
    make, name = OVERRULED[kind]
    made = make()
    stub = Stub(getattr(type(made), name))
    wrap = suppressed_steps._update if name == "update" else suppressed_steps._step
    positional, named = data.draw(legal_calls(stub.signature))
    first = next(iter(stub.signature.parameters))
    if named.pop(first, None) is not None or not positional:
        positional = [made]  # methods are called on their object
    replacement = wrap(stub.function, lambda: name == "step")  # it may, and is not void
    assert_passes_on(stub, replacement, positional, named, data.draw(VALUES))


@pytest.mark.parametrize("kind", OVERRULED)
def test_what_is_overruled_looks_as_it_did_and_is_pickled_as_what_it_was(kind: str) -> None:
    make, name = OVERRULED[kind]
    made, plain = make(), make()
    suppressed_steps.SuppressedSteps({"it": made}, is_void=lambda: False, is_open=lambda: False)
    override_method(made, "state_dict", lambda method: method)  # once more
    assert isinstance(made, type(plain))
    assert repr(type(made)) == repr(type(plain))
    before, now = getattr(plain, name), getattr(made, name)
    assert inspect.signature(now) == inspect.signature(before)
    assert (now.__name__, now.__doc__) == (before.__name__, before.__doc__)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(made, protocol))
        assert type(copy) is type(plain)
        assert copy.state_dict().keys() == plain.state_dict().keys()
