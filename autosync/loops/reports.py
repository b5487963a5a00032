"""The reports of rank 0 on its output, as lines of JSON that begin with a mark, among the lines of the user's code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

_MARK = "autosync-loop: "
_PART_MARK = "autosync-loop-part: "
_PART_CHARACTERS = 1 << 14


def report_lines(report: dict[str, Any]) -> list[str]:
    """Return the lines of a report. A long one has several, because the launching side cuts long lines."""
    text = json.dumps(report)
    *parts, last = [text[begin : begin + _PART_CHARACTERS] for begin in range(0, len(text), _PART_CHARACTERS)]
    return [*(f"{_PART_MARK}{part}" for part in parts), f"{_MARK}{last}"]


def finite(number: float) -> float | None:
    """Return a number as a program's JSON has it: null stands for one that is not finite."""
    return number if math.isfinite(number) else None


class ReportReader:
    """Hands each report to `told`, and each line of the user's code to `show`.

    The last report makes `told` return True; then `is_done` is True.
    """

    def __init__(self, *, told: Callable[[dict[str, Any]], bool], show: Callable[[str], None]) -> None:
        self._told = told
        self._show = show
        self._begun = ""
        self.is_done = False

    def take(self, line: str) -> None:
        """Take a line of the output, which begins with the name of its rank."""
        _, is_part, part = line.partition(_PART_MARK)
        _, is_last, last = line.partition(_MARK)
        if is_part:
            self._begun += part
        elif is_last:
            report, self._begun = json.loads(self._begun + last), ""
            self.is_done = self._told(report) or self.is_done
        elif not line.partition(" | ")[2].startswith("error: "):
            # Errors are reported at the end, with the rank.
            self._show(line)
