"""Limits how many pieces the transfers on a rank may have asked for, so that urgent ones find room.

gloo sends a message only when its receiver has asked for it. So the number of pieces that a receiver asks for ahead,
its window, limits what a transfer has under way here; a smaller one makes room for a more urgent transfer.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import insort
from collections.abc import Iterator

from autosync.right_of_way import RankMarks
from autosync.runtime.wire.transfer_pieces import PIECE_BYTES, SHORT_PIECE_BYTES

# Limits on the pieces requested beyond one for each source. The first two are limits on their bytes, if something more
# urgent may come and if not. Then come their least number, and the number added while something less urgent runs too.
AHEAD_BYTES, FREE_AHEAD_BYTES = 2**18, 2**21
LEAST_AHEAD, NUM_FAVOURED = 3, 2


class Flow:
    """The transfers under way on a rank, and how far each may ask ahead. All lanes share it.

    `most_urgent` is the lowest priority number of the plan. No window is ever 0, because pausing a transfer for a more
    urgent one could deadlock: the urgent one may wait for a third rank, which may wait for the paused one.

    With `marks`, reads of the input pipeline see that transfers are under way, and may count as more urgent than all.
    """

    def __init__(self, most_urgent: int = 0, *, marks: RankMarks | None = None) -> None:
        self._most_urgent = most_urgent
        self._lock = threading.Lock()
        self._priorities: list[int] = []
        self._marks = marks

    @contextlib.contextmanager
    def active(self, priority: int) -> Iterator[None]:
        """While the context lasts, count a transfer of this priority (0: the most urgent) as under way."""
        with self._lock:
            insort(self._priorities, priority)
            self._mark()
        try:
            yield
        finally:
            with self._lock:
                self._priorities.remove(priority)
                self._mark()

    def _mark(self) -> None:
        if self._marks is not None:
            self._marks.messages_travel = bool(self._priorities)

    def piece_bytes(self, priority: int) -> int:
        """Return the greatest length of a transfer's pieces: a short one if something more urgent may come."""
        return SHORT_PIECE_BYTES if priority > self._most_urgent else PIECE_BYTES

    def ahead(self, priority: int, usual_bytes: float) -> int:
        """Return how many pieces of `usual_bytes` a transfer may request, beyond one for each source.

        On idle machines, two pieces keep a link busy: one arrives while the other is added and sent on. More pieces
        compensate for late threads, and for late requests, which wait behind this rank's own data on the connection.
        Over trees with unequal shares, requests would be too late if all pieces counted as much as the longest.
        """
        num_bytes = AHEAD_BYTES if priority > self._most_urgent else FREE_AHEAD_BYTES
        return max(LEAST_AHEAD, int(num_bytes / max(1.0, usual_bytes)))

    def window(self, priority: int, breadth: int, ahead: int) -> int:
        """Return how many pieces a transfer may have requested, if it receives from `breadth` members at a time.

        Each source of a round gets one, because one of them may have a slower link than this rank. While something more
        urgent is under way, they get no more.
        """
        # The list contains the asking transfer, so it is never empty, and a look at its ends needs no lock.
        priorities = self._priorities
        if priorities[0] < priority or (self._marks is not None and self._marks.messages_give_way):
            # With only one piece in all, all sources but one would wait with idle links.
            return max(1, breadth)
        return breadth + ahead + (NUM_FAVOURED if priorities[-1] > priority else 0)
