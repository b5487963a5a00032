"""Carries out compiled transfers on a session's links: asks for pieces ahead, adds them, and sends what is then ready.

A message between two ranks is identified by its tag and its place in the order of that tag, so gloo would silently mix
up the data of misordered transfers. With `checks`, each transfer begins with a header to every member that it sends to,
under one tag for all transfers of a lane: operation, iteration, sequence and bytes, compared on arrival.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from autosync.errors import OperationError
from autosync.plan.types import Collective
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links, said
from autosync.runtime.wire.transfer_pieces import Pieces, Receive, Send, compile_contents, compile_exchange

_HEADER_TAG = 2**30


class TransferId(NamedTuple):
    """Identifies a transfer in checks. `sequence` is its position among the lane's transfers with the same members."""

    operation: int
    iteration: int
    sequence: int
    lane: int

    def __str__(self) -> str:
        return f"operation {self.operation} of iteration {self.iteration} (transfer {self.sequence} of its lane)"


class Coming(NamedTuple):
    """A lane's next transfer on this rank. It waits only for its turn, and nothing else uses its buffer until then."""

    pieces: Pieces
    buffer: torch.Tensor
    members: Sequence[int]
    tag: int
    priority: int


Following: TypeAlias = Callable[[], Coming | None]
"""Returns a lane's next transfer that it has not returned yet, or None while that is not ready."""


class Exchange:
    """Carries out one lane's transfers on a rank, one at a time.

    When all pieces of a transfer have been asked for, it asks for pieces of the next transfers, as far as the window
    goes. Otherwise senders would hold these until the last piece has come and a request has gone back.
    """

    def __init__(self, links: Links, flow: Flow, *, checks: bool = False) -> None:
        self._links = links
        self._flow = flow
        self._checks = checks
        self._scratch = _Scratch()
        # Transfers whose pieces are requested before their turn (only the last may have pieces left to request), and
        # the number of their pieces that are on their way.
        self._coming: deque[_UnderWay] = deque()
        self._num_ahead = 0

    def run(
        self,
        pieces: Pieces,
        buffer: torch.Tensor,
        *,
        members: Sequence[int],
        tag: int,
        priority: int,
        identity: TransferId | None = None,
        following: Following | None = None,
    ) -> None:
        """Take part in a transfer with a flat, contiguous buffer. `members` are ranks, `tag` is the transfer's own.

        Returns when the buffer holds the result and nothing reads it any more. `following` returns the next transfers
        of this exchange, in their order.
        """
        if self._checks and identity is not None:
            self._check(pieces, members, identity, buffer.numel() * buffer.element_size())
        if self._coming:
            under_way = self._coming.popleft()
            self._num_ahead -= under_way.num_asked
            assert under_way.tag == tag, "what was asked for ahead is what comes next"
        else:
            under_way = self._under_way(Coming(pieces, buffer, members, tag, priority))
        with self._flow.active(priority):
            try:
                under_way.carry_out(following and functools.partial(self._ask_ahead, following))
            except BaseException:
                self.forget()
                raise
            finally:
                under_way.forget()

    def forget(self) -> None:
        """Drop the pieces that were asked for before their transfer's turn, because it will not be carried out."""
        while self._coming:
            self._coming.pop().forget()
        self._num_ahead = 0

    def _under_way(self, coming: Coming) -> _UnderWay:
        return _UnderWay(self._links, self._flow, self._scratch, coming)

    def _ask_ahead(self, following: Following, num_asked: int) -> None:
        """Ask for pieces of the next transfers, while `num_asked` pieces of this one are on their way."""
        while True:
            if self._coming:
                last = self._coming[-1]
                before = last.num_asked
                is_all = last.ask(num_asked + self._num_ahead - before)
                self._num_ahead += last.num_asked - before
                if not is_all:
                    return
            coming = following()
            if coming is None:
                return
            self._coming.append(self._under_way(coming))

    def all_gather_v(
        self,
        contribution: torch.Tensor,
        *,
        members: Sequence[int],
        tag: int,
        priority: int,
        identity: TransferId | None = None,
    ) -> list[torch.Tensor]:
        """Return every member's contribution, in their order. They are flat, of one type and of any lengths."""
        me = members.index(self._links.rank)
        sizes = torch.zeros(len(members), dtype=torch.int64)
        sizes[me] = contribution.numel()
        # The sizes are small enough to go to all members at once; round a ring they would take as many messages one
        # after another.
        across = compile_exchange(len(members), me, item_bytes=8)
        self.run(across, sizes, members=members, tag=tag, priority=priority, identity=identity)
        bounds = _bounds(sizes)
        gathered = contribution.new_empty(bounds[-1])
        gathered[bounds[me] : bounds[me + 1]] = contribution
        pieces = self._pieces("all_gather_v", members, bounds, contribution, priority)
        self.run(pieces, gathered, members=members, tag=tag, priority=priority)
        return [gathered[start:stop] for start, stop in itertools.pairwise(bounds)]

    def gather_v(
        self,
        contribution: torch.Tensor,
        *,
        members: Sequence[int],
        tag: int,
        priority: int,
        identity: TransferId | None = None,
    ) -> list[torch.Tensor]:
        """Return all contributions, as `all_gather_v` does, on the first member; an empty list on the others."""
        me = members.index(self._links.rank)
        sizes = torch.zeros(len(members), dtype=torch.int64)
        sizes[me] = contribution.numel()
        ones = self._pieces("gather_v", members, range(len(members) + 1), sizes, priority)
        self.run(ones, sizes, members=members, tag=tag, priority=priority, identity=identity)
        # All members but the first know only their own size, which is enough for what they send.
        bounds = _bounds(sizes)
        gathered = contribution
        if me == 0:
            gathered = contribution.new_empty(bounds[-1])
            gathered[: bounds[1]] = contribution
        pieces = self._pieces("gather_v", members, bounds, contribution, priority)
        self.run(pieces, gathered, members=members, tag=tag, priority=priority)
        return [gathered[start:stop] for start, stop in itertools.pairwise(bounds)] if me == 0 else []

    def _pieces(
        self,
        collective: Collective,
        members: Sequence[int],
        bounds: Sequence[int],
        like: torch.Tensor,
        priority: int,
    ) -> Pieces:
        return compile_contents(
            collective,
            "ring" if collective == "all_gather_v" else "star",
            num_members=len(members),
            position=members.index(self._links.rank),
            bounds=tuple(bounds),
            item_bytes=like.element_size(),
            piece_bytes=self._flow.piece_bytes(priority),
        )

    def broadcast_v(
        self,
        contribution: torch.Tensor,
        *,
        members: Sequence[int],
        tag: int,
        priority: int,
        identity: TransferId | None = None,
    ) -> list[torch.Tensor]:
        """Send the first member's contribution over a star; return it first in a list of otherwise empty tensors."""
        me = members.index(self._links.rank)
        size = torch.tensor([contribution.numel()])
        ones = self._pieces("broadcast", members, (0, 1), size, priority)
        self.run(ones, size, members=members, tag=tag, priority=priority, identity=identity)
        content = contribution if me == 0 else contribution.new_empty(int(size))
        pieces = self._pieces("broadcast", members, (0, len(content)), content, priority)
        self.run(pieces, content, members=members, tag=tag, priority=priority)
        return [content, *[contribution.new_empty(0)] * (len(members) - 1)]

    def _check(self, pieces: Pieces, members: Sequence[int], ours: TransferId, num_bytes: int) -> None:
        """Send a header to every member that gets pieces, and compare received headers with this transfer's own."""
        links, tag = self._links, _HEADER_TAG + ours.lane
        header = torch.tensor([*ours, num_bytes], dtype=torch.int64)
        sends = [(member, links.send(header, members[member], tag)) for member in pieces.destinations]
        theirs = torch.empty_like(header)
        for member in pieces.sources:
            finish(links.receive(theirs, members[member], tag), links, "from", members[member])
            if not torch.equal(theirs, header):
                *fields, their_bytes = theirs.tolist()
                raise OperationError(
                    f"{links.name(links.rank)} is in {ours}, {num_bytes} bytes, and {links.name(members[member])} in "
                    f"{TransferId(*fields)}, {their_bytes} bytes: a lane has one order on all ranks"
                )
        for member, work in sends:
            finish(work, links, "to", members[member])


class _Scratch:
    """Reusable memory for pieces that will be added, in blocks whose sizes are powers of two.

    A window limits bytes, so it may contain very many short pieces. Each of them takes little more memory than its
    length.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return a block of at least `num_bytes` bytes."""
        size = 1 << (num_bytes - 1).bit_length()
        free = self._free.setdefault(size, [])
        return free.pop() if free else torch.empty(size, dtype=torch.uint8)

    def give(self, taken: torch.Tensor) -> None:
        """Take back a block that is no longer used."""
        self._free[taken.numel()].append(taken)


class _Asked(NamedTuple):
    """A piece that was asked for. It arrives in `arriving`, a part of `scratch` if it is to be added."""

    work: Any
    scratch: torch.Tensor | None
    arriving: torch.Tensor


class _UnderWay:
    """One transfer under way, with the works that are not waited for yet."""

    def __init__(self, links: Links, flow: Flow, scratch: _Scratch, transfer: Coming) -> None:
        self._links = links
        self._flow = flow
        self._scratch = scratch
        self._pieces, self._buffer, self._members, self.tag, self._priority = transfer
        self._ahead = flow.ahead(self._priority, self._pieces.usual_length * self._buffer.element_size())
        self._next = 0
        self._asked: deque[_Asked] = deque()
        self._sent: deque[tuple[Any, Send]] = deque()

    @property
    def num_asked(self) -> int:
        """The number of pieces on their way."""
        return len(self._asked)

    def ask(self, num_others: int = 0) -> bool:
        """Request pieces up to the window's limit, less `num_others`. Return whether all pieces have been requested."""
        receives = self._pieces.receives
        if self._next == len(receives):
            return True
        # The window is computed each time, because the other transfers under way may have changed.
        window = self._flow.window(self._priority, self._pieces.breadth, self._ahead)
        while self._next < len(receives) and len(self._asked) < window - num_others:
            self._ask(receives[self._next])
            self._next += 1
        return self._next == len(receives)

    def carry_out(self, ask_ahead: Callable[[int], None] | None = None) -> None:
        """Receive all pieces in order, asking ahead by a window; send each piece as soon as it can go."""
        receives, sends = self._pieces.receives, self._pieces.sends
        for index in range(len(receives) + 1):
            is_asked = self.ask()
            # Asking comes first, because others may wait for it to begin.
            self._send(sends[index])
            if is_asked and ask_ahead is not None:
                ask_ahead(len(self._asked))
            if index < len(receives):
                self._take(receives[index], self._asked.popleft())
        while self._sent:
            work, send = self._sent.popleft()
            finish(work, self._links, "to", self._members[send.destination], send)

    def forget(self) -> None:
        """Drop the works that are left: an error's traceback keeps this object, and works keep connections open."""
        self._asked.clear()
        self._sent.clear()

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            destination = self._members[send.destination]
            try:
                work = self._links.send(self._buffer[send.start : send.stop], destination, self.tag)
            except RuntimeError as error:
                raise failure_of(error, self._links, "to", destination, send) from error
            self._sent.append((work, send))

    def _ask(self, receive: Receive) -> None:
        source, buffer = self._members[receive.source], self._buffer
        scratch = None
        if receive.adds:
            num_bytes = (receive.stop - receive.start) * buffer.element_size()
            scratch = self._scratch.take(num_bytes)
            arriving = scratch[:num_bytes].view(buffer.dtype)
        else:
            arriving = buffer[receive.start : receive.stop]
        try:
            work = self._links.receive(arriving, source, self.tag)
        except RuntimeError as error:
            raise failure_of(error, self._links, "from", source, receive) from error
        self._asked.append(_Asked(work, scratch, arriving))

    def _take(self, receive: Receive, asked: _Asked) -> None:
        finish(asked.work, self._links, "from", self._members[receive.source], receive)
        if asked.scratch is not None:
            self._buffer[receive.start : receive.stop].add_(asked.arriving)
            self._scratch.give(asked.scratch)


def finish(work: Any, links: Links, direction: str, peer: int, piece: Send | Receive | None = None) -> None:
    """Wait for a message, exactly once: gloo hangs on a second wait for the same message."""
    try:
        work.wait()
        links.heard_at = time.perf_counter()
    except RuntimeError as error:
        raise failure_of(error, links, direction, peer, piece) from error
    finally:
        # An error's traceback keeps this frame, and the frame would keep the work.
        del work


def failure_of(
    error: RuntimeError, links: Links, direction: str, peer: int, piece: Send | Receive | None
) -> OperationError:
    """Return the error of a message that failed: what it was, and the rank at its other end."""
    what = "a header" if piece is None else f"elements {piece.start} to {piece.stop}"
    return OperationError(f"{what} {direction} {links.name(peer)}: {said(error)}")


def _bounds(sizes: torch.Tensor) -> list[int]:
    """Return where contributions of these sizes begin and end, one after another."""
    return [0, *itertools.accumulate(sizes.tolist())]
