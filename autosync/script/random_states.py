"""The states of random generators: torch's, Python's and numpy's own, and those that objects hold."""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, filterfalse, islice
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 100_000
_PLAIN = (str, bytes, bytearray, int, float, complex, PurePath, torch.Tensor, ModuleType)
_OF_CALLABLES = ("__self__", "__wrapped__", "func", "args", "keywords")


class RandomStates:
    """Tells whether random numbers were drawn: compare what `now` returns before and after."""

    def __init__(self, *holders: object) -> None:
        self._held = list(held_generators(holders))

    def now(self) -> list[Any]:
        """Return the states of all generators."""
        shared = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
        if "numpy" in sys.modules:
            shared.append(_legacy_state(sys.modules["numpy"].random))
        return [*shared, *map(state_of, self._held)]


def held_generators(holders: Iterable[object]) -> Iterator[object]:
    """Yield the generators that objects hold, in attributes, containers and closures, and those that their code names.

    Only the first `_MOST_OBJECTS` are looked at: a dataset may hold millions of examples. What is within few others
    comes first.
    """
    order = count()
    waiting = [(0, next(order), one) for one in holders]
    seen = set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        size, _, one = heapq.heappop(waiting)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if state_of(one) is not None:
            yield one
            continue
        within = list(islice(filterfalse(_is_plain, islice(_within(one), _MOST_ITEMS)), _MOST_OBJECTS))
        size = max(size, len(within))
        for held in within:
            heapq.heappush(waiting, (size, next(order), held))


def _is_plain(one: object) -> bool:
    """Whether an object holds no generator: a number, a text, a path, or an array. Whole modules are not looked at."""
    # Arrays and scalars of numpy, which need not be imported; its generators are of other modules.
    return one is None or isinstance(one, _PLAIN) or type(one).__module__ == "numpy"


def _within(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset | deque):
        yield from one
    elif not isinstance(one, type):
        yield from getattr(one, "__dict__", {}).values()
        for kind in type(one).__mro__:
            if _is_of_script(kind.__module__):
                yield from vars(kind).values()
        if callable(one):
            yield from (getattr(one, name) for name in _OF_CALLABLES if hasattr(one, name))
            yield from filter(None, map(_content, getattr(one, "__closure__", None) or ()))
        if isinstance(one, FunctionType) and _is_of_script(one.__module__):
            yield from (one.__globals__[name] for name in _names(one.__code__) if name in one.__globals__)


def _is_of_script(name: str | None) -> bool:
    """Whether a module is the script's own, and not of Python or an installed package."""
    if name is None or name.partition(".")[0] in {"autosync", *sys.stdlib_module_names} - {"__main__"}:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, also within functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # The variable of the closure has no value yet.
        return None


def state_of(one: object) -> Any:
    """Return the state of a random generator; None if the object is none."""
    if isinstance(one, random.Random):
        # The system's generator has no state, and gives no two runs the same numbers.
        return None if isinstance(one, random.SystemRandom) else one.getstate()
    if isinstance(one, torch.Generator):
        return one.get_state().numpy().tobytes()
    kind: Any = type(one)
    if not kind.__module__.startswith("numpy.random"):
        return None
    generator: Any = one
    if kind.__name__ == "Generator":
        return repr(generator.bit_generator.state)
    return _legacy_state(generator) if kind.__name__ == "RandomState" else None


def _legacy_state(source: Any) -> Any:
    name, keys, *rest = source.get_state()
    return name, keys.tobytes(), rest
