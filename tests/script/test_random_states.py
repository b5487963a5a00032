"""Random generators are found where datasets keep them, and each draw is noticed."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from autosync.script.random_states import RandomStates, held_generators

GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "python": (lambda: random.Random(1), lambda one: one.random()),
    "numpy": (lambda: np.random.default_rng(1), lambda one: one.random()),
    "numpy-legacy": (lambda: np.random.RandomState(1), lambda one: one.rand()),
    "torch": (lambda: torch.Generator().manual_seed(1), lambda one: torch.rand(1, generator=one)),
}


def _in_closure(one: object) -> Callable[[], object]:
    return lambda: one


CHANCE: dict[str, Any] = {}


def _in_a_global(one: object) -> object:
    CHANCE["of the module"] = one

    class Draws:
        def __getitem__(self, number: int) -> float:
            def drawn() -> Any:
                return CHANCE["of the module"].random()

            return number + drawn()

    return Draws()


def _in_the_class(one: object) -> object:
    return type("Draws", (), {"__module__": __name__, "chance": one})()


HOLDERS: dict[str, Callable[[Any], object]] = {
    "itself": lambda one: one,
    "attribute": lambda one: SimpleNamespace(transform=SimpleNamespace(steps=[1, one])),
    "mapping": lambda one: {"a": (3, {"b": one})},
    "partial": lambda one: functools.partial(print, one),
    "closure": _in_closure,
    "global that its code names": _in_a_global,
    "attribute of its class": _in_the_class,
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_is_found_and_its_draws_are_noticed(kind: str, holder: str) -> None:
    make, draw = GENERATORS[kind]
    generator = make()
    held = HOLDERS[holder](generator)
    assert list(held_generators([held])) == [generator]
    states = RandomStates(held)
    before = states.now()
    assert states.now() == before
    draw(generator)
    assert states.now() != before


def test_a_generator_behind_much_data_is_found() -> None:
    generator = random.Random(1)
    held = SimpleNamespace(
        names=[str(number) for number in range(20_000)],
        places=[Path(str(number)) for number in range(20_000)],
        sizes=[np.float32(number) for number in range(20_000)],
        pairs=[(number, object()) for number in range(20_000)],
        transform=SimpleNamespace(steps=[SimpleNamespace(chance=generator)]),
    )
    assert list(held_generators([held])) == [generator]
    assert list(held_generators([[*range(50_000), generator]])) == [generator]


def test_code_of_others_is_not_looked_at() -> None:
    assert list(held_generators([torch.utils.data.TensorDataset(torch.ones(2)), torch.rand, np.mean])) == []
    assert list(held_generators([random.SystemRandom()])) == []


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, np.random.rand])
def test_draws_of_the_shared_generators_are_noticed(draw: Callable[[], object]) -> None:
    states = RandomStates()
    before = states.now()
    draw()
    assert states.now() != before


def test_circles_and_large_data_end() -> None:
    circle: list[object] = [list(range(100_000)), torch.ones(3), str]
    circle.append(circle)
    assert list(held_generators([circle])) == []
