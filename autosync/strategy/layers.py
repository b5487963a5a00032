"""Names variables as people do: as fully connected layers, embeddings, and other variables."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.wording import abbreviated, count

_WORDS = {"linear": "fully connected layer", "embedding": "embedding"}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def told_as_layers(variables: Sequence[str], model: ModelSpec | None) -> str:
    """Return a noun phrase such as `the three fully connected layers (fc1, fc2, fc3) and 2 variables (a, b)`.

    A layer stands for all variables of one module: a bias among the variables is not named beside its layer.
    """
    if model is None:
        return _plain(variables)
    known = variables_by_name(model)
    groups: dict[str, list[str]] = {}
    module_kinds = {_module(one.name): one.kind for one in model.variables if one.kind in _WORDS and _module(one.name)}
    for name in variables:
        kind = known[name].kind if name in known else ""
        groups.setdefault(kind if kind in _WORDS else module_kinds.get(_module(name), ""), []).append(name)
    layers = [_layers(kind, names, model) for kind, names in groups.items() if kind]
    rest = list(groups.get("", []))
    for _, left in layers:
        rest += left
    phrases = [phrase for phrase, _ in layers if phrase]
    if rest:
        phrases.append(_plain(rest))
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}" if len(phrases) > 1 else phrases[0]


def _layers(kind: str, names: Sequence[str], model: ModelSpec) -> tuple[str, list[str]]:
    """Return words for the layers of a kind whose main variable is among the names, and the names in no such layer."""
    mains = [name for name in names if model.variable(name).kind == kind]
    if not mains:
        return "", list(names)
    modules = {_module(name) for name in mains}
    left = [name for name in names if name not in mains and _module(name) not in modules]
    num_all = sum(variable.kind == kind for variable in model.variables)
    told = [_short(name, modules) for name in mains]
    if len(mains) == num_all:
        number = _NUMBERS[num_all] if num_all < len(_NUMBERS) else str(num_all)
        noun = _WORDS[kind] if num_all == 1 else f"{number} {_WORDS[kind]}s"
        return f"the {noun} ({abbreviated(told)})", left
    return f"{len(mains)} of {num_all} {_WORDS[kind]}s ({abbreviated(told)})", left


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _short(name: str, modules: set[str]) -> str:
    """Return the name of a layer's module if it has one, else the variable's name."""
    module = _module(name)
    return module if module and module in modules else name


def _plain(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{count(len(names), 'variable')} ({abbreviated(names)})"
