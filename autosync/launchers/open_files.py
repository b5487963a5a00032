"""The limit of files that a process may have open: launches on many nodes need more than the usual 1024."""

from __future__ import annotations

import errno
import resource

_OF_OTHERS = 512
"""Files that this process has open for other purposes, at most."""
_OF_A_NODE = 8
_OF_A_RANK = 4


def allow_open_files(*, num_nodes: int, num_ranks: int) -> None:
    """Raise this process's own limit, if it is too low for a launch, as far as the system allows."""
    needed = _OF_OTHERS + _OF_A_NODE * num_nodes + _OF_A_RANK * num_ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_files_cause(error: OSError) -> str:
    """Return what an error has to do with the limit, as the end of a message; empty if it has nothing to do with it."""
    if error.errno != errno.EMFILE:
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f" (this process may have {soft} open; raise the limit of {hard} that `ulimit -Hn` shows)"
