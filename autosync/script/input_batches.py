"""Watches the batches of a script's loader, whose sampler is asked earlier or later than with the script's settings."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from torch.utils.data import BatchSampler, RandomSampler

from autosync.script.input_guard import REMEDY, InputChangesError
from autosync.script.own_state import attributes
from autosync.script.random_states import RandomStates

_NOTHING = object()


class HeldEnd:
    """A sampler whose end waits for `finish`: what it does after its last item, such as a draw of random numbers.

    With no `length`, nothing waits.
    """

    def __init__(self, own: Iterable[Any], length: int | None) -> None:
        self._length = length
        self._asked = iter(own)
        self._ahead: deque[Any] = deque()
        self._num_asked = 0
        self.is_finished = length is None

    def __iter__(self) -> Iterator[Any]:
        while True:
            if not self._ahead:
                self._ask(1)
            if not self._ahead:
                return
            yield self._ahead.popleft()

    def ask_for_all(self) -> None:
        """Ask for all items that are left."""
        if self._length is not None:
            self._ask(self._length - self._num_asked)

    def finish(self) -> bool:
        """Let the sampler end; return whether it does."""
        if self.is_finished:
            return True
        self.ask_for_all()
        self.is_finished = True
        return next(self._asked, _NOTHING) is _NOTHING

    def _ask(self, count: int) -> None:
        left = count if self._length is None else min(count, self._length - self._num_asked)
        found = list(islice(self._asked, left))
        self._num_asked += len(found)
        self._ahead.extend(found)


class _Pass(NamedTuple):
    """A pass of a sampler: its batches, what of it waits, and by which batch it is asked for its end."""

    batches: Iterator[Any]
    held: HeldEnd
    end: int


def _pass_of(own: Any) -> _Pass:
    """Begin a pass of a sampler.

    torch's RandomSampler draws once more after its last number, and a batch that is not full asks it for more numbers.
    """
    if type(own) is BatchSampler and isinstance(own.sampler, RandomSampler):
        held = HeldEnd(own.sampler, len(own.sampler))
        batches = BatchSampler(held, own.batch_size, own.drop_last)
        return _Pass(iter(batches), held, len(own.sampler) // own.batch_size)
    length = _length(own)
    held = HeldEnd(own, length)
    return _Pass(iter(held), held, length or 0)


def _length(own: Any) -> int | None:
    try:
        return len(own)
    except (TypeError, NotImplementedError):
        return None


class WatchedBatches:
    """The script's sampler. It is asked for batches earlier or later than without the bundle's settings.

    So it must not draw random numbers once the first batch is known. What it does at its end waits until it would be
    asked for it with the script's settings, which make `num_ahead` batches ahead. If the script has no workers, it must
    not change its dataset while workers with copies of it make batches.
    """

    def __init__(
        self, own: Any, dataset: object, generator: object, *, change: str, num_ahead: int, begins: Callable[[], None]
    ) -> None:
        self._own = own
        self._dataset = dataset
        self._states = RandomStates(own, generator)
        self._change = change
        self._num_ahead = num_ahead
        self._begins = begins
        # The places of the generators that the first batch is drawn from.
        self._first_drawn: set[int] = set()
        self._copied: dict[str, Any] = {}
        self._pass: _Pass | None = None
        self._num_delivered = 0

    def watch(self, batches: Any, *, is_start_watched: bool) -> None:
        """Watch when torch's iterator is asked for batches.

        Workers get their first batches when the iterator is made, and without workers the sampler draws at the first
        batch. So the order of draws differs if the script draws in between from the sampler's generator, as with two
        shuffled loaders that are read side by side. With `is_start_watched`, this is refused.
        """
        made = self._states.now() if is_start_watched else None
        stock, iterator = type(batches)._next_data, weakref.ref(batches)  # noqa: SLF001 - torch has no other way

        def next_data() -> Any:
            nonlocal made
            drawn = set() if made is None else _changed(made, self._states.now())
            made = None
            if self._num_ahead == 0:
                self._end_if_due()
            data = stock(iterator())
            if drawn & self._first_drawn:
                self._refuse(
                    "random numbers are drawn between the start of a loop and its first batch, and the sampler draws "
                    "from the same generator, earlier or later than with the script's settings"
                )
            if self._num_ahead == 0:
                self._compare_dataset()
            else:
                self._end_if_due()
            self._num_delivered += 1
            return data

        batches._next_data = next_data  # noqa: SLF001 - torch has no other way

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        self._pass = _pass_of(self._own)
        self._copied = attributes(self._dataset)
        self._num_delivered = 0
        is_first = True
        while True:
            before = self._states.now()
            batch = next(self._pass.batches, _NOTHING)
            if is_first and self._pass.end < self._num_ahead:
                # With the script's settings, all is asked for at once.
                self._end()
            drawn = _changed(before, self._states.now())
            if is_first:
                self._first_drawn = drawn
            elif drawn:
                self._refuse_draws()
            if batch is _NOTHING:
                return
            is_first = False
            self._begins()
            yield batch

    def _end_if_due(self) -> None:
        """Let the sampler end if it would now be asked for that with the script's settings."""
        one = self._pass
        if one is not None and not one.held.is_finished and self._num_delivered >= one.end - self._num_ahead:
            before = self._states.now()
            one.held.ask_for_all()
            if _changed(before, self._states.now()):
                self._refuse_draws()
            self._end()

    def _end(self) -> None:
        assert self._pass is not None, "it has begun"
        if not self._pass.held.finish():
            self._refuse("the sampler has more batches than its length says, and what it draws at its end comes early")

    def _compare_dataset(self) -> None:
        now = attributes(self._dataset)
        names = {**self._copied, **now}
        changed = next((name for name in names if self._copied.get(name, _NOTHING) is not now.get(name, _NOTHING)), "")
        if changed:
            what = f"the script changes its dataset ({changed}) while it reads it"
            self._refuse(f"{what}, and workers would not see that")

    def _refuse_draws(self) -> NoReturn:
        self._refuse(
            "the sampler draws random numbers between batches, earlier or later than with the script's settings"
        )

    def _refuse(self, reason: str) -> NoReturn:
        raise InputChangesError(f"{reason}: {self._change} ({REMEDY})")


def _changed(before: list[Any], now: list[Any]) -> set[int]:
    """Return the places of the generators that were drawn from."""
    return {place for place, (old, new) in enumerate(zip(before, now, strict=True)) if old != new}
