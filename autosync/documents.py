"""Documents: the YAML and JSON files that autosync reads and writes, with a line for every value.

Reading goes from text to plain values with a table of lines (`syntax`), then to a dataclass (`validation`). So no file
can run code or exhaust memory, and each mistake becomes a `Problem` with file and line. Whole numbers have 64 bits;
keys are strings.

Every file that autosync writes has a field `schema: autosync.KIND/VERSION`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from autosync import disk_errors, jsonio, syntax
from autosync.errors import DocumentError, InputError, Problem, first_problems
from autosync.errors import Path as ValuePath
from autosync.near_files import missing_file

T = TypeVar("T")

STRICT: Any = {"extra": "forbid", "strict": True}
"""pydantic's configuration of every dataclass that is read from a file: no unknown keys, no silent conversions."""

_VERSION = re.compile(r"[0-9]{1,9}")
MAX_BYTES = 16 * 2**20
_MAX_LIST = 100
# Values of these types are plain already. They are checked first, because records have thousands of them.
_PLAIN = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Document:
    """The plain values of a file, the line of each, and the spelling of numbers and words such as `null`."""

    file: str
    value: Any
    lines: Mapping[ValuePath, int]
    spellings: Mapping[ValuePath, str] = field(default_factory=dict)

    def line(self, path: ValuePath) -> int:
        """Return the line of a value, or of the nearest enclosing value that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def locate(self, problem: Problem) -> Problem:
        """Return the problem with file and line filled in."""
        return dataclasses.replace(problem, file=self.file, line=self.line(problem.path))


def without_file(value: Any) -> Document:
    """Return a document for a value that did not come from a file."""
    return Document(file="", value=value, lines={})


def read_document(path: Path | str) -> Document:
    """Read a YAML file, or a JSON file if its name ends in .json."""
    file = str(path)
    raw = _read_bytes(path, file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable("the file is not UTF-8 text", "files are UTF-8", file, line) from error
    del raw
    return parse_document(text, file=file)


def _read_bytes(path: Path | str, file: str) -> bytes:
    try:
        with disk_errors.open_input(Path(path)) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise DocumentError([missing_file(path)]) from error
    except (OSError, ValueError) as error:
        # A ValueError means a file name with a NUL.
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(f"cannot be read: {reason}", "must be a readable file", file, 0) from error
    if len(raw) > MAX_BYTES:
        raise _unreadable("the file is too large", f"at most {MAX_BYTES} bytes", file, 1)
    return raw


def _unreadable(what: str, rule: str, file: str, line: int) -> DocumentError:
    """Return the error for a file. Line 0 stands for the whole file."""
    return DocumentError([Problem(what=what, rule=rule, file=file, line=line)])


def parse_document(text: str, *, file: str) -> Document:
    """Parse a YAML text, or a JSON text if the file name ends in .json."""
    # Not all JSON is YAML: tabs, escaped surrogate pairs and long keys are allowed in JSON.
    parse_text = syntax.parse_json if file.lower().endswith(".json") else syntax.parse_yaml
    parsed = parse_text(text, file=file)
    return Document(file=file, value=parsed.value, lines=parsed.lines, spellings=parsed.spellings)


def load(path: Path | str, *, kind: str, version: int, into: type[T]) -> tuple[T, Document]:
    """Read a file of one kind into its dataclass. All mistakes of the file are reported together."""
    document = read_document(path)
    return parse(document, kind=kind, version=version, into=into), document


def parse(document: Document, *, kind: str, version: int, into: type[T]) -> T:
    """Convert a document to the dataclass `into`."""
    fields = check_schema(document, kind=kind, version=version)
    return from_plain(fields, into=into, document=document)


def check_schema(document: Document, *, kind: str, version: int) -> dict[str, Any]:
    """Return a document's fields without its header; raise DocumentError unless it names this kind and version."""
    if not isinstance(document.value, dict):
        raise DocumentError(
            [document.locate(Problem(what="the file holds no fields", rule=f"a {kind} file is a mapping"))]
        )
    fields = dict(document.value)
    schema = fields.pop("schema", None)
    wanted = f"autosync.{kind}/{version}"
    name, _, number = str(schema).partition("/")
    shown = repr(schema) if isinstance(schema, str) and len(schema) <= 80 else "something else"
    if schema == wanted:
        return fields
    if schema is None:
        problem = Problem(what="the first field, schema, is missing", rule=f"schema: {wanted}")
    elif name != f"autosync.{kind}":
        problem = Problem(
            what=f"this is no {kind} file: its schema is {shown}",
            rule=f"schema: {wanted}",
            path=("schema",),
        )
    elif _VERSION.fullmatch(number) and int(number) > version:
        what = f"version {number} of {name} is newer than this autosync, which reads versions up to {version}"
        problem = Problem(
            what=what, rule="an unknown newer version is refused", path=("schema",), hint="upgrade autosync"
        )
    else:
        problem = Problem(what=f"unknown version in {shown}", rule=f"schema: {wanted}", path=("schema",))
    raise DocumentError([document.locate(problem)])


def from_plain(value: Any, *, into: type[T], document: Document | None = None) -> T:
    """Convert plain values to the dataclass `into`; each mistake becomes a `Problem`, with its line in `document`."""
    from autosync import validation

    try:
        return validation.validate(value, into, spellings=document.spellings if document else {})
    except InputError as error:
        problems = [document.locate(p) for p in error.problems] if document else list(error.problems)
        problems.sort(key=lambda problem: problem.line)
        raise DocumentError(first_problems(problems)) from error


def to_plain(value: Any) -> Any:
    """Convert a dataclass to plain values: without fields at their default (except `kind`), with units in words."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field(f, getattr(value, f.name)) for f in dataclasses.fields(value) if _is_written(f, value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [item if type(item) in _PLAIN else to_plain(item) for item in value]
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
    """Return the fields of a file of one kind, header first."""
    return {"schema": f"autosync.{kind}/{version}", **to_plain(value)}


def format_yaml(fields: Any) -> str:
    """Format fields as YAML in our style: blocks outside, short lists and leaf mappings on one line."""
    dumper: Any = _Dumper
    return str(
        yaml.dump(fields, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    )


def format_json(fields: Any) -> str:
    """Format fields as one indented JSON document."""
    return jsonio.indented_json(fields)


def write(path: Path | str, fields: Any) -> None:
    """Write fields as YAML, or as JSON if the file name ends in .json."""
    if Path(path).suffix.lower() == ".json":
        jsonio.write_json(Path(path), fields)
    else:
        jsonio.write_text(Path(path), format_yaml(fields))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes YAML that both our reader and YAML 1.1 readers can read: no anchors, and quotes around ambiguous text."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def format_float(number: float) -> str:
    """Return a number as all readers of YAML take it for one: `1e-05` is text to readers of YAML 1.1."""
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be written (numbers are finite)")
    text = repr(number)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _represent_float(dumper: Any, number: float) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:float", format_float(number))


def _represent_list(dumper: Any, items: list[Any]) -> Any:
    # Names that do not fit on one line get a line each, which is easier to read and compare; numbers may wrap.
    is_long = all(isinstance(item, str) for item in items) and sum(len(item) + 2 for item in items) > _MAX_LIST
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=False if is_long else None)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", syntax.FLOAT, list("-+.0123456789"))
