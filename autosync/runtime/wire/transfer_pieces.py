"""A transfer as one member carries it out: pieces to receive in order, and the pieces to send after each of them.

They are compiled from the moves of `plan.expansion`; nothing here touches tensors. All members rely on these rules:

- **Pieces.** A move's range is cut by a rule that depends on the range alone, so both ends cut alike. Then a member can
  receive a piece, add the one before and send the one before that at the same time.
- **Order.** Only their order tells messages between two members apart. Both ends have them in the order of rounds;
  within a round piece by piece, so that several sources take turns. A member receives in this order (equal pieces of a
  round are ordered by source), and never posts a send before an earlier one to the same member, even where it could.
- **Pipelining.** Over trees, every share is cut into as many pieces as the longest one. The pieces go in waves: in wave
  w, round r carries its piece w - r. So the first pieces arrive at the end of the trees while later ones set out.
- **Enabling.** A piece can go when everything that earlier rounds bring to its range has arrived. Moves of one round
  read before any of them writes, so what a round brings does not delay its own sends.
- **Overwriting.** A piece is sent directly from the buffer, at the latest when its receiver asks for it, and copies are
  received directly into the buffer, perhaps long before their turn. Both are safe: wherever a later round writes to a
  range that a member has sent, what it writes was made from what the member sent, and so comes after it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from autosync.plan.expansion import Move, chunk_bounds, expand, num_chunks
from autosync.plan.types import Algorithm, Collective
from autosync.strategy.shapes.trees import TreeShape

PIECE_BYTES = 2**19
"""The greatest length of a piece. At this length, the fixed cost of a piece is small beside its time on the wire."""
SHORT_PIECE_BYTES = 2**18
"""The greatest length where a plan has something more urgent, which must not wait long between two pieces."""
WHOLE_BYTES = 2**16
"""The size up to which a move is one piece, because overlapping two pieces would not pay for the second."""


class Receive(NamedTuple):
    """Elements `start` to `stop` from a member (by position), to add to the buffer or to replace what is there."""

    source: int
    start: int
    stop: int
    adds: bool


class Send(NamedTuple):
    """Elements `start` to `stop` to a member (by position)."""

    destination: int
    start: int
    stop: int


class Pieces(NamedTuple):
    """The pieces of one member.

    The member sends `sends[0]` at the start, and `sends[i]` when the i-th of `receives`, counted from 1, has come.
    `breadth` is the number of members from which it receives at a time. `usual_length` is the number of elements that a
    piece counts for where requests are limited: that of the longest, and over trees, whose shares differ, the mean.
    """

    receives: tuple[Receive, ...]
    sends: tuple[tuple[Send, ...], ...]
    breadth: int
    usual_length: float

    @property
    def sources(self) -> tuple[int, ...]:
        """The members that this one receives from."""
        return tuple(sorted({receive.source for receive in self.receives}))

    @property
    def destinations(self) -> tuple[int, ...]:
        """The members that this one sends to."""
        return tuple(sorted({send.destination for sends in self.sends for send in sends}))


@functools.lru_cache(maxsize=4096)
def compile_pieces(
    collective: Collective,
    algorithm: Algorithm,
    *,
    num_members: int,
    position: int,
    num_elements: int,
    item_bytes: int,
    piece_bytes: int = PIECE_BYTES,
) -> Pieces:
    """Return the pieces of a transfer of one evenly split buffer, for the member at a position of its group.

    `piece_bytes` limits the length of a piece and is the same at all members.
    """
    bounds = chunk_bounds(num_elements, num_chunks(collective, num_members, algorithm))
    moves = expand(collective, algorithm, num_members)
    if isinstance(algorithm, TreeShape):
        longest_bytes = -(-num_elements // algorithm.num_units) * algorithm.widest * item_bytes
        num_pieces = _num_pieces(longest_bytes, min(piece_bytes, SHORT_PIECE_BYTES))
        cut = functools.partial(_pieces_in_waves, bounds=bounds, num_pieces=num_pieces)
        return _compiled(moves, cut, position=position, usual=statistics.fmean)
    return cut_moves(moves, bounds, position=position, item_bytes=item_bytes, piece_bytes=piece_bytes)


@functools.lru_cache(maxsize=1024)
def compile_contents(
    collective: Collective,
    algorithm: Algorithm,
    *,
    num_members: int,
    position: int,
    bounds: tuple[int, ...],
    item_bytes: int,
    piece_bytes: int = PIECE_BYTES,
) -> Pieces:
    """Return the pieces of a transfer of chunks with these bounds. Encoded messages have the same in every step."""
    moves = expand(collective, algorithm, num_members)
    return cut_moves(moves, bounds, position=position, item_bytes=item_bytes, piece_bytes=piece_bytes)


@functools.lru_cache(maxsize=1024)
def compile_exchange(num_members: int, position: int, item_bytes: int) -> Pieces:
    """Return the pieces of an exchange in which every member sends its one item to all others at once."""
    others = [other for other in range(num_members) if other != position]
    moves = [Move(0, position, other, position, position + 1, adds=False) for other in others]
    moves += [Move(0, other, position, other, other + 1, adds=False) for other in others]
    return cut_moves(moves, range(num_members + 1), position=position, item_bytes=item_bytes)


def cut_moves(
    moves: Sequence[Move],
    bounds: Sequence[int],
    *,
    position: int,
    item_bytes: int,
    piece_bytes: int = PIECE_BYTES,
) -> Pieces:
    """Return the pieces of any moves of chunks with these bounds.

    A member need only know the bounds of those chunks that it sends or receives.
    """
    cut = functools.partial(_pieces_by_rounds, bounds=bounds, item_bytes=item_bytes, piece_bytes=piece_bytes)
    return _compiled(moves, cut, position=position, usual=max)


def _compiled(
    moves: Sequence[Move],
    cut: Callable[[Iterable[Move]], list[_Piece]],
    *,
    position: int,
    usual: Callable[[Iterable[int]], float],
) -> Pieces:
    """Return the pieces of a member, for moves that are cut by this rule. `usual` finds the usual one of lengths."""
    arriving = cut(move for move in moves if move.destination == position)
    leaving = cut(move for move in moves if move.source == position)
    arriving.sort(key=lambda piece: (*piece.place, piece.move.source))
    leaving.sort(key=lambda piece: (*piece.place, piece.move.destination))
    receives = tuple(Receive(p.move.source, p.start, p.stop, p.move.adds) for p in arriving)
    return Pieces(
        receives=receives,
        sends=_enabled(arriving, leaving),
        breadth=_breadth(arriving),
        usual_length=usual(receive.stop - receive.start for receive in receives) if receives else 0.0,
    )


class _Piece(NamedTuple):
    """A piece of a move. Pieces go in the order of their places; those with an equal first number go at a time."""

    move: Move
    place: tuple[int, ...]
    start: int
    stop: int


def _pieces_by_rounds(
    moves: Iterable[Move], *, bounds: Sequence[int], item_bytes: int, piece_bytes: int
) -> list[_Piece]:
    """Return all pieces of some moves, those of a round in turn; an empty move has none."""
    pieces = []
    for move in moves:
        begin, end = bounds[move.first], bounds[move.last]
        cuts = chunk_bounds(end - begin, _num_pieces((end - begin) * item_bytes, piece_bytes))
        pieces += [
            _Piece(move, (move.round, number), begin + start, begin + stop)
            for number, (start, stop) in enumerate(itertools.pairwise(cuts))
            if start < stop
        ]
    return pieces


def _pieces_in_waves(moves: Iterable[Move], *, bounds: Sequence[int], num_pieces: int) -> list[_Piece]:
    """Return all pieces of some moves over trees, `num_pieces` of each move that is not empty."""
    pieces = []
    for move in moves:
        begin, end = bounds[move.first], bounds[move.last]
        for number, (start, stop) in enumerate(itertools.pairwise(chunk_bounds(end - begin, num_pieces))):
            if start < stop:
                place = (move.round + number, move.round, move.first)
                pieces.append(_Piece(move, place, begin + start, begin + stop))
    return pieces


def _num_pieces(num_bytes: int, piece_bytes: int) -> int:
    return max(-(-num_bytes // piece_bytes), 2 if num_bytes > WHOLE_BYTES else 1)


def _enabled(arriving: Sequence[_Piece], leaving: Sequence[_Piece]) -> tuple[tuple[Send, ...], ...]:
    """Return the sends that can go at the start and after each arrival, in order for each destination."""
    after: list[list[Send]] = [[] for _ in range(len(arriving) + 1)]
    latest: dict[int, int] = defaultdict(int)
    writers = _Writers(arriving)
    for piece in leaving:
        destination = piece.move.destination
        latest[destination] = max(latest[destination], writers.last_before(piece))
        after[latest[destination]].append(Send(destination, piece.start, piece.stop))
    return tuple(tuple(sends) for sends in after)


class _Writers:
    """Finds the last arriving piece, counted from 1, that writes to the range of a piece before the piece's round."""

    def __init__(self, arriving: Sequence[_Piece]) -> None:
        writes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for number, piece in enumerate(arriving, start=1):
            writes[piece.move.round].append((piece.start, piece.stop, number))
        self._rounds = sorted(writes)
        self._writes = {number: sorted(found) for number, found in writes.items()}
        self._starts = {number: [start for start, _, _ in found] for number, found in self._writes.items()}
        self._longest = {number: max(stop - start for start, stop, _ in found) for number, found in writes.items()}

    def last_before(self, piece: _Piece) -> int:
        earlier = bisect.bisect_left(self._rounds, piece.move.round)
        # What arrives for a range is in the order of rounds, so the last piece is in the last round that writes to it.
        for number in reversed(self._rounds[:earlier]):
            starts = self._starts[number]
            # A long transfer has thousands of pieces in a round, and only a few of them are near.
            begin = bisect.bisect_right(starts, piece.start - self._longest[number])
            end = bisect.bisect_left(starts, piece.stop)
            found = [last for _, stop, last in self._writes[number][begin:end] if piece.start < stop]
            if found:
                return max(found)
        return 0


def _breadth(arriving: Iterable[_Piece]) -> int:
    sources: dict[int, set[int]] = defaultdict(set)
    for piece in arriving:
        sources[piece.place[0]].add(piece.move.source)
    return max((len(found) for found in sources.values()), default=0)
