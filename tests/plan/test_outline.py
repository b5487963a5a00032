"""The outline of a collective is that of its moves."""

from __future__ import annotations

from typing import get_args

import pytest

from autosync.plan.expansion import expand, has_algorithm
from autosync.plan.outline import outline
from autosync.plan.types import Algorithm, Collective, NamedAlgorithm

SIZES = (1, 2, 3, 4, 5, 8, 13)
PAIRS = [(c, a) for c in get_args(Collective) for a in get_args(NamedAlgorithm) if has_algorithm(c, a)]


def fits(collective: str, algorithm: str, num_members: int) -> bool:
    """What is not an all-reduce is halved to the end, which only a power of two can be."""
    return algorithm != "halving_doubling" or collective == "all_reduce" or num_members & (num_members - 1) == 0


CASES = [(c, a, n) for c, a in PAIRS for n in SIZES if fits(c, a, n)]


@pytest.mark.parametrize(("collective", "algorithm", "num_members"), CASES)
def test_it_is_that_of_the_moves(collective: Collective, algorithm: Algorithm, num_members: int) -> None:
    moves = expand(collective, algorithm, num_members)
    added = [sum(m.last - m.first for m in moves if m.adds and m.destination == one) for one in range(num_members)]
    found = outline(collective, algorithm, num_members)
    assert found.num_moves == len(moves)
    assert found.num_rounds == len({move.round for move in moves})
    assert found.most_added == max(added)
    assert found.receivers == tuple(sorted({move.destination for move in moves}))
