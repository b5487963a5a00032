"""Parses YAML and JSON texts into plain values, with the line and the spelling of each value.

Reading goes from text to events (events of libyaml, or tokens of JSON), then to values. Our builder of values knows the
line of each key. It refuses everything that our files never contain (tags, anchors, several documents, repeated keys,
deep nesting) and reads plain scalars as JSON does (`yes`, `12:30` and `007` are strings). It has its own stack, so
no file can overflow Python's stack, and no part of a file is ever run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from autosync.document_lines import LineEntry, LineTree, ValueLines, ValueSpellings, line_at
from autosync.errors import MAX_PROBLEMS, DocumentError, Path, Problem, first_problems

MAX_DEPTH = 40
MAX_VALUES = 250_000
"""The most values and keys of a text, so that every file is read or refused within seconds.

The spec of a model with 400 variables has 11,000.
"""

MAX_LENGTH = 2**20
"""The most characters in a value or between two values."""

_MOST_VALUES = f"at most {MAX_VALUES:,} values and keys"
MAX_TOKENS = 3 * MAX_VALUES
"""The most tokens of a JSON text: each value has at most three, two brackets and a comma."""

MAX_TOKEN = 6 * MAX_LENGTH
"""The most characters of a token: a character of a value may be written with six, as \\u0000."""

_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
MAX_INTEGER = 2**63 - 1

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_LONGEST_NUMBER = 400
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_NO_TEXT = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_ENDS = ("\n", "\r", "\x85", "\u2028", "\u2029")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# An unclosed string becomes one token up to the end of the text, which the parser refuses. Text between tokens becomes
# a token too. So every character is scanned only once.
_JSON_TOKEN = re.compile(r'\s++|"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)

# Messages of libyaml for frequent mistakes, in plain words, with the rule.
_YAML_WORDS = {
    "mapping values are not allowed in this context": ("a ':' where no key can stand", "text with ': ' needs quotes"),
    "did not find expected key": ("no key where one must stand", "look at the indentation and the quotes"),
    "could not find expected ':'": ("a key without ':'", "KEY: VALUE"),
    "found unexpected end of stream": ("a quote that is never closed", "quotes come in pairs"),
    "did not find expected node content": ("no value where one must stand", "look at the brackets and commas"),
    "did not find expected '-' indicator": ("no list item where one must stand", "items of a list begin with '- '"),
    "block sequence entries are not allowed in this context": ("a list item where none can stand", "look at the line"),
}

_JSON_WORDS = {
    "Expecting value": ("no value where one must stand", "look at the brackets and commas"),
    "Expecting property name enclosed in double quotes": ("no key where one must stand", "keys stand in double quotes"),
    # Python 3.13 and later.
    "Illegal trailing comma before end of object": ("no key where one must stand", "keys stand in double quotes"),
    "Illegal trailing comma before end of array": ("no value where one must stand", "look at the brackets and commas"),
    "Expecting ',' delimiter": ("a ',' is missing", "commas part items and fields"),
    "Expecting ':' delimiter": ("a ':' is missing", '"KEY": VALUE'),
    "Extra data": ("more than one value", "one value a file"),
    "Unterminated string starting at": ("a quote that is never closed", "quotes come in pairs"),
    "Invalid control character at": ("a control character within quotes", r"write \n, \t or \u0000"),
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": ("a second byte order mark", "one at most"),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The values of a text, the line of each, and the spelling of values that JSON would spell differently."""

    value: Any
    lines: Mapping[Path, int]
    spellings: Mapping[Path, str]


def parse_yaml(text: str, *, file: str) -> Parsed:
    """Parse a YAML text into values and lines. Nearly all JSON is YAML too."""
    builder = _TreeBuilder(file)
    try:
        # libyaml passes on exceptions of the reader.
        reader: Any = _PieceReader(text, builder)
        for event in yaml.parse(reader, Loader=_Loader):
            _take_event(builder, event)
    except yaml.MarkedYAMLError as error:
        raise DocumentError([_yaml_problem(error, text, file)]) from error
    except yaml.YAMLError as error:
        _refuse(f"no YAML: {error}", "YAML 1.2", file, 1)
    return builder.result()


def parse_json(text: str, *, file: str) -> Parsed:
    """Parse a JSON text into values and lines."""
    # Checked before json.loads, which recurses and builds all values.
    _check_json_size(text, file)
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        what, rule = _JSON_WORDS.get(error.msg, (error.msg, "JSON, RFC 8259"))
        _refuse(f"no JSON: {what}", rule, file, min(error.lineno, _num_lines(text)))
    except _ConstantError as error:
        line = next((line for token, line in _json_tokens(text) if token == str(error)), 1)
        _refuse(f"no JSON: {error}", "JSON has finite numbers only", file, line)
    builder = _TreeBuilder(file)
    for token, line in _json_tokens(text):
        _take_token(builder, token, line)
    return builder.result()


def plain(text: str) -> Any:
    """Return the value of a scalar without quotes. A number that is not finite stays text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text) and len(text) <= 20:
        number = int(text)
        return number if -MAX_INTEGER <= number <= MAX_INTEGER else float(number)
    if FLOAT.fullmatch(text) or _INTEGER.fullmatch(text):
        return float(text) if math.isfinite(float(text)) else text
    return text


class _PieceReader:
    """Gives libyaml a text piece by piece, and refuses forbidden characters when it reaches them.

    So a document that is too large is refused as soon as it exceeds the limit.
    """

    def __init__(self, text: str, builder: _TreeBuilder) -> None:
        self._text = text
        self._place = 0
        self._builder = builder

    def read(self, size: int) -> str:
        """Return the next piece of at most `size` characters."""
        start, end = self._place, self._place + size
        piece = self._text[start:end]
        odd = _NO_TEXT.search(piece)
        if odd:
            what = f"the character U+{ord(odd[0]):04X} is no text"
            line = self._text.count("\n", 0, start + odd.start()) + 1
            _refuse(what, "files hold text, tabs and line breaks", self._builder.file, line)
        if self._builder.is_silent_since(start):
            line = self._text.count("\n", 0, start) + 1
            _refuse("a value or a comment without end", f"at most {MAX_LENGTH:,} characters", self._builder.file, line)
        self._place = end
        return piece


@dataclass(slots=True)
class _TreeBuilder:
    """Builds values from events, in the order of the text."""

    file: str
    root: Any = None
    place: LineEntry | None = None
    problems: list[Problem] = field(default_factory=list)
    # The open collections from outermost to innermost, each with the places of its values and its step in the path; the
    # step of the outermost has no meaning. `keys` holds for each open mapping the key that awaits its value.
    stack: list[tuple[dict[str, Any] | list[Any], LineTree, str | int]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    num_values: int = 0
    _heard_at: tuple[int, int] = (0, 0)

    def result(self) -> Parsed:
        if self.problems:
            raise DocumentError(first_problems(self.problems))
        place = 1 if self.place is None else self.place
        return Parsed(self.root, ValueLines(place), ValueSpellings(place))

    def is_silent_since(self, place: int) -> bool:
        """Whether the text up to `place` has had no new value for more than MAX_LENGTH characters."""
        num_values, since = self._heard_at
        if num_values != self.num_values:
            self._heard_at = (self.num_values, place)
            return False
        return place - since > MAX_LENGTH

    def awaits_key(self) -> bool:
        return bool(self.keys) and self.keys[-1] is None and isinstance(self.stack[-1][0], dict)

    def scalar(self, text: str, *, quoted: bool, line: int) -> None:
        if len(text) > MAX_LENGTH:
            self.stop("a value without end", f"at most {MAX_LENGTH:,} characters", line)
        if self.awaits_key():
            self._key(text, line)
            return
        value = text if quoted else plain(text)
        is_told = value is text or _json_spelling(value) == text
        self._add(value, line if is_told else (line, text))

    def open(self, value: dict[str, Any] | list[Any], line: int) -> None:
        if len(self.stack) >= MAX_DEPTH:
            self.stop("nested too deeply", f"at most {MAX_DEPTH} levels", line)
        if self.awaits_key():
            self.stop("a list or mapping as a key", "keys are words", line)
        places = LineTree(line, [] if isinstance(value, list) else {})
        step = self._add(value, places)
        self.stack.append((value, places, step))
        self.keys.append(None)

    def close(self) -> None:
        self.stack.pop()
        self.keys.pop()

    def stop(self, what: str, rule: str, line: int) -> NoReturn:
        problem = Problem(what=what, rule=rule, file=self.file, line=line)
        raise DocumentError(first_problems([*self.problems, problem]))

    def _key(self, key: str, line: int) -> None:
        self._count(line)
        mapping, places, _ = self.stack[-1]
        assert isinstance(places.inside, dict), "only mappings have keys"
        if key in mapping:
            first = f"a key stands once; the first is in line {line_at(places.inside[key])}"
            what = "this key is given twice"
            path = (*(step for _, _, step in self.stack[1:]), key)
            self.problems.append(Problem(what=what, rule=first, path=path, file=self.file, line=line))
            if len(self.problems) >= MAX_PROBLEMS:
                raise DocumentError(first_problems(self.problems))
        self.keys[-1] = key
        places.inside[key] = line

    def _count(self, line: int) -> None:
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            self.stop("too many values", _MOST_VALUES, line)

    def _add(self, value: Any, place: LineEntry) -> str | int:
        """Add a value at the current place, and return the last step of its path."""
        self._count(line_at(place))
        if not self.stack:
            self.root, self.place = value, place
            return ""
        parent, places, _ = self.stack[-1]
        if isinstance(parent, list):
            assert isinstance(places.inside, list), "as the values, so the places"
            places.inside.append(place)
            parent.append(value)
            return len(parent) - 1
        key = self.keys[-1]
        assert key is not None, "a mapping's value comes after its key"
        assert isinstance(places.inside, dict), "as the values, so the places"
        parent[key] = value
        self.keys[-1] = None
        # A value gets the line of its key.
        line = line_at(places.inside[key])
        if isinstance(place, LineTree):
            place.line = line
            places.inside[key] = place
        elif isinstance(place, tuple):
            places.inside[key] = (line, place[1])
        return key


def _take_event(builder: _TreeBuilder, event: Any) -> None:
    """Pass one event of libyaml to the builder."""
    line = event.start_mark.line + 1
    kind = type(event)
    if kind is yaml.AliasEvent:
        builder.stop("aliases are not read", "write each value out", line)
    if isinstance(event, yaml.NodeEvent):
        _check_node(builder, event, line)
    if kind is yaml.ScalarEvent:
        builder.scalar(event.value, quoted=not event.implicit[0], line=line)
    elif kind is yaml.MappingStartEvent:
        builder.open({}, line)
    elif kind is yaml.SequenceStartEvent:
        builder.open([], line)
    elif isinstance(event, yaml.CollectionEndEvent):
        builder.close()
    elif kind is yaml.DocumentStartEvent and builder.num_values:
        builder.stop("more than one document", "one document a file", line)


def _check_node(builder: _TreeBuilder, event: Any, line: int) -> None:
    if event.anchor:
        builder.stop("anchors are not read", "write each value out", line)
    if event.tag not in {None, "!"}:
        builder.stop(f"the tag {event.tag!r} is not read", "plain values only: no file can run code", line)


def _json_spelling(value: Any) -> str:
    """Return the JSON spelling of a number, a truth value or null."""
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _take_token(builder: _TreeBuilder, token: str, line: int) -> None:
    """Pass one token of a valid JSON text to the builder."""
    match token[0]:
        case "{":
            builder.open({}, line)
        case "[":
            builder.open([], line)
        case "}" | "]":
            builder.close()
        case '"':
            text = json.loads(token) if "\\" in token else token[1:-1]
            if _SURROGATE.search(text):
                builder.stop("half a surrogate pair is no text", "files hold Unicode text", line)
            builder.scalar(text, quoted=True, line=line)
        case "," | ":":
            pass
        case _:
            builder.scalar(token, quoted=False, line=line)


def _json_tokens(text: str) -> Iterator[tuple[str, int]]:
    return ((text[start:end], line) for start, end, line in _json_places(text))


def _json_places(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the beginning, end and line of each token."""
    line = 1
    for match in _JSON_TOKEN.finditer(text):
        start, end = match.span()
        if text[start].isspace():
            line += text.count("\n", start, end)
        else:
            yield start, end, line
            if text[start] == '"':
                line += text.count("\n", start, end)


def _check_json_size(text: str, file: str) -> None:
    """Refuse texts that are nested too deeply or larger than any document of ours, before they are parsed."""
    depth = 0
    for num_before, (start, end, line) in enumerate(_json_places(text)):
        depth += _STEPS.get(text[start], 0)
        if depth > MAX_DEPTH:
            _refuse("nested too deeply", f"at most {MAX_DEPTH} levels", file, line)
        if num_before >= MAX_TOKENS:
            _refuse("too many values", _MOST_VALUES, file, line)
        if end - start > MAX_TOKEN:
            _refuse("a value without end", f"at most {MAX_LENGTH:,} characters", file, line)


class _ConstantError(ValueError):
    """NaN or Infinity, which Python's JSON parser accepts."""


def _no_constant(word: str) -> NoReturn:
    raise _ConstantError(word)


def _yaml_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    # libyaml reports the end of a file as one line after the last line.
    line = min(mark.line + 1, _num_lines(text)) if mark else 1
    what, rule = str(error.problem or error.context), "YAML 1.2"
    what, rule = _YAML_WORDS.get(what, (what, rule))
    if what == "found character that cannot start any token" and mark:
        character = text[mark.index : mark.index + 1]
        what, rule = f"a value that begins with {character!r}", "such a value needs quotes"
        if character == "\t":
            what, rule = "a tab where spaces must stand", "YAML is indented with spaces"
    start = error.context_mark
    hint = f"what is open there began in line {start.line + 1}" if start and start.line + 1 < line else ""
    return Problem(what=f"no YAML: {what}", rule=rule, hint=hint, file=file, line=line)


def _num_lines(text: str) -> int:
    """Return the number of lines that an editor shows."""
    num_ends = sum(map(text.count, _LINE_ENDS)) - text.count("\r\n")
    return max(1, num_ends + (not text.endswith(_LINE_ENDS)))


def _refuse(what: str, rule: str, file: str, line: int) -> NoReturn:
    raise DocumentError([Problem(what=what, rule=rule, file=file, line=line)])
