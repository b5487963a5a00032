"""Expansion: every collective with every algorithm computes what its name says, one round of moves after another."""

from collections import Counter
from itertools import pairwise
from typing import get_args

import pytest

from autosync.plan.expansion import Move, chunk_bounds, expand, has_algorithm, num_chunks
from autosync.plan.types import Algorithm, Collective, NamedAlgorithm

SIZES = range(1, 34)
PAIRS = [(c, a) for c in get_args(Collective) for a in get_args(NamedAlgorithm) if has_algorithm(c, a)]
HALVING = [("reduce_scatter", "halving_doubling"), ("all_gather", "halving_doubling")]
OWNED = ("all_gather", "all_gather_v", "gather_v")

Sums = list[list[Counter[int]]]
"""What each member holds of each chunk: how often each member's contribution is in it."""


def fits(collective: str, algorithm: str, n: int) -> bool:
    return (collective, algorithm) not in HALVING or n & (n - 1) == 0


CASES = [(c, a, n) for c, a in PAIRS for n in SIZES if fits(c, a, n)]


def initial(collective: Collective, n: int) -> Sums:
    """Members hold their contribution to each chunk; where only owner or root contributes, others hold nothing."""
    chunks = range(num_chunks(collective, n))
    if collective in OWNED:
        return [[Counter({member: 1}) if chunk == member else Counter() for chunk in chunks] for member in range(n)]
    if collective in ("broadcast", "send"):
        return [[Counter({0: 1}) if member == 0 else Counter()] for member in range(n)]
    return [[Counter({member: 1}) for _ in chunks] for member in range(n)]


def play(moves: tuple[Move, ...], held: Sums) -> Sums:
    """Carry the moves out, those of a round at once."""
    for number in sorted({move.round for move in moves}):
        sent = [(m, [Counter(held[m.source][c]) for c in range(m.first, m.last)]) for m in moves if m.round == number]
        for move, values in sent:
            for chunk, value in zip(range(move.first, move.last), values, strict=True):
                assert value, f"{move} sends what its source does not have"
                own = held[move.destination][chunk]
                held[move.destination][chunk] = own + value if move.adds else value
    return held


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_computes_what_its_name_says(collective: Collective, algorithm: Algorithm) -> None:
    for n in SIZES:
        if not fits(collective, algorithm, n):
            continue
        held = play(expand(collective, algorithm, n), initial(collective, n))
        everything = Counter(range(n))
        match collective:
            case "all_reduce":
                assert all(chunk == everything for member in held for chunk in member)
            case "reduce_scatter":
                assert all(held[member][member] == everything for member in range(n))
            case "reduce":
                assert held[0] == [everything]
            case "broadcast" | "send":
                assert all(member == [Counter({0: 1})] for member in held)
            case "all_gather" | "all_gather_v":
                assert all(member == [Counter({owner: 1}) for owner in range(n)] for member in held)
            case "gather_v":
                assert held[0] == [Counter({owner: 1}) for owner in range(n)]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_no_sum_is_overwritten_before_it_was_passed_on(collective: Collective, algorithm: Algorithm) -> None:
    """A copy may replace partial sums only by sums that hold all of them."""
    for n in SIZES:
        if not fits(collective, algorithm, n):
            continue
        held = initial(collective, n)
        for move in expand(collective, algorithm, n):
            for chunk in range(move.first, move.last):
                if not move.adds:
                    assert held[move.destination][chunk] <= held[move.source][chunk]
            play((move,), held)


@pytest.mark.parametrize(("collective", "algorithm", "n"), CASES)
def test_moves_are_well_formed(collective: Collective, algorithm: Algorithm, n: int) -> None:
    moves = expand(collective, algorithm, n)
    rounds = [move.round for move in moves]
    assert rounds == sorted(rounds)
    assert set(rounds) == set(range(len(set(rounds)))), "no round is empty"
    for move in moves:
        assert move.source != move.destination
        assert 0 <= move.source < n
        assert 0 <= move.destination < n
        assert 0 <= move.first < move.last <= num_chunks(collective, n)
    edges = [(move.round, move.source, move.destination) for move in moves]
    assert len(edges) == len(set(edges)), "one message a round between two members"


@pytest.mark.parametrize(("collective", "algorithm", "n"), [case for case in CASES if case[1] != "star"])
def test_a_member_sends_and_receives_once_a_round(collective: Collective, algorithm: Algorithm, n: int) -> None:
    moves = expand(collective, algorithm, n)
    assert max(Counter((m.round, m.source) for m in moves).values(), default=1) == 1
    assert max(Counter((m.round, m.destination) for m in moves).values(), default=1) == 1


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "gather_v"])
@pytest.mark.parametrize("n", SIZES)
def test_a_star_is_one_round_through_its_root(collective: Collective, n: int) -> None:
    moves = expand(collective, "star", n)
    assert {move.round for move in moves} <= {0}
    root = [move.source if collective == "broadcast" else move.destination for move in moves]
    others = [move.destination if collective == "broadcast" else move.source for move in moves]
    assert root == [0] * (n - 1)
    assert others == list(range(1, n))


def log2_up(n: int) -> int:
    return (n - 1).bit_length()


@pytest.mark.parametrize("n", SIZES)
def test_number_of_rounds(n: int) -> None:
    def num_rounds(collective: Collective, algorithm: Algorithm) -> int:
        return len({move.round for move in expand(collective, algorithm, n)})

    assert num_rounds("all_reduce", "ring") == 2 * (n - 1)
    assert num_rounds("reduce_scatter", "ring") == num_rounds("all_gather_v", "ring") == n - 1
    assert num_rounds("all_reduce", "tree") == 2 * log2_up(n)
    assert num_rounds("reduce", "tree") == num_rounds("broadcast", "tree") == log2_up(n)
    is_power = n & (n - 1) == 0
    folds = 0 if is_power else 2
    assert num_rounds("all_reduce", "halving_doubling") == 2 * (n.bit_length() - 1) + folds


def test_ring_among_three_written_out() -> None:
    assert expand("all_reduce", "ring", 3) == (
        Move(0, 0, 1, 2, 3, True),
        Move(0, 1, 2, 0, 1, True),
        Move(0, 2, 0, 1, 2, True),
        Move(1, 0, 1, 1, 2, True),
        Move(1, 1, 2, 2, 3, True),
        Move(1, 2, 0, 0, 1, True),
        Move(2, 0, 1, 0, 1, False),
        Move(2, 1, 2, 1, 2, False),
        Move(2, 2, 0, 2, 3, False),
        Move(3, 0, 1, 2, 3, False),
        Move(3, 1, 2, 0, 1, False),
        Move(3, 2, 0, 1, 2, False),
    )


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(c, a) for c in get_args(Collective) for a in get_args(NamedAlgorithm) if not has_algorithm(c, a)],
)
def test_an_unknown_pair_is_refused(collective: Collective, algorithm: Algorithm) -> None:
    with pytest.raises(ValueError, match=f"{collective} has no algorithm {algorithm}"):
        expand(collective, algorithm, 4)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("num_elements", [0, 1, 5, 32, 33, 34, 1000])
def test_chunks_are_as_even_as_can_be(num_elements: int, n: int) -> None:
    bounds = chunk_bounds(num_elements, n)
    lengths = [stop - start for start, stop in pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == num_elements
    assert len(lengths) == n
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
