"""Documents: every file that autosync reads or writes as YAML or JSON, with a line for every value.

Reading goes text -> events (libyaml) -> plain values with a table of lines -> dataclass (pydantic, strict). The builder over
the events is ours: it knows the line of each key, refuses what our files never hold (tags, anchors, several
documents, keys given twice, nesting without end) and reads plain scalars as JSON would (`yes` and `12:30` are strings).
So no file can run code or blow up, and each mistake comes out as one `Problem` with file and line.

Every file we write carries `schema: autosync.KIND/VERSION`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from autosync import jsonio
from autosync.errors import DocumentError, InputError, Problem
from autosync.errors import Path as ValuePath

T = TypeVar("T")

STRICT: Any = {"extra": "forbid", "strict": True}
"""pydantic's configuration of every dataclass that is read from a file: no unknown keys, no silent conversions."""

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 40

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Document:
    """The plain values of a file and the line of each of them."""

    file: str
    value: Any
    lines: Mapping[ValuePath, int]

    def line(self, path: ValuePath) -> int:
        """The line of a value, or of the nearest thing around it that the file has."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def locate(self, problem: Problem) -> Problem:
        """The problem with file and line filled in."""
        return dataclasses.replace(problem, file=self.file, line=self.line(problem.path))


def read_document(path: Path | str) -> Document:
    """Read a YAML or JSON file."""
    file = str(path)
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(
            [
                Problem(
                    what=f"cannot be read: {error.strerror}",
                    rule="must be a readable file",
                    file=file,
                    line=1,
                )
            ]
        ) from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DocumentError([Problem(what="not UTF-8 text", rule="files are UTF-8", file=file, line=line)]) from error
    if len(raw) > MAX_BYTES:
        raise DocumentError(
            [Problem(what="the file is too large", rule=f"at most {MAX_BYTES} bytes", file=file, line=1)]
        )
    return parse_document(text, file=file)


def parse_document(text: str, *, file: str) -> Document:
    """Plain values and lines of a text in YAML (of which JSON is a part)."""
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"no YAML: {error.problem or error.context}"
        raise DocumentError(
            [Problem(what=what, rule="YAML 1.2", file=file, line=mark.line + 1 if mark else 1)]
        ) from error
    except yaml.YAMLError as error:
        raise DocumentError(
            [Problem(what=f"no YAML: {' '.join(str(error).split())}", rule="YAML 1.2", file=file, line=1)]
        ) from error
    if builder.problems:
        raise DocumentError(builder.problems)
    return Document(file=file, value=builder.root, lines=builder.lines)


class _Builder:
    """Builds values from parser events with a stack of its own, so that deep nesting is an error and no overflow."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Any = None
        self.lines: dict[ValuePath, int] = {}
        self.problems: list[Problem] = []
        self._stack: list[tuple[dict[str, Any] | list[Any], ValuePath]] = []
        self._key: list[str | None] = []
        self._num_documents = 0

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._num_documents += 1
            if self._num_documents > 1:
                self._stop("more than one document", "one document a file", line)
        elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._stop("anchors and aliases are not read", "write each value out", line)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._stack.pop()
            self._key.pop()

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._no_tag(event, line)
        in_mapping = self._stack and isinstance(self._stack[-1][0], dict)
        if in_mapping and self._key[-1] is None:
            mapping, path = self._stack[-1]
            key = str(event.value)
            if key in mapping:
                self.problems.append(
                    Problem(
                        what="this key is given twice",
                        rule="a key once",
                        path=(*path, key),
                        file=self.file,
                        line=line,
                    )
                )
            self._key[-1] = key
            self.lines[*path, key] = line
            return
        self._add(_plain(event.value) if event.implicit[0] else event.value, line)

    def _open(self, event: yaml.CollectionStartEvent, line: int) -> None:
        self._no_tag(event, line)
        if len(self._stack) >= MAX_DEPTH:
            self._stop("nested too deeply", f"at most {MAX_DEPTH} levels", line)
        if self._stack and isinstance(self._stack[-1][0], dict) and self._key[-1] is None:
            self._stop("a key must be a word", "keys are strings", line)
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._add(value, line)
        self._stack.append((value, path))
        self._key.append(None)

    def _add(self, value: Any, line: int) -> ValuePath:
        if not self._stack:
            self.root = value
            self.lines[()] = line
            return ()
        parent, path = self._stack[-1]
        if isinstance(parent, list):
            parent.append(value)
            path = (*path, len(parent) - 1)
        else:
            key = self._key[-1]
            assert key is not None, "a mapping's value comes after its key"
            parent[key] = value
            self._key[-1] = None
            path = (*path, key)
        self.lines.setdefault(path, line)
        return path

    def _no_tag(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!"):
            self._stop(f"the tag {event.tag!r} is not read", "plain values only: no file we read can run code", line)

    def _stop(self, what: str, rule: str, line: int) -> None:
        raise DocumentError([*self.problems, Problem(what=what, rule=rule, file=self.file, line=line)])


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 300:
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def load(path: Path | str, *, kind: str, version: int, into: type[T]) -> tuple[T, Document]:
    """Read a file of one kind into its dataclass. All mistakes of the file are reported at once."""
    document = read_document(path)
    return parse(document, kind=kind, version=version, into=into), document


def parse(document: Document, *, kind: str, version: int, into: type[T]) -> T:
    """The dataclass that a document holds."""
    fields = check_schema(document, kind=kind, version=version)
    return from_plain(fields, into=into, document=document)


def check_schema(document: Document, *, kind: str, version: int) -> dict[str, Any]:
    """The document's fields without its header, which must name this kind and a version that we know."""
    if not isinstance(document.value, dict):
        raise DocumentError(
            [document.locate(Problem(what="the file holds no fields", rule=f"a {kind} file is a mapping"))]
        )
    fields = dict(document.value)
    schema = fields.pop("schema", None)
    wanted = f"autosync.{kind}/{version}"
    name, _, number = str(schema).partition("/")
    if schema == wanted:
        return fields
    if schema is None:
        problem = Problem(what="the first field, schema, is missing", rule=f"schema: {wanted}")
    elif name != f"autosync.{kind}":
        problem = Problem(
            what=f"this is no {kind} file: its schema is {schema!r}",
            rule=f"schema: {wanted}",
            path=("schema",),
        )
    elif number.isdigit() and int(number) > version:
        what = f"version {number} of {name} is newer than this autosync, which reads versions up to {version}"
        problem = Problem(
            what=what, rule="an unknown newer version is refused", path=("schema",), hint="upgrade autosync"
        )
    else:
        problem = Problem(what=f"unknown version in {schema!r}", rule=f"schema: {wanted}", path=("schema",))
    raise DocumentError([document.locate(problem)])


def from_plain(value: Any, *, into: type[T], document: Document | None = None) -> T:
    """Plain values as the dataclass `into`, every mistake as a `Problem` (with lines, if the document is known)."""
    from autosync import validation

    try:
        return validation.validate(value, into)
    except InputError as error:
        problems = [document.locate(p) for p in error.problems] if document else error.problems
        raise DocumentError(problems) from error


def to_plain(value: Any) -> Any:
    """Plain values of a dataclass: fields at their default are left out (`kind` never is), units are written in words."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field(f, getattr(value, f.name)) for f in dataclasses.fields(value) if _is_written(f, value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def _is_written(field: dataclasses.Field[Any], owner: Any) -> bool:
    if field.name == "kind":
        return True
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(default is dataclasses.MISSING or getattr(owner, field.name) != default)


def _field(field: dataclasses.Field[Any], value: Any) -> Any:
    write: Callable[[Any], Any] | None = field.metadata.get("write")
    return to_plain(value) if write is None or value is None else write(value)


def dump(value: Any, *, kind: str, version: int) -> dict[str, Any]:
    """The fields of a file of one kind, header first."""
    return {"schema": f"autosync.{kind}/{version}", **to_plain(value)}


def format_yaml(fields: Any) -> str:
    """YAML as our files have it: block style outside, short lists and leaf mappings on one line."""
    return str(
        yaml.dump(fields, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    )


def write(path: Path | str, fields: Any) -> None:
    """Write fields as YAML, or as JSON where the file's name ends so."""
    if Path(path).suffix == ".json":
        jsonio.write_json(Path(path), fields)
    else:
        jsonio.write_text(Path(path), format_yaml(fields))


def format_json(fields: Any) -> str:
    """One JSON document, indented."""
    return json.dumps(fields, indent=2, allow_nan=False, ensure_ascii=False)
