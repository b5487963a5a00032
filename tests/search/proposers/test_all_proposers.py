"""Every proposer of ours is held to the conformance suite, and the suite to proposers that break its rules."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest

from autosync.datasets.schema import Record
from autosync.errors import UnknownNameError
from autosync.search.candidates import Candidate
from autosync.search.proposers.catalogue import PROPOSERS, open_proposer, proposer_names
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.sampled import Sampled
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.testing.proposers import check_proposer, ground_of


def _model(*, sparse: bool) -> ModelSpec:
    shapes: dict[str, tuple[int, ...]] = {"table": (50, 8), "fc.weight": (40, 30), "fc.bias": (40,), "out": (10, 40)}
    last = len(shapes) - 1
    variables = []
    for place, (name, shape) in enumerate(shapes.items()):
        if name == "table" and sparse:
            variables.append(
                Variable(
                    name=name,
                    shape=shape,
                    kind="embedding",
                    touched_rows=9.0,
                    max_touched_rows=12,
                    use=place,
                    ready=last - place,
                )
            )
        else:
            variables.append(Variable(name=name, shape=shape, use=place, ready=last - place))
    segment = Segment(module="all", seconds=0.01, variables=tuple(shapes))
    return ModelSpec(
        name="tiny",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=tuple(variables),
        timeline=Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,)),
    )


GROUNDS = (("4-hosts-2-servers", False), ("2-hosts-2-ranks", True))
# Each proposer on one of them, in turn; slow is the other.
CONFORMING = [
    pytest.param(name, *ground, marks=pytest.mark.slow if (number + place) % 2 else ())
    for number, name in enumerate(sorted(proposer_names()))
    for place, ground in enumerate(GROUNDS)
]


@pytest.mark.parametrize(("name", "cluster", "sparse"), CONFORMING)
def test_ours_conform(name: str, cluster: str, sparse: bool) -> None:
    check_proposer(PROPOSERS.get(name), _model(sparse=sparse), load_cluster(cluster))


@pytest.mark.parametrize("name", sorted(proposer_names()))
def test_each_is_opened_by_its_name(name: str) -> None:
    assert open_proposer(name, ground_of(_model(sparse=False), load_cluster("2-hosts"))).name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="evolution, learned, mcmc, nsga2, random, tpe"):
        open_proposer("lerned", ground_of(_model(sparse=False), load_cluster("2-hosts")))


class _Repeats(Sampled):
    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        return super().propose([], count, random.Random(0))


class _Remembers(Sampled):
    num_asked = 0

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        self.num_asked += 1
        return super().propose(history, count, random.Random(f"{rng.random()} {self.num_asked}"), taken=taken)


class _GivesUp(Sampled):
    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        found = super().propose(history, count, rng, taken=taken)
        return [] if len(history) > 5 else found


class _Overdoes(Sampled):
    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        return super().propose(history, count + 1, rng, taken=taken)


class _IgnoresTaken(Sampled):
    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        return super().propose(history, count, rng)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_Repeats, "again"),
        (_Remembers, "otherwise where it was asked before"),
        (_GivesUp, "of the 9 strategies of a pool"),
        (_Overdoes, "where it was asked for"),
        (_IgnoresTaken, "again"),
    ],
)
def test_the_suite_finds_those_that_break_its_rules(wrong: type[Sampled], words: str) -> None:
    def build(ground: Ground) -> Sampled:
        return wrong(ground)

    with pytest.raises(AssertionError, match=words):
        check_proposer(build, _model(sparse=False), load_cluster("2-hosts"))
