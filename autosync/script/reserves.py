"""The batches that DataLoaders of a script have ready: what their workers have read ahead.

A loader is the same for all strategies of a script. While a slow strategy trains, the workers fill the reserve, and a
fast one that comes next takes batches out of it faster than they are made. In a training of its own it would soon wait
for them. So each step tells which part of its batches the reserve has lost, and how much is left of it.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Reserve:
    """What a loader had ready when a step began, and how many batches the step has taken."""

    num_ready: int
    num_taken: int = 0


class Reserves:
    """Follows the reserves of all loaders that a script reads, from step to step."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Reserve] = weakref.WeakKeyDictionary()

    @property
    def num_ahead(self) -> int:
        """The batches that a loader reads ahead, of the one that reads furthest; 0 if none has workers."""
        return max(map(num_ahead, self._known), default=0)

    def step_begins(self) -> None:
        """A step begins, perhaps some time after the last one, in which workers went on."""
        for batches, reserve in self._known.items():
            reserve.num_ready, reserve.num_taken = num_ready(batches), 0

    def batch_is_taken(self, batches: Any) -> None:
        """The step has taken a batch from an iterator of a loader. The first batch shows what is ready behind it."""
        # An iterator of another library may not be hashable, and the script's training must go on.
        with contextlib.suppress(TypeError):
            reserve = self._known.get(batches)
            if reserve is None:
                self._known[batches] = _Reserve(num_ready(batches))
            else:
                reserve.num_taken += 1

    def lost_share(self) -> float:
        """Return which part of the batches since the step began the reserve has lost, of the loader that lost most.

        It is negative if the reserve has grown.
        """
        lost = [(reserve.num_ready - num_ready(one)) / reserve.num_taken for one, reserve in self._read()]
        return max(lost, default=0.0)

    def num_left(self) -> int:
        """Return how many batches are ready, of the loader with fewest from which the step has taken any."""
        return min((num_ready(one) for one, _ in self._read()), default=0)

    def _read(self) -> list[tuple[Any, _Reserve]]:
        return [(batches, reserve) for batches, reserve in self._known.items() if reserve.num_taken]


def num_ahead(batches: Any) -> int:
    """Return how many batches the workers of an iterator of a DataLoader read ahead; 0 if it has none."""
    return int(getattr(batches, "_num_workers", 0) or 0) * int(getattr(batches, "_prefetch_factor", 0) or 0)


def num_ready(batches: Any) -> int:
    """Return how many batches an iterator of a DataLoader has ready; 0 if it has no workers, or does not tell.

    Workers put batches into one queue. With pinned memory, a thread moves them to another one. Batches that come before
    their turn are kept beside.
    """
    # Without pinned memory, both names are of one queue.
    queues = {id(one): one for name in ("_worker_result_queue", "_data_queue") if (one := getattr(batches, name, None))}
    kept = sum(len(about) == 2 for about in getattr(batches, "_task_info", {}).values())
    try:
        return kept + sum(int(queue.qsize()) for queue in queues.values())
    except NotImplementedError:
        # Queues between processes have no size on macOS.
        return 0
