"""Tells all ranks of a session which failure was the first.

When a rank dies, only ranks that exchange messages with it see that. They end their connections, and the others see no
more than that. So the rank that fails first leaves its reason in the session's store before it ends its connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from autosync.errors import OperationError
from autosync.runtime.wire.links import Links

_KEY = "failure"


class FailureTold:
    """On an error, ends the session's waits by `end`, and raises the reason of the rank that failed first."""

    def __init__(self, store: Any, links: Links) -> None:
        self._store = store
        self._links = links
        self.end: Callable[[BaseException], None] = lambda _: links.abort()

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """On an error, tell the other ranks, and end their waits."""
        try:
            yield
        except BaseException as error:
            reason = self._told(f"{self._links.name(self._links.rank)}: {type(error).__name__}: {error}", error)
            self.end(error)
            if reason is not None and isinstance(error, OperationError):
                raise OperationError(reason) from error
            raise

    def _told(self, ours: str, error: BaseException) -> str | None:
        """Leave our reason, unless another rank has left one; return what was there, None if nothing was."""
        try:
            if self._store.check([_KEY]):
                return f"{error}; the first failure: {self._store.get(_KEY).decode()}"
            self._store.set(_KEY, ours)
        except RuntimeError:
            return f"{error}; the store of the process group has ended too, and mostly rank 0 or its launcher keeps it"
        return None
