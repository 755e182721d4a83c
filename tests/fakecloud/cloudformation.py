"""What a CloudFormation template says once its parameters are known.

Exactly the functions that our template uses; any other is an error, so that no test passes on a
template that was not understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml


class TemplateLoader(yaml.SafeLoader):
    """Reads ``!Ref x`` as ``{"Ref": "x"}``."""


def _read_function(loader: TemplateLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    match node:
        case yaml.ScalarNode():
            value: Any = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case _:
            raise ValueError(f"!{name} of a mapping is not understood here")
    return {f"Fn::{name}": value}


TemplateLoader.add_multi_constructor("!", _read_function)


@dataclass(frozen=True, slots=True)
class Template:
    """A template, with the values of its parameters and of what it makes.

    Attributes:
        text: The file.
        values: By the name of a parameter, of ``AWS::...``, of a resource, or of its attribute.
    """

    text: str
    values: Mapping[str, str | list[str]]

    @property
    def document(self) -> Any:
        return yaml.load(self.text, TemplateLoader)

    def resources(self, kind: str) -> Mapping[str, Any]:
        """Return the properties of all resources of a kind that are made, by their names."""
        document = self.document
        return {
            name: self._settle(made["Properties"])
            for name, made in document["Resources"].items()
            if made["Type"] == kind
            and ("Condition" not in made or self._settle(document["Conditions"][made["Condition"]]))
        }

    def _settle(self, value: Any) -> Any:
        match value:
            case dict() if len(value) == 1 and next(iter(value)).startswith("Fn::"):
                ((name, told),) = value.items()
                return self._call(name.removeprefix("Fn::"), told)
            case dict():
                return {key: self._settle(one) for key, one in value.items()}
            case list():
                return [self._settle(one) for one in value]
            case _:
                return value

    def _call(self, name: str, told: Any) -> Any:
        functions: Mapping[str, Callable[[Any], Any]] = {
            "Ref": lambda one: self.values[one],
            "GetAtt": lambda one: self.values[one],
            "Sub": lambda one: re.sub(r"\$\{([^}]+)\}", lambda hit: self._text(hit[1]), one),
            "Join": lambda one: one[0].join(one[1]),
            "Split": lambda one: one[1].split(one[0]),
            "Equals": lambda one: one[0] == one[1],
            "Not": lambda one: not one[0],
        }
        return functions[name](self._settle(told))

    def _text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str)
        return value
