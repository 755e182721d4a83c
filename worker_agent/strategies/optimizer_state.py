"""The state of an optimizer, taken and given without copies.

``Optimizer.load_state_dict`` copies every slot and adapts it to the type of its parameter; between
equal workers both are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from worker_agent.errors import StateRefused
from worker_agent.strategies.layout import like

NOT_OPTIONS = ("params", "param_names")


def optimized(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters in the order of their groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return slots and options, with the optimizer's own tensors, for ``tree.encode``."""
    return {
        "kind": kind_of(optimizer),
        "slots": [dict(optimizer.state.get(p, {})) for p in optimized(optimizer)],
        "common": common_state(optimizer),
        "groups": [options_of(group) for group in optimizer.param_groups],
    }


def common_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return what an optimizer keeps for no parameter in particular, as some do under a text."""
    kept: dict[Any, Any] = dict(optimizer.state)
    return {key: value for key, value in kept.items() if not isinstance(key, Tensor)}


def slot_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the slots that are tensors by the names ``tree.encode`` gives them."""
    return {
        f"optimizer/slots/{place}/{name}": value
        for place, parameter in enumerate(optimized(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def check_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """See whether a state belongs to such an optimizer.

    Raises:
        StateRefused: It is of another kind, or has other groups or numbers of parameters.
    """
    sizes = len(state["slots"]), len(state["groups"])
    mine = len(list(optimized(optimizer))), len(optimizer.param_groups)
    if (state["kind"], *sizes) != (kind_of(optimizer), *mine):
        raise StateRefused(
            f"the state is of {state['kind']} with {sizes[0]} parameters in {sizes[1]} groups; the"
            f" optimizer here is {kind_of(optimizer)} with {mine[0]} in {mine[1]}"
        )


def kind_of(optimizer: Optimizer) -> str:
    """Return the name of an optimizer's class."""
    return type(optimizer).__qualname__


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Give the optimizer these slots themselves, and the options of these groups."""
    for group, options in zip(optimizer.param_groups, state["groups"], strict=True):
        load_options(group, options)
    slots_of = iter(state["slots"])
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if slots := next(slots_of):
                optimizer.state[parameter] = {
                    name: placed(value, parameter, group) for name, value in slots.items()
                }
    optimizer.state.update(state["common"])


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's options; functions are part of the script, and the same in every process."""
    return {
        name: value
        for name, value in group.items()
        if name not in NOT_OPTIONS and (isinstance(value, Tensor) or not callable(value))
    }


def load_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    """Overwrite a group's options; a learning rate that is a tensor stays that tensor."""
    for name, value in options.items():
        mine = group.get(name)
        if isinstance(mine, Tensor) and isinstance(value, Tensor) and mine.shape == value.shape:
            mine.copy_(value)
        else:
            group[name] = value


def placed(value: Any, parameter: Tensor, group: dict[str, Any]) -> Any:
    """Return a slot where and as optimizers keep it: scalars on the host unless the step is fused.

    What is as large as the parameter lies as it does, not in the order it came in.
    """
    if not isinstance(value, Tensor):
        return value
    is_with_parameter = value.dim() > 0 or group.get("fused") or group.get("capturable")
    return like(parameter, value.to(parameter.device)) if is_with_parameter else value
