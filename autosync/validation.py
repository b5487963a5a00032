"""Turns plain values into dataclasses, and findings of pydantic into our errors.

pydantic checks the plain values of a file against a dataclass in strict mode and finds every mistake. This module turns
each finding into a `Problem` with the path as the user wrote it (without tags of unions), the rule, and for an unknown
key or word the nearest known one.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autosync import syntax
from autosync.errors import InputError, Path, Problem, did_you_mean

T = TypeVar("T")

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "none_required": "nothing",
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "dataclass_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of {ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of {le} or less",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "text of {min_length} or more characters",
    "string_too_long": "text of {max_length} or fewer characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "{min_length} or more items",
    "too_long": "{max_length} or fewer items",
}
_TRUTH = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_MAX_SHOWN = 60
_MOST_FINDINGS = 5_000
_NUM_FIRST = 20
_OF_THE_WHOLE = frozenset({"missing", "missing_argument", "too_short", "value_error", "assertion_error"})


@dataclass(frozen=True, slots=True)
class Later:
    """Marks a field whose type comes from a table that other packages extend; it is built when a file is first read."""

    make: Callable[[], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler.generate_schema(self.make())


def validate(value: Any, into: type[T], *, spellings: Mapping[Path, str] | None = None) -> T:
    """Convert a value to the dataclass `into`, or raise InputError with every mistake.

    `spellings` are the original texts of numbers, truth values and nulls, by their paths.
    """
    from pydantic import ValidationError

    hashable: Any = into
    try:
        # Through JSON, because pydantic's strict mode for JSON accepts a list as a tuple, but no other conversion.
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError([Problem(what=f"no plain value: {error}", rule="plain values only")]) from None
    try:
        return typing.cast("T", _adapter(hashable).validate_json(text, strict=True))
    except ValidationError as error:
        num_findings = error.error_count()
        told = _first_told(value, hashable) if num_findings > _MOST_FINDINGS else error.errors(include_url=False)
    findings = [_found(finding, into) for finding in told]
    reader = _Reader(spellings or {})
    problems = list(dict.fromkeys(reader.problem(group) for group in _groups(findings)))
    if num_findings > _MOST_FINDINGS:
        problems.insert(0, Problem(what=f"{num_findings:,} mistakes", rule="only the first are looked at"))
    raise InputError(problems)


def _first_told(value: Any, into: Any) -> list[Any]:
    """Return the findings in an excerpt, the first values of each list and mapping: the whole may have millions.

    Findings that are due to the values left out are dropped.
    """
    from pydantic import ValidationError

    try:
        _adapter(into).validate_json(json.dumps(_first_of(value), ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        return [one for one in error.errors(include_url=False) if not _is_of_the_rest(one)]
    return []


def _is_of_the_rest(finding: Any) -> bool:
    """Whether a finding may be due to the values that the excerpt leaves out."""
    around = finding["input"]
    return finding["type"] in _OF_THE_WHOLE and isinstance(around, dict | list) and len(around) >= _NUM_FIRST


def _first_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _first_of(item) for key, item in itertools.islice(value.items(), _NUM_FIRST)}
    if isinstance(value, list):
        return [_first_of(item) for item in value[:_NUM_FIRST]]
    return value


@functools.cache
def _adapter(into: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(into)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """One finding of pydantic, with its path among the user's values.

    `owner` is the dataclass that has the field at the end of the path, and `hint` is the type at the path. `choice` is
    the path of a value that may have several types: each type that does not match makes a finding there.
    """

    kind: str
    input: Any
    context: Mapping[str, Any]
    message: str
    path: Path
    hint: Any
    owner: type[Any] | None
    choice: Path | None


class _Reader:
    """Turns findings into problems."""

    def __init__(self, spellings: Mapping[Path, str]) -> None:
        self._spellings = spellings

    def problem(self, group: Sequence[_Finding]) -> Problem:
        """Return the problem for a finding, or for all findings about a value that matches none of its types."""
        each = [self._problem(finding) for finding in group]
        if len(each) == 1:
            return each[0]
        others = [problem.rule.removeprefix("expected ").removeprefix("known: ") for problem in each[1:]]
        what = f"{self._show(group[0])} is not allowed here"
        return Problem(what=what, rule=" or ".join(dict.fromkeys((each[0].rule, *others))), path=each[0].path)

    def _problem(self, finding: _Finding) -> Problem:
        path = finding.path
        match finding.kind:
            case "json_invalid":
                # The values are nested deeper than pydantic's parser allows; the JSON text itself is ours and valid.
                return Problem(what="it is nested too deeply", rule="fewer levels")
            case "unexpected_keyword_argument" | "extra_forbidden":
                known = [f.name for f in dataclasses.fields(finding.owner)] if finding.owner else []
                rule = f"known: {', '.join(known)}" if known else "no unknown keys"
                return Problem(what="unknown key", rule=rule, path=path, hint=did_you_mean(str(path[-1]), known))
            case "missing" | "missing_argument":
                rule = "the list is too short" if isinstance(path[-1], int) else f"{path[-1]} is required"
                return Problem(what="is missing", rule=rule, path=path)
            case "value_error" | "assertion_error":
                what, rule = _split_rule(str(finding.context["error"]))
                return Problem(what=what, rule=rule, path=path)
            case "union_tag_not_found":
                path = (*path, _discriminator(finding))
                return Problem(what="is missing", rule=_known(_words(finding.hint)), path=path)
            case "union_tag_invalid":
                path = (*path, _discriminator(finding))
                return self._unknown(path, finding.input.get(path[-1]), _words(finding.hint))
            case "literal_error" | "enum":
                words = _words(finding.hint) or [str(finding.context.get("expected"))]
                return self._unknown(path, finding.input, words)
        return self._unexpected(finding)

    def _unknown(self, path: Path, given: Any, known: Sequence[str]) -> Problem:
        hint = did_you_mean(given, known) if isinstance(given, str) else ""
        what = f"unknown value {self._spell(path, given)}"
        if given is None or isinstance(given, list | dict):
            what = f"{self._spell(path, given)} is not allowed here"
        return Problem(what=what, rule=_known(known), path=path, hint=hint)

    def _unexpected(self, finding: _Finding) -> Problem:
        """Return the problem for a value of the wrong type or out of range."""
        expected = _EXPECTED.get(finding.kind)
        given, hint = finding.input, ""
        rule = f"expected {expected.format(**finding.context)}" if expected else _from_message(finding.message)
        match finding.kind:
            case "int_type" if isinstance(given, float) and abs(given) > syntax.MAX_INTEGER:
                rule = "expected a whole number of 64 bits"
            case "bool_type" if isinstance(given, str) and given.lower() in _TRUTH:
                hint = f"did you mean {_TRUTH[given.lower()]}?"
            case "int_type" | "float_type" if isinstance(given, str) and isinstance(syntax.plain(given), int | float):
                hint = "leave out the quotes"
            case "string_type" if isinstance(given, bool | int | float):
                hint = f"put it in quotes: '{self._show(finding)}'"
            case "dataclass_type" if isinstance(finding.hint, type) and dataclasses.is_dataclass(finding.hint):
                rule += f" with {', '.join(f.name for f in dataclasses.fields(finding.hint))}"
        return Problem(what=f"{self._show(finding)} is not allowed here", rule=rule, path=finding.path, hint=hint)

    def _show(self, finding: _Finding) -> str:
        return self._spell(finding.path, finding.input)

    def _spell(self, path: Path, value: Any) -> str:
        """Return the value as the user wrote it; for lists and mappings, only the type."""
        if isinstance(value, str):
            text = repr(value)
        elif isinstance(value, list):
            text = "a list"
        elif isinstance(value, dict):
            text = "a mapping"
        else:
            text = self._spellings.get(path, json.dumps(value)) or "an empty value"
        return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _split_rule(message: str) -> tuple[str, str]:
    """Split `WHAT (RULE)` into its two parts; the rule is the last bracket, which may contain other brackets."""
    depth = 0
    for position in range(len(message) - 1, -1, -1) if message.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(message[position], 0)
        if depth == 0:
            return message[:position].strip() or "not allowed", message[position + 1 : -1]
    return message or "not allowed", "must be valid"


def _from_message(message: str) -> str:
    """Return pydantic's own message, for findings of an unknown kind."""
    return message.replace("Input should be", "must be").replace("Input should", "must")


def _known(words: Sequence[str]) -> str:
    return f"known: {', '.join(words)}"


def _discriminator(finding: _Finding) -> str:
    return str(finding.context["discriminator"]).strip("'")


def _groups(findings: Sequence[_Finding]) -> list[list[_Finding]]:
    """Group the findings in order: findings about a value that matches none of several types form one group."""
    # A value with mistakes inside, or with a kind, was meant as that type. Findings about other types are dropped.
    meant = {f.path[:length] for f in findings for length in range(len(f.path))}
    meant |= {f.path for f in findings if f.kind.startswith("union_tag")}
    groups: dict[Any, list[_Finding]] = {}
    for position, finding in enumerate(findings):
        of_a_choice = finding.choice == finding.path and not finding.kind.startswith("union_tag")
        if of_a_choice and finding.path in meant:
            continue
        groups.setdefault(finding.path if of_a_choice else position, []).append(finding)
    return list(groups.values())


def _found(finding: Any, into: Any) -> _Finding:
    """Return the finding with its path. pydantic's location also has tags and names of unions, which are left out."""
    here = into
    path: list[str | int] = []
    owner: type[Any] | None = None
    choice: Path | None = None
    around: Any = None
    for step in finding["loc"]:
        members, tagged = _members(here)
        if step == "[key]":
            # The previous step was the key of this mapping.
            here = (*typing.get_args(around), None)[0]
        elif len(members) > 1 and tagged:
            here = next((member for member in members if step in _kinds(member)), None)
        elif len(members) > 1:
            choice = tuple(path)
            here = next((member for member in members if _is_called(member, step)), None)
        else:
            around = members[0] if members else None
            owner = around if isinstance(around, type) and dataclasses.is_dataclass(around) else None
            here = _hints(owner).get(str(step)) if owner else _item(around, step)
            path.append(step)
    members, _ = _members(here)
    return _Finding(
        kind=finding["type"],
        input=finding["input"],
        context=finding.get("ctx", {}),
        message=finding["msg"],
        path=tuple(path),
        hint=members[0] if len(members) == 1 else here,
        owner=owner,
        choice=choice,
    )


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner, include_extras=True)


def _members(hint: Any) -> tuple[list[Any], bool]:
    """Return the possible types of a value without None, and whether a field such as `kind` distinguishes them."""
    tagged = False
    while typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        hint = next((note.make() for note in notes if isinstance(note, Later)), hint)
        tagged = tagged or any(getattr(note, "discriminator", None) for note in notes)
    if typing.get_origin(hint) not in {typing.Union, types.UnionType}:
        return ([] if hint is None else [hint]), tagged
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if len(members) == 1:
        members, inner = _members(members[0])
        return members, tagged or inner
    return members, tagged


def _kinds(member: Any) -> tuple[Any, ...]:
    return typing.get_args(_hints(member).get("kind"))


def _is_called(member: Any, label: Any) -> bool:
    """Whether pydantic means this member of a union by `label`: `Node`, `tuple[int, ...]`, `tagged-union[A,B]`."""
    word = str(label).partition("[")[0]
    if word == "literal":
        return typing.get_origin(member) is typing.Literal
    if word == "tagged-union" or word.startswith("function-"):
        return typing.get_origin(member) is typing.Annotated
    bare = typing.get_args(member)[0] if typing.get_origin(member) is typing.Annotated else member
    return word == getattr(bare, "__name__", "")


def _item(hint: Any, step: Any) -> Any:
    """Return the type of the items of a tuple, list or mapping at a step of a path."""
    arguments = typing.get_args(hint)
    if not arguments:
        return None
    if typing.get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return arguments[step] if isinstance(step, int) and step < len(arguments) else None
    return arguments[0] if arguments[-1] is Ellipsis else arguments[-1]


def _words(hint: Any) -> list[str]:
    """Return the words that a Literal, an enum or the kinds of a union allow."""
    members, tagged = _members(hint)
    if tagged:
        return [str(kind) for member in members for kind in _kinds(member)]
    words: list[str] = []
    for member in members:
        if typing.get_origin(member) is typing.Literal:
            words += [str(word) for word in typing.get_args(member)]
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            words += [str(item.value) for item in member]
    return words
