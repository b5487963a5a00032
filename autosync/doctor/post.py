"""How the evidence of a rank comes to the doctor: in lines of the rank's output, which every launcher carries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

STEPS_VARIABLE = "AUTOSYNC_DOCTOR_STEPS"
BUDGET_VARIABLE = "AUTOSYNC_DOCTOR_SECONDS"
TASK_VARIABLE = "AUTOSYNC_DOCTOR_TASK"
MODEL_VARIABLE = "AUTOSYNC_DOCTOR_MODEL"

_CHARACTERS = 30_000
_LINE = re.compile(r"autosync-evidence (\d+) (\d+)/(\d+) (.*)$")


def in_lines(rank: int, document: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the lines that carry a document. The script's own output may have no line end before them."""
    text = json.dumps(document, separators=(",", ":"))
    pieces = [text[first : first + _CHARACTERS] for first in range(0, len(text), _CHARACTERS)]
    for number, piece in enumerate(pieces, start=1):
        yield f"\nautosync-evidence {rank} {number}/{len(pieces)} {piece}\n".encode()


class Mailbox:
    """Collects the documents of ranks from lines of their output."""

    def __init__(self) -> None:
        self._pieces: dict[int, dict[int, str]] = {}
        self._wanted: dict[int, int] = {}

    def take(self, line: str) -> bool:
        """Take a line of output; return whether it carries evidence."""
        match = _LINE.search(line)
        if match is None:
            return False
        rank, number, total = int(match[1]), int(match[2]), int(match[3])
        self._pieces.setdefault(rank, {})[number] = match[4]
        self._wanted[rank] = total
        return True

    def documents(self) -> dict[int, Any]:
        """Return the complete documents by rank; raise ValueError for one that is no JSON."""
        return {
            rank: json.loads("".join(pieces[number] for number in sorted(pieces)))
            for rank, pieces in self._pieces.items()
            if len(pieces) == self._wanted[rank]
        }
