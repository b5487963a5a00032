"""From the text of a YAML or JSON file to plain values, with the line and the spelling of each.

Reading goes text -> events (libyaml's, or tokens of JSON) -> values. The builder over the events is ours: it knows the
line of each key, refuses what our files never hold (tags, anchors, several documents, keys given twice, nesting without
end) and reads plain scalars as JSON would (`yes`, `12:30` and `007` are strings). It keeps a stack of its own, so no
file can overflow ours, and nothing in a file is ever run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from autosync.errors import DocumentError, Path, Problem, first_problems

MAX_DEPTH = 40
MAX_INTEGER = 2**63 - 1

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_NO_TEXT = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# A string that is never closed is one token up to the end: looked at once, and refused by the parser.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)

# libyaml's words for the commonest mistakes, and what a person would call them, with the rule.
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
    "Expecting ',' delimiter": ("a ',' is missing", "commas part items and fields"),
    "Expecting ':' delimiter": ("a ':' is missing", '"KEY": VALUE'),
    "Extra data": ("more than one value", "one value a file"),
    "Unterminated string starting at": ("a quote that is never closed", "quotes come in pairs"),
    "Invalid control character at": ("a control character within quotes", r"write \n, \t or \u0000"),
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": ("a second byte order mark", "one at most"),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values of a text; the line of each, and how numbers and words such as `null` were spelt."""

    value: Any
    lines: Mapping[Path, int]
    spellings: Mapping[Path, str]


def parse_yaml(text: str, *, file: str) -> Parsed:
    """Values and lines of a YAML text (of which JSON is, nearly, a part)."""
    odd = _NO_TEXT.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        _refuse(f"the character U+{ord(odd[0]):04X} is no text", "files hold text, tabs and line breaks", file, line)
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            _take_event(builder, event)
    except yaml.MarkedYAMLError as error:
        raise DocumentError([_yaml_problem(error, text, file)]) from error
    except yaml.YAMLError as error:
        _refuse(f"no YAML: {error}", "YAML 1.2", file, 1)
    return builder.result()


def parse_json(text: str, *, file: str) -> Parsed:
    """Values and lines of a JSON text."""
    tokens = list(_json_tokens(text))
    # Depth comes first: the standard library's parser recurses.
    depth = 0
    for token, line in tokens:
        depth += (token in {"{", "["}) - (token in {"}", "]"})
        if depth > MAX_DEPTH:
            _refuse("nested too deeply", f"at most {MAX_DEPTH} levels", file, line)
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        what, rule = _JSON_WORDS.get(error.msg, (error.msg, "JSON, RFC 8259"))
        _refuse(f"no JSON: {what}", rule, file, min(error.lineno, _num_lines(text)))
    except _ConstantError as error:
        line = next((line for token, line in tokens if token == str(error)), 1)
        _refuse(f"no JSON: {error}", "JSON has finite numbers only", file, line)
    builder = _Builder(file)
    for token, line in tokens:
        _take_token(builder, token, line)
    return builder.result()


def plain(text: str) -> Any:
    """The value of a scalar without quotes. What no finite number can hold stays the text that it is."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) <= 20:
        number = int(text)
        return number if -MAX_INTEGER <= number <= MAX_INTEGER else float(number)
    if FLOAT.fullmatch(text) or _INTEGER.fullmatch(text):
        return float(text) if math.isfinite(float(text)) else text
    return text


@dataclass(slots=True)
class _Builder:
    """Builds values from events, in the order of the text."""

    file: str
    root: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    spellings: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # The open collections from the outside in, each with its path and (for a mapping) the key that awaits its value.
    stack: list[tuple[dict[str, Any] | list[Any], Path]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def result(self) -> Parsed:
        if self.problems:
            raise DocumentError(first_problems(self.problems))
        return Parsed(self.root, self.lines, self.spellings)

    def awaits_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1][0], dict) and self.keys[-1] is None

    def scalar(self, text: str, *, quoted: bool, line: int) -> None:
        if self.awaits_key():
            self._key(text, line)
            return
        value = text if quoted else plain(text)
        path = self._add(value, line)
        if not isinstance(value, str):
            self.spellings[path] = text

    def open(self, value: dict[str, Any] | list[Any], line: int) -> None:
        if len(self.stack) >= MAX_DEPTH:
            self.stop("nested too deeply", f"at most {MAX_DEPTH} levels", line)
        if self.awaits_key():
            self.stop("a list or mapping as a key", "keys are words", line)
        self.stack.append((value, self._add(value, line)))
        self.keys.append(None)

    def close(self) -> None:
        self.stack.pop()
        self.keys.pop()

    def stop(self, what: str, rule: str, line: int) -> NoReturn:
        problem = Problem(what=what, rule=rule, file=self.file, line=line)
        raise DocumentError(first_problems([*self.problems, problem]))

    def _key(self, key: str, line: int) -> None:
        mapping, around = self.stack[-1]
        path = (*around, key)
        if key in mapping:
            first = f"a key stands once; the first is in line {self.lines[path]}"
            what = "this key is given twice"
            self.problems.append(Problem(what=what, rule=first, path=path, file=self.file, line=line))
        self.keys[-1] = key
        self.lines[path] = line

    def _add(self, value: Any, line: int) -> Path:
        if not self.stack:
            self.root = value
            self.lines[()] = line
            return ()
        parent, path = self.stack[-1]
        if isinstance(parent, list):
            parent.append(value)
            path = (*path, len(parent) - 1)
        else:
            key = self.keys[-1]
            assert key is not None, "a mapping's value comes after its key"
            parent[key] = value
            self.keys[-1] = None
            path = (*path, key)
        self.lines.setdefault(path, line)
        return path


def _take_event(builder: _Builder, event: Any) -> None:
    """Hand one event of libyaml to the builder."""
    line = event.start_mark.line + 1
    match event:
        case yaml.DocumentStartEvent() if builder.lines:
            builder.stop("more than one document", "one document a file", line)
        case yaml.AliasEvent():
            builder.stop("aliases are not read", "write each value out", line)
        case yaml.NodeEvent() if event.anchor:
            builder.stop("anchors are not read", "write each value out", line)
        case yaml.ScalarEvent() | yaml.CollectionStartEvent() if event.tag not in {None, "!"}:
            builder.stop(f"the tag {event.tag!r} is not read", "plain values only: no file can run code", line)
        case yaml.ScalarEvent():
            builder.scalar(event.value, quoted=not event.implicit[0], line=line)
        case yaml.MappingStartEvent():
            builder.open({}, line)
        case yaml.SequenceStartEvent():
            builder.open([], line)
        case yaml.CollectionEndEvent():
            builder.close()


def _take_token(builder: _Builder, token: str, line: int) -> None:
    """Hand one token of a text that is known to be JSON to the builder."""
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
    line, end = 1, 0
    for match in _JSON_TOKEN.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        yield match[0], line


class _ConstantError(ValueError):
    """NaN or Infinity, which Python's JSON parser would let through."""


def _no_constant(word: str) -> NoReturn:
    raise _ConstantError(word)


def _yaml_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    # The end of a file is behind its last line, where an editor shows nothing.
    line = min(mark.line + 1, _num_lines(text)) if mark else 1
    what, rule = str(error.problem or error.context), "YAML 1.2"
    what, rule = _YAML_WORDS.get(what, (what, rule))
    if what == "found character that cannot start any token" and mark:
        lines = text.splitlines()
        character = lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""
        what, rule = f"a value that begins with {character!r}", "such a value needs quotes"
        if character == "\t":
            what, rule = "a tab where spaces must stand", "YAML is indented with spaces"
    start = error.context_mark
    hint = f"what is open there began in line {start.line + 1}" if start and start.line + 1 < line else ""
    return Problem(what=f"no YAML: {what}", rule=rule, hint=hint, file=file, line=line)


def _num_lines(text: str) -> int:
    return len(text.splitlines()) or 1


def _refuse(what: str, rule: str, file: str, line: int) -> NoReturn:
    raise DocumentError([Problem(what=what, rule=rule, file=file, line=line)])
