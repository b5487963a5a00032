"""Values into dataclasses: pydantic's findings in the words of our errors.

pydantic checks the plain values of a file against a dataclass in strict mode and finds every mistake at once. This room turns
each finding into a `Problem`: the path as the user wrote it (without the tags of unions), the rule, and for an unknown key the
known one that is nearest.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

from autosync.errors import InputError, Path, Problem, did_you_mean

T = TypeVar("T")


def validate(value: Any, into: type[T]) -> T:
    """The value as `into`, or an InputError with every mistake."""
    from pydantic import ValidationError

    try:
        return typing.cast(T, _adapter(into).validate_json(json.dumps(value, allow_nan=False), strict=True))
    except ValidationError as error:
        raise InputError(_problem(finding, value, into) for finding in error.errors()) from None
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(what=str(error), rule="plain values only")]) from None


@functools.cache
def _adapter(into: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(into)


def _problem(finding: Any, value: Any, into: type[Any]) -> Problem:
    path, dataclass_type = _place(finding["loc"], value, into)
    known = [f.name for f in dataclasses.fields(dataclass_type)] if dataclass_type else []
    match finding["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            rule = f"known: {', '.join(known)}" if known else "no unknown keys"
            return Problem(what="unknown key", rule=rule, path=path, hint=did_you_mean(str(path[-1]), known))
        case "missing" | "missing_argument":
            return Problem(what="is missing", rule=f"{path[-1]} is required" if path else "required", path=path)
        case "value_error":
            what, _, rule = str(finding["ctx"]["error"]).partition(" (")
            return Problem(what=what, rule=rule.removesuffix(")") or "must be valid", path=path)
        case "union_tag_invalid" | "literal_error" | "enum":
            context = finding.get("ctx", {})
            expected = str(context.get("expected_tags") or context.get("expected"))
            given = context.get("tag", finding["input"])
            names = [name.strip().strip("'") for name in expected.replace(" or ", ", ").split(",")]
            hint = did_you_mean(str(given), names)
            return Problem(
                what=f"unknown value {_short(given)}", rule=f"known: {', '.join(names)}", path=path, hint=hint
            )
        case "union_tag_not_found":
            return Problem(what="has no kind", rule="kind is required", path=path)
    rule = finding["msg"][0].lower() + finding["msg"][1:]
    return Problem(what=f"{_short(finding['input'])} is not allowed here", rule=rule, path=path)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(location: tuple[Any, ...], value: Any, into: Any) -> tuple[Path, type[Any] | None]:
    """The path within the user's values, and the dataclass around its last step. Tags of unions are in neither."""
    path: list[str | int] = []
    around: type[Any] | None = None
    here = into
    for position, step in enumerate(location):
        alternatives = _alternatives(here)
        members = [a for a in alternatives if dataclasses.is_dataclass(a)]
        tagged = [a for a in members if len(members) > 1 and _kind(a) == step]
        if tagged and not (isinstance(value, dict) and step in value and position < len(location) - 1):
            here = tagged[0]
            continue
        owner = members[0] if members else None
        if isinstance(value, dict) and (step in value or position == len(location) - 1) and isinstance(step, str):
            around = owner
            here = _hints(owner).get(step) if owner else _item_type(here)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            here, value = _item_type(here), value[step]
        else:
            continue
        path.append(step)
    return tuple(path), around


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _kind(owner: Any) -> Any:
    arguments = typing.get_args(_hints(owner).get("kind"))
    return arguments[0] if arguments else None


def _alternatives(hint: Any) -> list[Any]:
    """The members of a union, unwrapped from Annotated."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for argument in typing.get_args(hint) for member in _alternatives(argument)]
    return [hint]


def _item_type(hint: Any) -> Any:
    """What a tuple, list or mapping holds."""
    for member in _alternatives(hint):
        arguments = typing.get_args(member)
        if arguments:
            return arguments[-1] if arguments[-1] is not Ellipsis else arguments[0]
    return None
