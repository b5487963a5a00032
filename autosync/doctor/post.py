"""Carries the evidence of a rank to the doctor in lines of the rank's output, which every launcher forwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autosync import jsonio
from autosync.errors import OperationError

STEPS_VARIABLE = "AUTOSYNC_DOCTOR_STEPS"
BUDGET_VARIABLE = "AUTOSYNC_DOCTOR_SECONDS"
TASK_VARIABLE = "AUTOSYNC_DOCTOR_TASK"
MODEL_VARIABLE = "AUTOSYNC_DOCTOR_MODEL"

_CHARACTERS = 30_000
_MOST_PIECES = 2_000
_MOST_VALUES = 5_000_000
_LINE = re.compile(r"autosync-evidence (\d{1,6}) (\d{1,6})/(\d{1,6}) (.*)$", re.ASCII)


def in_lines(rank: int, document: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the lines that carry a document. They begin with a line end, which the script's output may lack."""
    text = json.dumps(document, separators=(",", ":"))
    pieces = [text[first : first + _CHARACTERS] for first in range(0, len(text), _CHARACTERS)]
    for number, piece in enumerate(pieces, start=1):
        yield f"\nautosync-evidence {rank} {number}/{len(pieces)} {piece}\n".encode()


class Mailbox:
    """Collects the documents of ranks from lines of their output.

    A script may print such lines too, so a line that no rank of the run can have sent is ignored.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._pieces: dict[int, dict[int, str]] = {}
        self._wanted: dict[int, int] = {}

    def take(self, line: str) -> bool:
        """Take a line of output; return whether it carries evidence of a rank."""
        match = _LINE.search(line)
        if match is None or len(match[4]) > _CHARACTERS:
            return False
        rank, number, total = int(match[1]), int(match[2]), int(match[3])
        if rank >= self._num_ranks or not 1 <= number <= total <= _MOST_PIECES:
            return False
        self._pieces.setdefault(rank, {})[number] = match[4]
        self._wanted[rank] = total
        return True

    def documents(self) -> dict[int, Any]:
        """Return the complete documents by rank. Raise OperationError if one of them is not JSON."""
        return {
            rank: _parsed(rank, "".join(pieces[number] for number in sorted(pieces)))
            for rank, pieces in self._pieces.items()
            if len(pieces) == self._wanted[rank]
        }


def _parsed(rank: int, text: str) -> Any:
    try:
        return jsonio.parse(text, most=_MOST_VALUES)
    except ValueError as error:
        raise OperationError(f"the evidence of rank {rank} cannot be read: {error}") from error
