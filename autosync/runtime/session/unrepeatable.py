"""Work of a step that cannot be done twice: if it is cut short, nothing may go on from there."""

from __future__ import annotations

from autosync.errors import OperationError


class Unrepeatable:
    """Remembers that such work was begun and has not come to its end.

    An interrupt may come at any point. So the reason to refuse is noted before the work begins, and removed when the
    work has ended.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def begin(self, reason: str) -> None:
        """Note that work begins. Until its `end`, `refuse` raises an error with this reason."""
        self._reason = reason

    def end(self) -> None:
        """Note that the work has ended as it should."""
        self._reason = None

    def refuse(self) -> None:
        """Refuse to go on if work was begun and has not ended."""
        if self._reason is not None:
            raise OperationError(self._reason)
