"""Resources that several launches share (an allocation, a placement group, pods), kept while any launch needs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None:
        """Give the resource back."""


T = TypeVar("T", bound=_Closable)


@dataclass(slots=True)
class _Share(Generic[T]):
    thing: T
    num_holders: int = 0


class SharedResources(Generic[T]):
    """Resources by key: each is made for its first user and closed after its last user."""

    def __init__(self) -> None:
        self._shares: dict[Hashable, _Share[T]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def held(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """Hold the resource of a key during the block; make it if it does not exist."""
        with self._lock:
            share = self._shares.get(key)
            if share is None:
                share = self._shares[key] = _Share(make())
            share.num_holders += 1
        try:
            yield share.thing
        finally:
            with self._lock:
                share.num_holders -= 1
                if not share.num_holders:
                    del self._shares[key]
                    share.thing.close()

    def get(self, key: Hashable) -> T | None:
        """Return the resource of a key, or None if it is not in use."""
        share = self._shares.get(key)
        return None if share is None else share.thing
