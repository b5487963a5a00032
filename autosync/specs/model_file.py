"""Reads and writes model specs: files, the specs that ship with autosync, and specs with dilated times.

`load_model` takes the MODEL argument of commands: a spec file or the name of a shipped spec. Either may end in `@x4`,
for compute that takes four times as long. `model_of` also takes a task and profiles it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from autosync import documents, jsonio
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError
from autosync.near_files import near_path, near_path_hint
from autosync.specs.model import SCHEMA_KIND, SCHEMA_VERSION, ModelSpec
from autosync.specs.task_file import check_task_file, is_task, task_path

_DILATION = re.compile(r"(?P<base>.+)@(?P<factor>[^@/]*)", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
# Words that some YAML readers do not take for strings.
_TAKEN_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def load_model(target: str) -> ModelSpec:
    """Read the model spec of a file, or the shipped spec of that name; `@x4` makes compute times four times as long."""
    base, factor = split_dilation(target)
    if is_task(base):
        hint = f"autosync profile {base} -o {Path(base.partition('.py')[0]).name}.yaml"
        raise InputError(f"{base!r} is a task, not a model spec", rule="a model spec is YAML or JSON", hint=hint)
    model, _ = documents.load(_find(base), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ModelSpec)
    return model if factor is None else _dilated(model, factor, target)


def model_of(target: str, *, device: str = "cpu", cuts: bool = False) -> ModelSpec:
    """Return the model spec of any target; a task is profiled now, on the device. `cuts` are found if wanted."""
    base, factor = split_dilation(target)
    if not is_task(base):
        return load_model(target)
    # Profiling loads torch; reading a spec file does not.
    from autosync.specs.profile.run import profile
    from autosync.specs.task_file import load_task

    model = profile(load_task(base), device=device, cuts=cuts)
    return model if factor is None else _dilated(model, factor, target)


def check_model_file(target: str) -> None:
    """Raise InputError if a target names no file and no shipped spec. Loads nothing, so it costs no time."""
    base, _ = split_dilation(target)
    if is_task(base):
        check_task_file(task_path(base))
    else:
        _find(base)


def save_model(model: ModelSpec, path: Path | str) -> None:
    """Write a model spec as YAML, or as JSON if the file name ends in .json."""
    if Path(path).suffix.lower() == ".json":
        documents.write(path, dump_model(model))
    else:
        jsonio.write_text(Path(path), format_model(model))


def dump_model(model: ModelSpec) -> dict[str, Any]:
    """Return the fields of a model spec file."""
    return documents.dump(model, kind=SCHEMA_KIND, version=SCHEMA_VERSION)


def format_model(model: ModelSpec) -> str:
    """Format a model spec as YAML with one line for each variable and segment."""
    return "".join(f"{line}\n" for line in _block(dump_model(model), indent=""))


def split_dilation(target: str) -> tuple[str, float | None]:
    """Split `resnet50@x4` into `("resnet50", 4.0)`.

    Returns `(target, None)` if the target has no dilation or names an existing file.
    """
    match = _DILATION.fullmatch(target)
    if match is None or Path(target).exists():
        return target, None
    text = match["factor"]
    rule = "a dilation is a factor above 0, such as MODEL@x4"
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        raise InputError(f"{target!r} has no factor behind the @", rule=rule) from None
    if not text.startswith("x"):
        raise InputError(f"{target!r} has no x behind the @", rule=rule, hint=f"write {match['base']}@x{text}")
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"{target!r} cannot be dilated by {text[1:]}", rule=rule)
    return match["base"], factor


def _dilated(model: ModelSpec, factor: float, target: str) -> ModelSpec:
    try:
        return model.dilated(factor)
    except ValueError as error:
        raise InputError(f"{target!r}: {error}", rule="a dilated time must still be a number") from error


def _find(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_models()
    if name in shipped:
        return shipped[name]
    if path.suffix in (".yaml", ".yml", ".json") or "/" in name:
        what = "cannot be read: no such file" if not path.exists() else "is no file"
        rule = "a model spec file, a task FILE.py, or the name of a shipped model"
        raise DocumentError([Problem(what=what, rule=rule, file=name, hint=near_path_hint(path))])
    raise UnknownNameError("model", name, shipped, others=[near_path(path)])


def shipped_models() -> dict[str, Path]:
    """Return the files of the model specs that ship with the package, by name."""
    folder = Path(str(resources.files("autosync.configs"))) / "models"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _block(fields: Mapping[str, Any], *, indent: str) -> Iterator[str]:
    for key, value in fields.items():
        if isinstance(value, list) and any(isinstance(item, dict | str | list) for item in value):
            yield f"{indent}{_flow(str(key))}:"
            yield from (f"{indent}- {_flow(item)}" for item in value)
        elif isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
            yield f"{indent}{_flow(str(key))}:"
            yield from _block(value, indent=indent + "  ")
        else:
            yield f"{indent}{_flow(str(key))}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        if _PLAIN_WORD.fullmatch(value) and value.lower() not in _TAKEN_WORDS:
            return value
        quoted = yaml.dump(value, default_style='"', width=math.inf, allow_unicode=True)
        return str(quoted).rstrip("\n")
    return documents.format_float(value) if isinstance(value, float) else json.dumps(value)
