"""Profiles of costs, which ship with the package, and the choice that a cluster makes among them.

A profile (`configs/costs`) has every figure, each with its source. The `costs` block of a cluster file names a profile
and changes single figures.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autosync import documents
from autosync.documents import STRICT
from autosync.errors import InputError, Problem, UnknownNameError, did_you_mean
from autosync.errors import Path as ValuePath
from autosync.specs.cost_figures import FIGURES, Figure, read_figure, rule_of, wrong_figure
from autosync.specs.costs import Costs, ProcessorCosts, ServerCosts, WithinCosts

SCHEMA_KIND = "costs"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChoice:
    """The `costs` block of a cluster file: a profile (None: the usual one) and the figures that differ from it."""

    profile: str | None = None
    figures: tuple[tuple[str, float | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """A profile that ships with the package, with the source of each figure."""

    name: str
    about: str
    costs: Costs
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FigureEntry:
    __pydantic_config__ = STRICT

    value: object
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfileEntry:
    __pydantic_config__ = STRICT

    about: str
    figures: Mapping[str, _FigureEntry]


@functools.cache
def _profile_files() -> Mapping[str, Path]:
    folder = Path(str(resources.files("autosync.configs"))) / "costs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles, sorted."""
    return tuple(_profile_files())


@functools.cache
def cost_profile(name: str) -> CostProfile:
    """Return the profile of that name. The error for an unknown name lists the known ones."""
    files = _profile_files()
    if name not in files:
        raise UnknownNameError("profile of costs", name, files)
    document = documents.read_document(files[name])
    fields = documents.check_schema(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION)
    entry = documents.from_plain(fields, into=_ProfileEntry, document=document)
    values, problems = read_figures({key: figure.value for key, figure in entry.figures.items()}, ("figures",))
    problems += [
        Problem(what=f"{missing} is missing", rule="a profile has every figure", path=("figures",))
        for missing in FIGURES
        if missing not in entry.figures
    ]
    if problems:
        raise InputError(problems)
    sources = {key: figure.source for key, figure in entry.figures.items()}
    return CostProfile(name=name, about=entry.about, costs=_costs_of(values), sources=sources)


def read_figures(given: Mapping[str, Any], path: ValuePath) -> tuple[dict[str, float | None], list[Problem]]:
    """Return figures in plain numbers from their words, and the mistakes among them. `path` is their place."""
    values: dict[str, float | None] = {}
    problems: list[Problem] = []
    for name, words in given.items():
        figure = FIGURES.get(name)
        if figure is None:
            rule = f"known: {', '.join(FIGURES)}"
            hint = did_you_mean(str(name), FIGURES)
            problems.append(Problem(what="unknown key", rule=rule, path=(*path, name), hint=hint))
            continue
        try:
            values[name] = read_figure(figure, words)
        except ValueError as error:
            what, _, rule = str(error).partition(" (")
            problems.append(Problem(what=what, rule=rule.removesuffix(")"), path=(*path, name)))
    return values, problems


def choice_problems(choice: CostChoice) -> Iterator[Problem]:
    """Yield the mistakes of a choice that was built in code or read from a file."""
    names = profile_names()
    if choice.profile is not None and choice.profile not in names:
        rule, hint = f"known: {', '.join(names)}", did_you_mean(choice.profile, names)
        what = f"unknown profile of costs {choice.profile!r}"
        yield Problem(what=what, rule=rule, path=("costs", "profile"), hint=hint)
    for name, value in choice.figures:
        figure = FIGURES.get(name)
        wrong = "is no figure of costs" if figure is None else wrong_figure(figure, value)
        if wrong:
            rule = rule_of(figure) if figure is not None else f"known: {', '.join(FIGURES)}"
            yield Problem(what=f"{name}: {wrong}", rule=rule, path=("costs", name))


def with_figures(costs: Costs, figures: Mapping[str, float | None]) -> Costs:
    """Return the costs with these figures changed."""
    for name, value in figures.items():
        costs = _moved_to(costs, FIGURES[name].place, value)
    return costs


def figure_of(costs: Costs, name: str) -> float | None:
    """Return one figure of costs; None for a limit that there is not."""
    value: Any = costs
    for step in FIGURES[name].place:
        if isinstance(value, tuple):
            value = value[int(step)]
        else:
            value = value[step] if isinstance(value, Mapping) else getattr(value, str(step))
    return None if value is None else float(value)


def _costs_of(values: Mapping[str, float | None]) -> Costs:
    """Return costs from all their figures."""
    tree: dict[str, Any] = {"local_rates": {}}
    for name, figure in FIGURES.items():
        place, value = figure.place, values[name]
        if len(place) == 1:
            tree[str(place[0])] = _plain(figure, value)
        else:
            inner = tree.setdefault(str(place[0]), {})
            field = str(place[1])
            if len(place) == 2:
                inner[field] = _plain(figure, value)
            else:
                inner[field] = (*inner.get(field, ()), value)
    return Costs(
        **{
            **tree,
            "processor": ProcessorCosts(**tree["processor"]),
            "within": WithinCosts(**tree["within"]),
            "servers": ServerCosts(**tree["servers"]),
        }
    )


def _plain(figure: Figure, value: float | None) -> float | int | None:
    return int(value) if figure.unit == "count" and value is not None else value


def _moved_to(value: Any, place: tuple[str | int, ...], figure: float | None) -> Any:
    """Return `value` with the figure at `place`."""
    if not place:
        return int(figure) if isinstance(value, int) and figure is not None else figure
    step, rest = place[0], place[1:]
    if isinstance(value, tuple):
        return tuple([_moved_to(one, rest, figure) if at == step else one for at, one in enumerate(value)])
    if isinstance(value, Mapping):
        return {**value, step: _moved_to(value.get(step), rest, figure)}
    return dataclasses.replace(value, **{str(step): _moved_to(getattr(value, str(step)), rest, figure)})
