"""The commands that a page of the documentation shows, with the output that it shows for them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"```(?:console|text)\n(.*?)```", re.DOTALL)
_LIMIT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command line, and the output below it or in the block that follows; "" if the page shows none."""

    words: tuple[str, ...]
    output: str = ""

    def with_options(self, *options: str) -> tuple[str, ...]:
        """Return the words with further options before a script's own."""
        end = self.words.index("--") if "--" in self.words else len(self.words)
        return (*self.words[:end], *options, *self.words[end:])


def shown_commands(page: str) -> list[Shown]:
    """Return the commands of a page that begin with `$ autosync`, in their order."""
    return commands_in((ROOT / page).read_text(encoding="utf-8"))


def commands_in(text: str) -> list[Shown]:
    """Return the commands in a part of a page."""
    found: list[Shown] = []
    has_output = True
    for block in _BLOCK.findall(text):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        if not block.startswith("$ ") and not has_output and found:
            found[-1] = Shown(words=found[-1].words, output=block)
            has_output = True
        for part in parts[1:]:
            command, _, output = part.partition("\n")
            words = tuple(shlex.split(command, comments=True))
            if words[0] == "autosync":
                found.append(Shown(words=words, output=output))
                has_output = bool(output.strip())
    return found


def run_autosync(words: Sequence[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that begins with `autosync`; its errors are in the output of `stderr`."""
    return subprocess.run(
        (sys.executable, "-P", "-m", "autosync.cli", *words[1:]),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )


def shapes(output: str) -> set[str]:
    """Return the lines of an output without their figures, ids and spaces."""
    return set(_shapes(output))


def _shapes(output: str) -> Iterator[str]:
    for line in output.splitlines():
        words = re.sub(r"\b[0-9a-f]{8}\b", "#", line)
        words = re.sub(r"\d[\d.,:]*", "#", words)
        words = re.sub(r"# (?:[kMG]?B|µs|ms|s|min|h)\b", "#", words)
        if words.strip():
            yield " ".join(words.split())
