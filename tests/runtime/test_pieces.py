"""Compiled pieces: all members together, simulated with messages that take their time, do what the moves say."""

import itertools
import random
from collections import deque

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.expansion import _EXPANSIONS, Move, chunk_bounds, expand, num_chunks
from autosync.plan.types import Collective
from autosync.runtime.wire.transfer_pieces import (
    PIECE_BYTES,
    SHORT_PIECE_BYTES,
    WHOLE_BYTES,
    Pieces,
    Receive,
    Send,
    _Piece,
    _Writers,
    compile_contents,
    compile_pieces,
    cut_moves,
)
from autosync.strategy.shapes.trees import TreeShape, TreeShare
from tests.helpers.random_trees import shapes

# Large elements make many pieces of few elements: 2 in a piece that is not cut, 16 in the longest.
ITEM_BYTES = WHOLE_BYTES // 2
BUFFER = npt.NDArray[np.int64]


def possible(collective: str, algorithm: str, num_members: int) -> bool:
    halves = algorithm == "halving_doubling" and collective != "all_reduce"
    return not halves or num_members & (num_members - 1) == 0


CASES = [
    (collective, algorithm, n)
    for (collective, algorithm) in _EXPANSIONS
    for n in range(2, 10)
    if possible(collective, algorithm, n)
]


class Member:
    """One member's program, run step by step as the executor does: it asks, takes in order, adds, sends."""

    def __init__(self, pieces: Pieces, buffer: BUFFER, window: int) -> None:
        self.pieces = pieces
        self.buffer = buffer
        self.window = window
        self.num_taken = 0
        self.num_asked = 0
        self.num_posted = 0
        self.landed: list[BUFFER | None] = [None] * len(pieces.receives)

    @property
    def is_done(self) -> bool:
        return self.num_posted == len(self.pieces.sends)


class Wire:
    """All members and the channels between them. What is sent is read when it leaves, long after it was posted."""

    def __init__(self, programs: list[Pieces], buffers: list[BUFFER], windows: list[int], rng: random.Random) -> None:
        self.members = [Member(p, b, w) for p, b, w in zip(programs, buffers, windows, strict=True)]
        pairs = list(itertools.permutations(range(len(programs)), 2))
        self.posted: dict[tuple[int, int], deque[Send]] = {pair: deque() for pair in pairs}
        self.asked: dict[tuple[int, int], deque[int]] = {pair: deque() for pair in pairs}
        self.flying: dict[tuple[int, int], deque[tuple[BUFFER, int]]] = {pair: deque() for pair in pairs}
        self.rng = rng

    def run(self) -> None:
        """Whatever can happen next happens, in any order, until nothing can."""
        while True:
            steps = list(self._possible())
            if not steps:
                break
            what, where = self.rng.choice(steps)
            getattr(self, what)(where)
        assert all(member.is_done for member in self.members), "deadlock"
        assert not any(self.posted.values()), "sends that nobody received"

    def _possible(self):  # type: ignore[no-untyped-def]
        for pair, posted in self.posted.items():
            if posted and self.asked[pair]:
                yield "leave", pair
            if self.flying[pair]:
                yield "land", pair
        for number, member in enumerate(self.members):
            if member.num_asked < min(len(member.pieces.receives), member.num_taken + member.window):
                yield "ask", number
            if member.num_posted == member.num_taken:
                yield "post", number
            elif member.num_taken < member.num_asked and member.landed[member.num_taken] is not None:
                yield "take", number

    def post(self, number: int) -> None:
        member = self.members[number]
        for send in member.pieces.sends[member.num_posted]:
            self.posted[number, send.destination].append(send)
        member.num_posted += 1

    def ask(self, number: int) -> None:
        member = self.members[number]
        self.asked[member.pieces.receives[member.num_asked].source, number].append(member.num_asked)
        member.num_asked += 1

    def leave(self, pair: tuple[int, int]) -> None:
        source, destination = pair
        send, index = self.posted[pair].popleft(), self.asked[pair].popleft()
        receive = self.members[destination].pieces.receives[index]
        assert (send.start, send.stop) == (receive.start, receive.stop), "gloo would mix these up"
        self.flying[pair].append((self.members[source].buffer[send.start : send.stop].copy(), index))

    def land(self, pair: tuple[int, int]) -> None:
        values, index = self.flying[pair].popleft()
        member = self.members[pair[1]]
        receive = member.pieces.receives[index]
        if not receive.adds:
            member.buffer[receive.start : receive.stop] = values
        member.landed[index] = values

    def take(self, number: int) -> None:
        member = self.members[number]
        receive, values = member.pieces.receives[member.num_taken], member.landed[member.num_taken]
        if receive.adds:
            member.buffer[receive.start : receive.stop] += values
        member.num_taken += 1


def by_moves(moves: tuple[Move, ...], bounds: tuple[int, ...], buffers: list[BUFFER]) -> list[BUFFER]:
    """What the moves mean: all of a round read before any writes."""
    now = [buffer.copy() for buffer in buffers]
    for _, together in itertools.groupby(moves, key=lambda move: move.round):
        carried = [(m, now[m.source][bounds[m.first] : bounds[m.last]].copy()) for m in together]
        for move, values in carried:
            place = now[move.destination][bounds[move.first] : bounds[move.last]]
            place[:] = place + values if move.adds else values
    return now


def some_buffers(num_members: int, size: int, rng: random.Random) -> list[BUFFER]:
    return [np.array([rng.randrange(10**6) for _ in range(size)], dtype=np.int64) for _ in range(num_members)]


@given(st.sampled_from(CASES), st.integers(0, 90), st.integers(0, 2**32), st.booleans())
@settings(max_examples=150, deadline=None)
def test_members_together_do_what_the_moves_say(case, size, seed, narrow):
    collective, algorithm, n = case
    rng = random.Random(seed)
    programs = [
        compile_pieces(collective, algorithm, num_members=n, position=i, num_elements=size, item_bytes=ITEM_BYTES)
        for i in range(n)
    ]
    buffers = some_buffers(n, size, rng)
    expected = by_moves(expand(collective, algorithm, n), chunk_bounds(size, num_chunks(collective, n)), buffers)
    wire = Wire(programs, buffers, [1 if narrow else rng.randint(1, 9) for _ in range(n)], rng)
    wire.run()
    for member, values in zip(wire.members, expected, strict=True):
        assert np.array_equal(member.buffer, values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(word) for word in case))
@pytest.mark.parametrize("size", ["0", "1", "n-1", "n", "7n+3"])
def test_every_case_at_the_sizes_that_break_things(case, size):
    collective, algorithm, n = case
    num_elements = {"0": 0, "1": 1, "n-1": n - 1, "n": n, "7n+3": 7 * n + 3}[size]
    rng = random.Random(0)
    programs = [
        compile_pieces(
            collective, algorithm, num_members=n, position=i, num_elements=num_elements, item_bytes=ITEM_BYTES
        )
        for i in range(n)
    ]
    buffers = some_buffers(n, num_elements, rng)
    bounds = chunk_bounds(num_elements, num_chunks(collective, n))
    expected = by_moves(expand(collective, algorithm, n), bounds, buffers)
    wire = Wire(programs, buffers, [1] * n, rng)
    wire.run()
    assert all(np.array_equal(member.buffer, values) for member, values in zip(wire.members, expected, strict=True))


@given(st.lists(st.integers(0, 40), min_size=2, max_size=6), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_chunks_of_any_lengths(sizes, seed):
    n = len(sizes)
    rng = random.Random(seed)
    bounds = (0, *itertools.accumulate(sizes))
    moves = expand("all_gather_v", "ring", n)
    programs = [cut_moves(moves, bounds, position=i, item_bytes=ITEM_BYTES) for i in range(n)]
    buffers = some_buffers(n, bounds[-1], rng)
    expected = by_moves(moves, bounds, buffers)
    wire = Wire(programs, buffers, [2] * n, rng)
    wire.run()
    assert all(np.array_equal(member.buffer, values) for member, values in zip(wire.members, expected, strict=True))


def test_contents_of_the_same_sizes_are_compiled_once():
    sizes = {"num_members": 3, "position": 1, "bounds": (0, 4, 4, 9), "item_bytes": 1}
    found = compile_contents("all_gather_v", "ring", **sizes)
    assert found == cut_moves(expand("all_gather_v", "ring", 3), (0, 4, 4, 9), position=1, item_bytes=1)
    assert compile_contents("all_gather_v", "ring", **sizes) is found
    assert compile_contents("all_gather_v", "ring", **{**sizes, "bounds": (0, 4, 5, 9)}) != found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 12)), max_size=12), st.integers(0, 3))
def test_the_last_writer_is_found_among_ranges_of_any_lengths(writes, number):
    writes.sort(key=lambda write: write[0])
    pieces = [_Piece(Move(at, 0, 1, 0, 1, adds=True), (at, 0), start, start + length) for at, start, length in writes]
    writers = _Writers(pieces)
    for start in range(0, 40, 3):
        leaving = _Piece(Move(number, 1, 2, 0, 1, adds=True), (number, 0), start, start + 4)
        reaching = [
            (piece.move.round, place)
            for place, piece in enumerate(pieces, start=1)
            if piece.move.round < number and piece.start < start + 4 and start < piece.stop
        ]
        latest = max((at for at, _ in reaching), default=-1)
        assert writers.last_before(leaving) == max((place for at, place in reaching if at == latest), default=0)


def test_over_trees_a_piece_counts_as_much_as_the_mean_one():
    """Else a window that holds few long pieces and many short ones would hold few bytes."""
    shape = TreeShape(shares=(TreeShare(up=(0, 0), weight=3), TreeShare(up=(1, 1))))
    pieces = compile_pieces("all_reduce", shape, num_members=2, position=0, num_elements=2**20, item_bytes=4)
    lengths = [receive.stop - receive.start for receive in pieces.receives]
    assert pieces.usual_length == sum(lengths) / len(lengths) < max(lengths)


def test_pieces_are_short_and_large_moves_are_cut():
    one_piece = 2 * PIECE_BYTES // 4
    pieces = compile_pieces("broadcast", "star", num_members=2, position=1, num_elements=one_piece + 1, item_bytes=4)
    assert [r.stop - r.start for r in pieces.receives] == [87382, 87382, 87381]
    assert pieces.usual_length == 87382
    short = compile_pieces(
        "broadcast",
        "star",
        num_members=2,
        position=1,
        num_elements=one_piece + 1,
        item_bytes=4,
        piece_bytes=PIECE_BYTES // 2,
    )
    assert len(short.receives) == 5
    small = compile_pieces("broadcast", "star", num_members=2, position=1, num_elements=WHOLE_BYTES // 4, item_bytes=4)
    assert small.receives == (Receive(0, 0, WHOLE_BYTES // 4, adds=False),)
    larger = compile_pieces("broadcast", "star", num_members=2, position=1, num_elements=WHOLE_BYTES, item_bytes=2)
    assert len(larger.receives) == 2


def test_a_star_takes_turns_among_its_sources():
    pieces = compile_pieces("reduce", "star", num_members=3, position=0, num_elements=4, item_bytes=ITEM_BYTES)
    assert pieces.receives == (
        Receive(1, 0, 2, adds=True),
        Receive(2, 0, 2, adds=True),
        Receive(1, 2, 4, adds=True),
        Receive(2, 2, 4, adds=True),
    )
    assert pieces.breadth == 2
    assert pieces.sources == (1, 2)
    assert pieces.destinations == ()


def test_the_script_of_a_ring():
    """Member 1 of 3: chunk 0 goes at once; what comes is sent on piece by piece."""
    pieces = compile_pieces("all_reduce", "ring", num_members=3, position=1, num_elements=12, item_bytes=ITEM_BYTES)
    assert pieces.receives == (
        Receive(0, 8, 10, adds=True),
        Receive(0, 10, 12, adds=True),
        Receive(0, 4, 6, adds=True),
        Receive(0, 6, 8, adds=True),
        Receive(0, 0, 2, adds=False),
        Receive(0, 2, 4, adds=False),
        Receive(0, 8, 10, adds=False),
        Receive(0, 10, 12, adds=False),
    )
    assert pieces.sends == (
        (Send(2, 0, 2), Send(2, 2, 4)),
        (Send(2, 8, 10),),
        (Send(2, 10, 12),),
        (Send(2, 4, 6),),
        (Send(2, 6, 8),),
        (Send(2, 0, 2),),
        (Send(2, 2, 4),),
        (),
        (),
    )


def test_sends_to_a_member_keep_the_order_in_which_it_receives():
    """A piece that could go at once waits for one of an earlier round that cannot."""
    moves = (
        Move(0, 0, 1, 0, 1, adds=False),
        Move(1, 1, 2, 0, 1, adds=False),
        Move(2, 1, 2, 1, 2, adds=False),
    )
    pieces = cut_moves(moves, (0, 1, 2), position=1, item_bytes=4)
    assert pieces.sends == ((), (Send(2, 0, 1), Send(2, 1, 2)))


def compile_over_trees(
    shape: TreeShape, size: int, *, item_bytes: int = ITEM_BYTES, collective: Collective = "all_reduce"
) -> list[Pieces]:
    return [
        compile_pieces(
            collective, shape, num_members=shape.num_ranks, position=i, num_elements=size, item_bytes=item_bytes
        )
        for i in range(shape.num_ranks)
    ]


@given(shapes(max_ranks=7), st.integers(0, 120), st.integers(0, 2**32), st.booleans())
@settings(max_examples=150, deadline=None)
def test_members_over_trees_do_what_the_moves_say(shape, size, seed, narrow):
    n = shape.num_ranks
    rng = random.Random(seed)
    buffers = some_buffers(n, size, rng)
    expected = by_moves(expand("all_reduce", shape, n), chunk_bounds(size, shape.num_units), buffers)
    assert all(np.array_equal(values, sum(buffers)) for values in expected)
    wire = Wire(compile_over_trees(shape, size), buffers, [1 if narrow else rng.randint(1, 9) for _ in range(n)], rng)
    wire.run()
    for member, values in zip(wire.members, expected, strict=True):
        assert np.array_equal(member.buffer, values)


@given(
    st.sampled_from(("reduce_scatter", "all_gather")), shapes(max_ranks=7), st.integers(0, 120), st.integers(0, 2**32)
)
@settings(max_examples=100, deadline=None)
def test_halves_over_trees_do_what_the_moves_say(collective, shape, size, seed):
    rng, n = random.Random(seed), shape.num_ranks
    buffers = some_buffers(n, size, rng)
    expected = by_moves(expand(collective, shape, n), chunk_bounds(size, shape.num_units), buffers)
    pieces = compile_over_trees(shape, size, collective=collective)
    wire = Wire(pieces, buffers, [rng.randint(1, 9) for _ in range(n)], rng)
    wire.run()
    for member, values in zip(wire.members, expected, strict=True):
        assert np.array_equal(member.buffer, values)


def test_every_share_has_as_many_pieces_as_the_longest():
    shape = TreeShape(shares=(TreeShare(up=(0, 0), weight=3), TreeShare(up=(1, 1))))
    pieces, other = compile_over_trees(shape, 4 * SHORT_PIECE_BYTES, item_bytes=1)
    # The member adds up the first share and gets the result of the second, three pieces each.
    assert [(r.start, r.stop - r.start, r.adds) for r in pieces.receives] == [
        (0, 262144, True),
        (262144, 262144, True),
        (786432, 87382, False),
        (524288, 262144, True),
        (873814, 87381, False),
        (961195, 87381, False),
    ]
    assert pieces.breadth == other.breadth == 1


def test_pieces_follow_one_another_through_a_chain():
    shape = TreeShape(shares=(TreeShare(up=(1, 2, 3, 3)),))
    first, second, third, _ = compile_over_trees(shape, 4 * SHORT_PIECE_BYTES, item_bytes=1)
    assert [len(sends) for sends in first.sends] == [4, 0, 0, 0, 0]
    # A piece is sent on as soon as it has come, while later ones are still under way.
    for member in (second, third):
        assert [len(sends) for sends in member.sends] == [0, *[1] * 8]
