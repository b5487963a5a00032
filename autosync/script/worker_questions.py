"""Counts how often a script's code asks in which worker it runs (`torch.utils.data.get_worker_info`).

The count is kept in the process in which the question is asked. Scripts hold the function under names of their own, so
no name is replaced, but the function's code. Questions of torch itself do not count: its collate function asks in order
to use shared memory.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data._utils import worker as torch_worker

_NAME = "_autosync_questions"


class WorkerQuestions:
    """The number of questions so far in this process."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Count a question, which the caller of this function's caller asks."""
        if not sys._getframe(2).f_globals.get("__name__", "").startswith("torch."):  # noqa: SLF001 - documented
            self.count += 1


def worker_questions() -> WorkerQuestions:
    """Return the count of this process, which begins with the first call of this function."""
    held = vars(torch_worker)
    if _NAME not in held:
        held[_NAME] = WorkerQuestions()
        torch_worker.get_worker_info.__code__ = _noting.__code__
    found: WorkerQuestions = held[_NAME]
    return found


def _noting() -> Any:
    """The code of `get_worker_info` from then on. Its names are those of torch's module."""
    _autosync_questions.note()  # type: ignore[name-defined]  # noqa: F821
    return _worker_info  # type: ignore[name-defined]  # noqa: F821
