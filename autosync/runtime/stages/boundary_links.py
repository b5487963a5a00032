"""The sends and receives of one rank's passes: receives are posted ahead, and sends are not waited for.

gloo sends a message only after its receiver has asked for it. So a step begins with requests for the first messages
that this rank's passes need, and each message that has come makes room for the request of one more.

Memory that is being sent must stay as it is. gloo does not say when a send is over, but the plan does: when a message
of another rank arrives, that rank has made all passes before the one that sent it, and so has received what they
needed. Only then does this rank wait for its sends to that rank, which are over; it waits for the last ones at the end
of the step, or without a flush at the end of the next one. So no wait for a send can be part of a deadlock.

Without a flush, some of these messages are needed by late passes, which come in later steps. They are asked for at the
end of this step, before its sends are waited for: a script may do anything between two steps. Where passes are more
than a step late, the same message is asked for several times before the first one comes. They come in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from autosync.plan.rank_passes import RankPass, passes_of
from autosync.plan.types import Local, Plan, StagePass, Transfer
from autosync.runtime.wire.exchange import failure_of, finish
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import Send

AHEAD_BYTES = 2**26
LEAST_AHEAD = 4
"""A rank asks for this many messages ahead, and for more up to `AHEAD_BYTES`."""


class _Message(NamedTuple):
    """A send of the plan: its position, the pass that sends it and the pass that needs it, and the other rank.

    `is_late`: the pass that needs it is late.
    """

    operation: int
    sent_by: int
    needed_by: int
    other: int
    num_bytes: int
    is_late: bool


def _whole(message: _Message) -> Send:
    """Return a message as one piece, for errors."""
    return Send(message.other, 0, message.num_bytes)


class BoundaryLinks:
    """The messages between stages, as one rank sends and receives them."""

    def __init__(self, plan: Plan, links: Links) -> None:
        self._links = links
        order = _Order(plan)
        sent, coming = _messages(plan, links.rank, order)
        self._sends = {one.sent_by: one for one in sent}
        self._receives = [one for one in coming if one.num_bytes]
        self._needs = {one.needed_by: one for one in self._receives}
        # By the message that arrives, the sends that are over then.
        self._over = {
            one.operation: [other.operation for other in sent if other.other == one.other and order.is_over(other, one)]
            for one in self._receives
        }
        self._asked: dict[int, deque[tuple[Any, torch.Tensor]]] = {}
        self._waiting: deque[_Message] = deque()
        # The sends of this step, and of the one before it.
        self._sent: dict[int, tuple[Any, torch.Tensor, int]] = {}
        self._sent_before: dict[int, tuple[Any, torch.Tensor, int]] = {}
        self._num_asked_bytes = 0

    def begin(self) -> None:
        """Begin a step: ask for the first messages. Those of late passes were asked for before."""
        self._waiting = deque(one for one in self._receives if not one.is_late)
        self._ask()

    def ask_for_late(self) -> None:
        """Ask for the messages of this step's batch that late passes of later steps need."""
        for one in self._receives:
            if one.is_late:
                self._ask_for(one)

    def _ask(self) -> None:
        while self._waiting:
            one = self._waiting[0]
            is_room = self._num_asked_bytes + one.num_bytes <= AHEAD_BYTES
            if len(self._asked) >= LEAST_AHEAD and not is_room:
                return
            self._ask_for(self._waiting.popleft())

    def _ask_for(self, one: _Message) -> None:
        buffer = torch.empty(one.num_bytes, dtype=torch.uint8)
        try:
            work = self._links.receive(buffer, one.other, one.operation)
        except RuntimeError as error:
            raise failure_of(error, self._links, "from", one.other, _whole(one)) from error
        self._asked.setdefault(one.operation, deque()).append((work, buffer))
        self._num_asked_bytes += one.num_bytes

    def arrive(self, one: RankPass) -> torch.Tensor | None:
        """Wait for the message that a pass needs, and return it; None if it needs none."""
        message = self._needs.get(one.operation)
        if message is None:
            return None
        while message.operation not in self._asked:
            # There was no room to ask for it ahead. Waiting messages come in the order in which passes need them.
            self._ask_for(self._waiting.popleft())
        asked = self._asked[message.operation]
        work, buffer = asked.popleft()
        if not asked:
            del self._asked[message.operation]
        finish(work, self._links, "from", message.other, _whole(message))
        self._num_asked_bytes -= message.num_bytes
        self._ask()
        for operation in self._over[message.operation]:
            self._finish(operation)
        return buffer

    def sends(self, one: RankPass) -> bool:
        """Whether what a pass makes goes to another rank."""
        return one.operation in self._sends

    def send(self, one: RankPass, buffer: torch.Tensor) -> None:
        """Send what a pass has made."""
        message = self._sends[one.operation]
        if message.num_bytes:
            try:
                work = self._links.send(buffer, message.other, message.operation)
            except RuntimeError as error:
                raise failure_of(error, self._links, "to", message.other, _whole(message)) from error
            self._sent[message.operation] = work, buffer, message.other

    def end(self) -> None:
        """End a step: wait for the sends that are left."""
        self.end_before()
        self.end_before()

    def end_before(self) -> None:
        """End a step without a flush: wait for the sends that the step before it has left."""
        for sent in self._sent_before.values():
            self._wait(*sent)
        self._sent_before, self._sent = self._sent, {}

    def _finish(self, operation: int) -> None:
        found = self._sent.pop(operation, None)
        if found is not None:
            self._wait(*found)

    def _wait(self, work: Any, buffer: torch.Tensor, other: int) -> None:
        finish(work, self._links, "to", other, Send(other, 0, len(buffer)))

    def forget(self) -> None:
        """Drop what is on its way, because it will not be used."""
        self._asked.clear()
        self._sent.clear()
        self._sent_before.clear()


class _Order:
    """The order in which each rank makes its passes, and which of them are late."""

    def __init__(self, plan: Plan) -> None:
        of_ranks = [passes_of(plan, rank) for rank in range(plan.num_workers)]
        self.places = {one.operation: place for passes in of_ranks for place, one in enumerate(passes)}
        self.late = {one.operation for passes in of_ranks for one in passes if one.late}

    def is_over(self, sent: _Message, arrived: _Message) -> bool:
        """Whether a send to a rank is over when a message of this rank has arrived, in the same step."""
        passes = {sent.sent_by, sent.needed_by, arrived.sent_by, arrived.needed_by}
        return self.late.isdisjoint(passes) and self.places[sent.needed_by] < self.places[arrived.sent_by]


def _messages(plan: Plan, rank: int, order: _Order) -> tuple[list[_Message], list[_Message]]:
    """Return the sends of a rank in their order, and its receives in the order in which passes need them."""
    needed_by: dict[int, int] = {}
    for index, one in enumerate(plan.operations):
        if isinstance(one, Local) and isinstance(one.settings, StagePass):
            needed_by.update((edge.target, index) for edge in one.after if _is_send(plan, edge.target))
    sent: list[_Message] = []
    coming: list[_Message] = []
    for index, one in enumerate(plan.operations):
        if isinstance(one, Transfer) and one.collective == "send":
            source, destination = one.groups[0]
            sender, needed = _only([edge.target for edge in one.after]), needed_by[index]
            facts = (one.num_bytes, needed in order.late)
            if source == rank:
                sent.append(_Message(index, sender, needed, destination, *facts))
            if destination == rank:
                coming.append(_Message(index, sender, needed, source, *facts))
    return sent, sorted(coming, key=lambda one: order.places[one.needed_by])


def _is_send(plan: Plan, index: int) -> bool:
    one = plan.operations[index]
    return isinstance(one, Transfer) and one.collective == "send"


def _only(targets: Sequence[int]) -> int:
    (target,) = targets
    return target
