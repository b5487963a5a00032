"""The failure of a trial, and which side caused it: the strategy, or the machines that ran it.

A strategy is never blamed for failures that it did not cause: a full disk, ranks that cannot be started, a node that is
gone. If a rank is lost or does not answer, the cause is unknown: it may have been killed because the strategy needs too
much memory, or by another user of the machine. So the machines are blamed the first time; if the strategy is tried
again and fails in the same way, the strategy is blamed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Literal

from autosync.datasets.schema import INFRASTRUCTURE_KINDS, Failure, FailureKind
from autosync.errors import OperationError

Blame = Literal["strategy", "machines", "either"]

_MACHINES = frozenset(
    {
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EDQUOT,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)
# Errors of torch and gloo have only words.
_SAID = re.compile(
    r"Address already in use|No space left on device|No route to host|Network is (unreachable|down)|"
    r"Stale file handle|Input/output error"
)
_SAID_OF_CONNECTIONS = re.compile(r"Connection (closed|reset) by peer|Connection refused|Broken pipe")


class TrialFailed(OperationError):  # noqa: N818 - it is a trial's outcome, by the name that records have for it
    """A trial failed and has no measurement: the kind of failure and the message, as its record will have them."""

    def __init__(self, kind: FailureKind, message: str, *, blame: Blame | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.blame: Blame = blame or ("machines" if kind in INFRASTRUCTURE_KINDS else "strategy")

    def is_excused(self, *, is_repeated: bool) -> bool:
        """Whether the strategy is not blamed. `is_repeated`: it was excused for such a failure before."""
        return self.blame == "machines" or (self.blame == "either" and not is_repeated)

    def as_record(self, *, is_repeated: bool) -> Failure:
        """Return the failure as it is written to a record."""
        excused = self.is_excused(is_repeated=is_repeated) and self.kind not in INFRASTRUCTURE_KINDS
        return Failure(kind="infrastructure" if excused else self.kind, message=self.message)


def blame_of(error: BaseException) -> Blame:
    """Return which side is blamed for an error on a rank."""
    chain = list(_chain(error))
    if any(isinstance(one, OSError) and one.errno in _MACHINES for one in chain):
        return "machines"
    if any(_SAID.search(str(one)) for one in chain):
        return "machines"
    if any(isinstance(one, ConnectionError) or _SAID_OF_CONNECTIONS.search(str(one)) for one in chain):
        return "either"
    return "strategy"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
