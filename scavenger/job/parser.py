"""Parses YAML or JSON into plain values and remembers the position of each of them.

``scavenger.job.validation`` checks the meaning of the value and asks for the position of what is
wrong. YAML is read in the plain sense of JSON: text, numbers, true, false, null, lists and mappings
with text as keys; no tags, no aliases, no dates, and ``no`` is text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from scavenger.errors import DocumentProblem, InvalidDocument
from scavenger.job.messages import clip_text, escape_unprintable, show_value

MAX_DOCUMENT_BYTES = 32 * 1024
MAX_DEPTH = 32

DocumentPath = tuple[str | int, ...]
Positions = Mapping[DocumentPath, tuple[int, int]]

_TOO_DEEP = f"nested too deep: write at most {MAX_DEPTH} lists and mappings inside each other"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|nan)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """What a text says, where it says it, and what no document may say.

    Attributes:
        value: Lists, mappings with text as keys, text, numbers, booleans and None.
        positions: Line and column, both from 1, of each path: of the key in a mapping, of the item
            in a list; empty where they are not known.
        problems: What was found that no document may contain; ``value`` holds a stand-in for it.
    """

    value: object
    positions: Positions
    problems: tuple[DocumentProblem, ...]


def scan_yaml(text: str) -> ParsedDocument:
    """Read YAML as far as it can be read, so that its problems can be shown with later ones.

    Raises:
        InvalidDocument: The text cannot be read to its end: a syntax error, too large, too deep.

    >>> scan_yaml("limits: {batch: 32}").positions
    {(): (1, 1), ('limits',): (1, 1), ('limits', 'batch'): (1, 10)}
    """
    return _checked(_compose(text))


def scan_json(text: str) -> ParsedDocument:
    """Read JSON as far as it can be read, so that its problems can be shown with later ones.

    Raises:
        InvalidDocument: The text cannot be read to its end: a syntax error, too large, too deep.
    """
    _refuse_unreadable(text)
    tree = _load_json(text)
    unfolding = _JsonUnfolder(_json_positions(text))
    value = unfolding.unfold(tree, ())
    return _checked(ParsedDocument(value, unfolding.positions, tuple(unfolding.problems)))


def _checked(document: ParsedDocument) -> ParsedDocument:
    found = [*document.problems, *find_flaws(document.value, document.positions)]
    found.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    return ParsedDocument(document.value, document.positions, tuple(found))


def find_flaws(
    value: object, positions: Positions, path: DocumentPath = ()
) -> Iterator[DocumentProblem]:
    """Yield what no document may contain: no JSON value, not finite, no text, nested too deep.

    Args:
        value: A value that was parsed elsewhere, or by this module.
        positions: Where its paths stand; empty when the text is not known.
        path: Where ``value`` itself stands in the document.
    """
    message = _flaw(value, len(path))
    if message:
        yield problem_at(path, message, positions)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _key_flaws(key, positions, path)
            yield from find_flaws(item, positions, (*path, _named(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from find_flaws(item, positions, (*path, index))


def _flaw(value: object, depth: int) -> str | None:
    match value:
        case None | bool():
            return None
        case int() if not -(2**63) <= value < 2**63:
            return f"{show_value(value)} is too large: write one that fits in 64 bits"
        case float() if not math.isfinite(value):
            return f"{show_value(value)} is not allowed: write a finite number"
        case str() if _UNSTORABLE.search(value):
            return "holds a NUL character or half of a surrogate pair: remove it"
        case dict() | list() | tuple() if depth >= MAX_DEPTH:
            return _TOO_DEEP
        case int() | float() | str() | dict() | list() | tuple():
            return None
        case _:
            return (
                f"{show_value(value)} is no JSON value: write text, a number, a list or a mapping"
            )


def _key_flaws(key: object, positions: Positions, path: DocumentPath) -> Iterator[DocumentProblem]:
    if not isinstance(key, str):
        yield problem_at(
            (*path, _named(key)), f"key {show_value(key)} is no text: quote it", positions
        )
    elif _UNSTORABLE.search(key):
        message = "key holds a NUL character or half of a surrogate pair: remove it"
        yield problem_at((*path, key), message, positions)


def _named(key: object) -> str:
    return key if isinstance(key, str) else show_value(key)


def problem_at(path: DocumentPath, message: str, positions: Positions) -> DocumentProblem:
    """Say what is wrong at a path, with its position or that of what it stands in."""
    known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in positions), None)
    line, column = positions[known] if known is not None else (None, None)
    return DocumentProblem(dotted_path(path), message, line, column)


def dotted_path(path: DocumentPath) -> str:
    """Write a path as messages show it, such as ``limits.workers``."""
    return ".".join(clip_text(_named(part)) for part in path)


def _refuse_unreadable(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_DOCUMENT_BYTES:
        limit = f"a document has at most {MAX_DOCUMENT_BYTES} bytes"
        raise InvalidDocument([DocumentProblem("", f"the text has {size} bytes: {limit}")])
    unfit = _UNSTORABLE.search(text)
    if unfit:
        message = "the text holds a NUL character or half of a surrogate pair: remove it"
        raise InvalidDocument([DocumentProblem("", message, *_position(text, unfit.start()))])


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _compose(text: str) -> ParsedDocument:
    _refuse_unreadable(text)
    composing = _YamlComposer(yaml.parse(text, Loader=yaml.SafeLoader))
    try:
        value = composing.document()
    except yaml.MarkedYAMLError as error:
        raise InvalidDocument([_syntax(error)]) from None
    except yaml.reader.ReaderError as error:
        reason = f"character {escape_unprintable(chr(error.character))} is not allowed"
        place = _position(text, error.position)
        raise InvalidDocument(
            [DocumentProblem("", f"cannot be read as YAML: {reason}", *place)]
        ) from None
    except (ValueError, OverflowError):  # PyYAML lets chr() and int() fail on "\UFFFFFFFF"
        message = "cannot be read as YAML: it holds an escape or number that is out of range"
        raise InvalidDocument([DocumentProblem("", message)]) from None
    return ParsedDocument(value, composing.positions, tuple(composing.problems))


def _syntax(error: yaml.MarkedYAMLError) -> DocumentProblem:
    reason = clip_text(error.problem or error.context or "unknown reason")
    remedy = ": indent with spaces" if "\\t" in reason else ""
    message = f"cannot be read as YAML: {reason}{remedy}"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return DocumentProblem("", message)
    return DocumentProblem("", message, mark.line + 1, mark.column + 1)


@dataclass(frozen=True, slots=True)
class _YamlComposer:
    """Builds the value of one YAML document from parser events, and collects what it meets.

    PyYAML's own composer would follow aliases and recurse as deep as the text says.
    """

    events: Iterator[yaml.Event]
    positions: dict[DocumentPath, tuple[int, int]] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def document(self) -> object:
        """Return the value of the only document in the stream; None for an empty stream."""
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            self.positions[()] = (1, 1)
            return None
        value = self.node(next(self.events), ())
        next(self.events)
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            message = "a second document starts here: write one document per file"
            self.problems.append(DocumentProblem("", message, *_place(after)))
        return value

    def node(self, event: yaml.Event, path: DocumentPath) -> object:
        """Return the value that starts with this event."""
        self.positions.setdefault(path, _place(event))
        match event:
            case yaml.AliasEvent():
                message = f"alias {show_value(event.anchor)} is not allowed: write the value out"
                self.problems.append(problem_at(path, message, self.positions))
                return None
            case yaml.ScalarEvent():
                return self.scalar(event, path)
            case yaml.SequenceStartEvent():
                return list(self.items(event, path))
            case yaml.MappingStartEvent():
                return dict(self.entries(event, path))
            case _:
                raise AssertionError(f"PyYAML sent {event} where a value starts")

    def scalar(self, event: yaml.ScalarEvent, path: DocumentPath) -> object:
        """Return text, a number, a boolean or None; only unquoted words can be other than text."""
        self.refuse_tag(event, path)
        return _join_surrogates(event.value) if event.style else _plain(event.value)

    def items(self, start: yaml.SequenceStartEvent, path: DocumentPath) -> Iterator[object]:
        """Yield the items of a list."""
        self.refuse_tag(start, path)
        self.refuse_depth(start, path)
        index = 0
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, (*path, index))
            index += 1

    def entries(
        self, start: yaml.MappingStartEvent, path: DocumentPath
    ) -> Iterator[tuple[str, object]]:
        """Yield the entries of a mapping; keys are text, however they are written."""
        self.refuse_tag(start, path)
        self.refuse_depth(start, path)
        seen = set()
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                message = "a key must be text, not a list, a mapping or an alias"
                raise InvalidDocument([DocumentProblem(dotted_path(path), message, *_place(event))])
            name = _join_surrogates(event.value)
            key = (*path, name)
            self.positions[key] = _place(event)
            if name in seen:
                self.problems.append(problem_at(key, _duplicate(name), self.positions))
            seen.add(name)
            yield name, self.node(next(self.events), key)

    def refuse_tag(self, event: yaml.NodeEvent, path: DocumentPath) -> None:
        """Collect a problem if the value has an explicit tag such as ``!!python/object``."""
        tag = getattr(event, "tag", None)
        if tag is not None:
            message = f"tag {show_value(tag)} is not allowed: write the plain value, text in quotes"
            self.problems.append(problem_at(path, message, self.positions))

    def refuse_depth(self, event: yaml.Event, path: DocumentPath) -> None:
        """Raise if a list or mapping stands too deep to read on."""
        if len(path) >= MAX_DEPTH:
            raise InvalidDocument([DocumentProblem("", _TOO_DEEP, *_place(event))])


def _duplicate(key: str) -> str:
    return f"duplicate key {show_value(key)}: keep one of them"


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _join_surrogates(text: str) -> str:
    r"""Join halves of one character, as JSON escapes it (``\ud83d\ude00``); PyYAML does not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _plain(word: str) -> object:
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    if _INTEGER.fullmatch(word):
        return _whole(word)
    if _FRACTION.fullmatch(word):
        return float(word)
    if _NOT_FINITE.fullmatch(word):
        return float(word.replace(".", ""))
    return word


def _whole(digits: str) -> int | float:
    """Read digits as an integer; past 64 bits only the size matters, so they become a float."""
    return int(digits) if len(digits) <= 18 else float(digits)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The entries of a JSON object as they stand in the text, repeated keys included."""

    entries: list[tuple[str, object]]


def _load_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_int=_whole)
    except json.JSONDecodeError as error:
        message = f"cannot be read as JSON: {error.msg}"
        raise InvalidDocument([DocumentProblem("", message, error.lineno, error.colno)]) from None
    except RecursionError:
        raise InvalidDocument([DocumentProblem("", _TOO_DEEP)]) from None


def _json_positions(text: str) -> Positions:
    """JSON is YAML but for tabs between values; text that PyYAML cannot read has no positions."""
    try:
        return _compose(text.replace("\t", " ")).positions
    except InvalidDocument:
        return {}


@dataclass(frozen=True, slots=True)
class _JsonUnfolder:
    """Turns pairs into mappings and collects repeated keys."""

    positions: Positions
    problems: list[DocumentProblem] = field(default_factory=list)

    def unfold(self, tree: object, path: DocumentPath) -> object:
        """Return the plain value of a tree of pairs and lists."""
        match tree:
            case _Pairs() | list() if len(path) >= MAX_DEPTH:
                raise InvalidDocument([problem_at(path, _TOO_DEEP, self.positions)])
            case list():
                return [self.unfold(item, (*path, index)) for index, item in enumerate(tree)]
            case _Pairs():
                return dict(self.entries(tree, path))
            case _:
                return tree

    def entries(self, pairs: _Pairs, path: DocumentPath) -> Iterator[tuple[str, object]]:
        """Yield the entries of a mapping."""
        seen = set()
        for key, item in pairs.entries:
            if key in seen:
                self.problems.append(problem_at((*path, key), _duplicate(key), self.positions))
            seen.add(key)
            yield key, self.unfold(item, (*path, key))
