"""A trial that failed, and whom that is put down to: the strategy, or the machines that were to run it.

A strategy is never charged with what it had no part in: a disk that is full, ranks that cannot be started, a node that
is gone. Of a rank that is lost, or that does not answer at all, no one can say: it may have been killed for want of
memory, which is the strategy's, or by another user of the machine. So that is put down to the machines once, and a
strategy that is tried again and fails so again has done it.
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
# torch and gloo say it in words.
_SAID = re.compile(
    r"Address already in use|No space left on device|No route to host|Network is (unreachable|down)|"
    r"Stale file handle|Input/output error"
)
_SAID_OF_CONNECTIONS = re.compile(r"Connection (closed|reset) by peer|Connection refused|Broken pipe")


class TrialFailed(OperationError):  # noqa: N818 - it is a trial's outcome, by the name that records have for it
    """A trial has no measurement: the kind of failure and what happened, as the record will have it."""

    def __init__(self, kind: FailureKind, message: str, *, blame: Blame | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.blame: Blame = blame or ("machines" if kind in INFRASTRUCTURE_KINDS else "strategy")

    def is_excused(self, *, is_repeated: bool) -> bool:
        """Whether the strategy has no part in it; `is_repeated` says that it was excused for something like it."""
        return self.blame == "machines" or (self.blame == "either" and not is_repeated)

    def as_record(self, *, is_repeated: bool) -> Failure:
        """As the record has it."""
        excused = self.is_excused(is_repeated=is_repeated) and self.kind not in INFRASTRUCTURE_KINDS
        return Failure(kind="infrastructure" if excused else self.kind, message=self.message)


def blame_of(error: BaseException) -> Blame:
    """Whom an error on a rank is put down to."""
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
