"""Gives hostile files and messages of every kind to the code that reads them.

    python benchmarks/fuzz/fuzz_files.py --inputs 20000 --log fuzz.jsonl > fuzz.json
    python benchmarks/fuzz/fuzz_files.py --kind study --only 17 --keep FOLDER

For every input, the reader must return a value or raise an error of autosync: within 5 s of processor time and 300 MB
of memory, without a traceback, and without running anything in the input. Prints one JSON document: for each kind (see
the table in `kinds.py`) the number of inputs and their outcomes, and each failure with its kind, seed and number. The
same seed and number give the same input. Answers are appended to the `--log` file, and inputs that it already has are
not tried again. `--only` tries one input, and `--keep` leaves it in a folder.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from autosync.jsonio import append_json_line, read_json_lines

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.fuzz.kinds import KINDS
from benchmarks.shared import parser_of, report, run, tell

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_SECONDS = 300
"""How long a worker may be silent before it is killed. A hang may also block signals."""
CHUNK = 1000
"""The number of inputs after which a new process takes over."""

Answer = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The outcomes of the inputs of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    most_bytes: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.outcomes["failed" if "why" in answer else answer["outcome"]] += 1
        if "why" in answer:
            self.failures.append({"number": answer["number"], "why": answer["why"]})
        self.seconds += answer.get("seconds", 0.0)
        self.slowest_seconds = max(self.slowest_seconds, answer.get("seconds", 0.0))
        self.most_bytes = max(self.most_bytes, answer.get("bytes", 0))

    def plain(self) -> dict[str, Any]:
        """Return the tally as fields of the document."""
        return {
            "inputs": self.outcomes.total(),
            "outcomes": dict(sorted(self.outcomes.items())),
            "seconds": round(self.seconds, 1),
            "slowest_seconds": round(self.slowest_seconds, 2),
            "most_megabytes": round(self.most_bytes / 1e6, 1),
            "failures": sorted(self.failures, key=lambda one: one["number"]),
        }


def shared_out(num_inputs: int, kinds: Sequence[str]) -> dict[str, int]:
    """Return how many inputs each kind has, by weight: at least as many as wanted in all, and one of each."""
    total = sum(KINDS[kind].weight for kind in kinds)
    return {kind: math.ceil(num_inputs * KINDS[kind].weight / total) for kind in kinds}


def tried(
    kind: str, seed: str, numbers: Sequence[int], *, keep: Path | None = None, warm_up: int | None = None
) -> Iterator[Answer]:
    """Yield the answers to inputs of a kind. If a process dies, its input has failed, and another process continues."""
    left = list(numbers)
    while left:
        chunk = left[:CHUNK]
        command = [sys.executable, str(WORKER), kind, seed, json.dumps(chunk)]
        command += ["--keep", str(keep)] if keep else []
        command += [] if warm_up is None else ["--warm-up", str(warm_up)]
        answered = 0
        with TemporaryFile() as stderr, _started(command, stderr) as process:
            for line in _lines(process):
                yield json.loads(line)
                answered += 1
            code = process.wait()
            del left[:answered]
            if answered < len(chunk):
                stderr.seek(0)
                said = stderr.read()[-1500:].decode("utf-8", "replace")
                if not answered and b"Traceback" in said.encode() and code == 1:
                    raise SystemExit(f"the worker for {kind} cannot begin:\n{said}")
                yield {"number": left.pop(0), "why": f"the process ended with {code}: {said}"}


def _started(command: Sequence[str], stderr: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment, bufsize=0
    )


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield a worker's output lines until it ends. Kill it if it is silent for too long."""
    assert process.stdout is not None, "asked for"
    buffer = b""
    while select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]:
        data = os.read(process.stdout.fileno(), 2**16)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        yield from lines
    process.kill()


def fuzz(
    num_inputs: int,
    seed: str,
    kinds: Sequence[str],
    log: Path | None,
    known: Sequence[Answer],
    *,
    warm_up: int | None = None,
) -> dict[str, Tally]:
    """Try inputs of kinds, and add each answer to the log."""
    tallies = {kind: Tally() for kind in kinds}
    for kind, count in shared_out(num_inputs, kinds).items():
        there = {answer["number"]: answer for answer in known if (answer["kind"], answer["seed"]) == (kind, seed)}
        for number, answer in there.items():
            if number < count:
                tallies[kind].add(answer)
        left = [number for number in range(count) if number not in there]
        for answer in tried(kind, seed, left, warm_up=warm_up):
            tallies[kind].add(answer)
            if log is not None:
                append_json_line(log, {"kind": kind, "seed": seed, **answer})
        if tallies[kind].failures:
            tell(f"{kind}: {len(tallies[kind].failures)} of {count} failed")
    return tallies


def _known(log: Path | None) -> list[Answer]:
    """Return the answers in a log; skip a line that is cut off."""
    if log is None or not log.exists():
        return []
    return list(read_json_lines(log))


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="how many inputs, shared out over the kinds")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind (may be repeated)")
    parser.add_argument("--log", type=Path, help="add each answer to this file, and try nothing that it has")
    parser.add_argument("--only", type=int, help="try the input of this number alone, of one kind")
    parser.add_argument("--keep", type=Path, help="leave inputs in this empty folder (with --only)")
    parser.add_argument("--warm-up", type=int, metavar="N", help="try N inputs of each kind before those that count")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    began = time.perf_counter()
    if options.only is not None:
        if len(kinds) != 1:
            parser.error("--only tries an input of one kind: --kind KIND")
        if options.keep:
            options.keep.mkdir(parents=True)
        tallies = {kinds[0]: Tally()}
        for answer in tried(kinds[0], options.seed, [options.only], keep=options.keep, warm_up=options.warm_up):
            tallies[kinds[0]].add(answer)
    else:
        known = _known(options.log)
        tallies = fuzz(options.inputs, options.seed, kinds, options.log, known, warm_up=options.warm_up)
    num_failed = sum(len(tally.failures) for tally in tallies.values())
    document = {
        "seed": options.seed,
        "inputs": sum(tally.outcomes.total() for tally in tallies.values()),
        "failed": num_failed,
        "seconds": round(time.perf_counter() - began, 1),
        "kinds": {kind: tally.plain() for kind, tally in tallies.items()},
    }
    return report(document, holds=not num_failed)


if __name__ == "__main__":
    run(main)
