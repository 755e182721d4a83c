"""Reads a submitted job document and reports everything that is wrong with it at once.

Each problem says where it stands, with which value, and what to write instead; the jargon of the
validating library never reaches a user.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import (
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.fields import SpecModel, closest_name
from scavenger.job.layout import LayoutSpec
from scavenger.job.limits import Limits, MemoryLimit
from scavenger.job.machine import MachineSpec
from scavenger.job.messages import show_value
from scavenger.job.parser import (
    MAX_DEPTH,
    DocumentPath,
    ParsedDocument,
    Positions,
    dotted_path,
    find_flaws,
    problem_at,
    scan_json,
    scan_yaml,
)
from scavenger.job.pricing import (
    InterruptionsSpec,
    MachinePriceSpec,
    MemorySpec,
    ResourcePriceSpec,
    ServersSpec,
    price_spec_type,
)
from scavenger.job.run import CheckpointsSpec, RunSpec, check_directory
from scavenger.job.spec import (
    EpochsTarget,
    JobSpec,
    MetricTarget,
    ModelSpec,
    WeightedObjective,
    target_type,
)
from scavenger.job.training import (
    DownpourSpec,
    LearningRateSpec,
    NamedStrategySpec,
    ParameterServerSpec,
    PipeDreamSpec,
    SandblasterSpec,
)

MAX_PROBLEMS = 100


def parse_job(
    text: str,
    media: Literal["yaml", "json"] = "yaml",
    *,
    directory: str | None = None,
    code: str | None = None,
) -> JobSpec:
    """Read a job document and say everything that is wrong with it at once.

    Args:
        text: The document.
        media: How it is written.
        directory: Absolute path the command runs in when the document names neither a directory
            nor code.
        code: SHA-256 of the code to run, in place of that in the document.

    Raises:
        InvalidDocument: Every problem, in order of appearance, with line and column.
        ValueError: The argument ``directory`` is not absolute.
    """
    document = scan_yaml(text) if media == "yaml" else scan_json(text)
    value = document.value
    if directory is not None and code is None:
        value = _run_with(value, {"directory": check_directory(directory)}, {"directory", "code"})
    if code is not None:
        value = _run_with(value, {"code": code}, set())
    return _accept(ParsedDocument(value, document.positions, document.problems))


def _run_with(value: object, added: Mapping[str, str], unless: Collection[str]) -> object:
    """Add keys to ``run`` of a document, unless it has one of certain keys."""
    run = value.get("run") if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or not isinstance(run, dict)
        or not run.keys().isdisjoint(unless)
    ):
        return value
    return {**value, "run": {**run, **added}}


def validate_job(value: object, positions: Positions | None = None) -> JobSpec:
    """Check a job document that was parsed elsewhere, such as the body of a request.

    Args:
        value: What the JSON or YAML says.
        positions: Line and column of its paths, if the text is known.

    Raises:
        InvalidDocument: Every problem, in order of appearance.
    """
    places = positions or {}
    return _accept(ParsedDocument(value, places, tuple(find_flaws(value, places))))


def _accept(document: ParsedDocument) -> JobSpec:
    try:
        spec = JobSpec.model_validate(document.value)
    except ValidationError as error:
        raise InvalidDocument(_problems(document, error.errors(include_url=False))) from None
    if document.problems:
        raise InvalidDocument(_problems(document, []))
    return spec


def _problems(document: ParsedDocument, errors: Sequence[ErrorDetails]) -> list[DocumentProblem]:
    """Join the problems of the text with those of its meaning, in order of appearance."""
    order = {path: place for place, path in enumerate(_paths(document.value, ()))}
    known = {problem.path for problem in document.problems}
    complaints = _complaints(document, errors[: 10 * MAX_PROBLEMS])
    found = [*document.problems, *(each for each in complaints if each.path not in known)]
    found.sort(key=lambda each: (each.line or 0, each.column or 0, _rank(each.path, order)))
    if len(found) > MAX_PROBLEMS:
        return [
            *found[:MAX_PROBLEMS],
            DocumentProblem("", "there are more problems: solve these first"),
        ]
    return found


def _paths(value: object, path: DocumentPath) -> Iterator[str]:
    yield dotted_path(path)
    if len(path) > MAX_DEPTH:
        return
    entries = value.items() if isinstance(value, dict) else ()
    for part, item in enumerate(value) if isinstance(value, list) else entries:
        yield from _paths(item, (*path, part))


def _rank(path: str, order: Mapping[str, int]) -> int:
    while path not in order and path:
        path = path.rpartition(".")[0]
    return order[path]


def _complaints(
    document: ParsedDocument, errors: Sequence[ErrorDetails]
) -> Iterator[DocumentProblem]:
    """Yield what pydantic found in plain words, less what follows from another complaint."""
    meant = {
        (*error["loc"][:-1], _meant(error["loc"], document))
        for error in errors
        if error["type"] == "extra_forbidden"
    }
    for error in errors:
        path = error["loc"]
        message = _words(error, document)
        if message is None or (error["type"] == "missing" and path in meant):
            continue
        if error["type"] not in ("missing", "extra_forbidden"):
            path = _existing(path, document.value)
        yield problem_at(path, message, document.positions)


def _existing(path: DocumentPath, value: object) -> DocumentPath:
    """Cut a path where the document has nothing: pydantic also counts what a value became."""
    for depth, part in enumerate(path):
        match value:
            case dict() if part in value:
                value = value[part]
            case list() if isinstance(part, int):
                value = value[part]
            case _:
                return path[:depth]
    return path


def _fields(path: DocumentPath, document: ParsedDocument) -> Mapping[str, FieldInfo]:
    """Return the fields that may stand beside the last part of a path."""
    match path[:-1], document.value:
        case ("target",), {"target": dict(target)}:
            return target_type(target).model_fields
        case ("price",), {"price": dict(price)}:
            return price_spec_type(price).model_fields
        case place, _ if place in _SECTIONS:
            return _SECTIONS[place].model_fields
        case _:
            return {}


_SECTIONS: Mapping[DocumentPath, type[SpecModel]] = {
    (): JobSpec,
    ("model",): ModelSpec,
    ("objective",): WeightedObjective,
    ("limits",): Limits,
    ("limits", "memory"): MemoryLimit,
    ("limits", "layout"): LayoutSpec,
    ("strategy",): NamedStrategySpec,
    ("strategy", "parameter_server"): ParameterServerSpec,
    ("strategy", "downpour"): DownpourSpec,
    ("strategy", "pipedream"): PipeDreamSpec,
    ("strategy", "sandblaster"): SandblasterSpec,
    ("lr_scaling",): LearningRateSpec,
    ("price", "servers"): ServersSpec,
    ("price", "interruptions"): InterruptionsSpec,
    ("price", "memory"): MemorySpec,
    ("machine",): MachineSpec,
    ("run",): RunSpec,
    ("run", "checkpoints"): CheckpointsSpec,
}
# Sections whose keys depend on which kind is meant.
_KINDS: Sequence[tuple[str, type[SpecModel]]] = (
    ("target", EpochsTarget),
    ("target", MetricTarget),
    ("price", MachinePriceSpec),
    ("price", ResourcePriceSpec),
)
_HOMES = {
    key: dotted_path(place) if place else "the top of the document"
    for place, section in _SECTIONS.items()
    for key in section.model_fields
} | {key: home for home, section in _KINDS for key in section.model_fields}


def _words(error: ErrorDetails, document: ParsedDocument) -> str | None:
    """Say one error of pydantic in words of this document; None if another one says it."""
    kind, path, given = error["type"], error["loc"], error["input"]
    if kind in ("invalid_key", "default_factory_not_called"):
        return None
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    about = _fields(path, document).get(str(path[-1])) if path else None
    if kind == "missing":
        return f"is missing: write e.g. {path[-1]}: {_example(about)}"
    if given is None:
        return _blank(path, about)
    if kind == "value_error":
        return str(error["ctx"]["error"])
    expected = expected_words(kind, error.get("ctx", {}))
    got = "something else" if path[:2] == ("run", "env") else show_value(given)  # may be a secret
    return f"must be {expected}, got {got}{_remedy(kind, path, about)}"


def _example(about: FieldInfo | None) -> str:
    return str(about.examples[0]) if about and about.examples else ""


def _blank(path: DocumentPath, about: FieldInfo | None) -> str:
    if not path:
        return f"the document is empty: write {_REQUIRED}"
    if about is None:
        return "has no value: write one"
    way_out = "" if about.is_required() else ", or leave the key out"
    return f"has no value: write e.g. {_example(about)}{way_out}"


_REQUIRED = ", ".join(name for name, field in JobSpec.model_fields.items() if field.is_required())


def _remedy(kind: str, path: DocumentPath, about: FieldInfo | None) -> str:
    if not path:
        return f": write {_REQUIRED}"
    if kind == "string_type" and about is None:
        return ": put it in quotes"
    if kind in ("string_type", "int_type", "float_type", "tuple_type", "model_type", "dict_type"):
        return f": write e.g. {_example(about) or 64}"
    return ""


def _unknown_key(path: DocumentPath, document: ParsedDocument) -> str:
    key, meant = path[-1], _meant(path, document)
    if meant:
        remedy = f"did you mean {meant}?"
    elif key in _HOMES:
        remedy = f"it belongs in {_HOMES[str(key)]}"
    else:
        remedy = f"the keys here are {', '.join(_fields(path, document))}"
    return f"unknown key {show_value(key)}: {remedy}"


def _meant(path: DocumentPath, document: ParsedDocument) -> str | None:
    """Guess the key that was meant; None for one that is right elsewhere or like no other."""
    return None if path[-1] in _HOMES else closest_name(path[-1], list(_fields(path, document)))


def expected_words(kind: str, context: Mapping[str, Any]) -> str:
    """Return what a value should have been, for one kind of error of pydantic."""
    match kind:
        case "int_type" | "int_parsing":
            return "a whole number"
        case "float_type" | "finite_number":
            return "a number"
        case "string_type":
            return "text"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "tuple_type":
            return "a list"
        case "literal_error":
            return str(context["expected"]).replace("'", "")
        case "greater_than":
            return f"above {context['gt']:.0f}"
        case "greater_than_equal":
            return f"at least {context['ge']:g}"
        case "less_than_equal":
            return f"at most {context['le']:.0f}"
        case "string_too_short" | "string_too_long":
            return "text of 1 to 200 characters"
        case _:
            return "a mapping"
