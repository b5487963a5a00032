"""Checks that the doctor finds planted causes: `python benchmarks/doctor_cases/doctor_cases.py --resume cases.json`.

Each of 100 cases plants one cause of slow steps, of random size, on an emulated cluster; 20 further trainings are
healthy. `autosync doctor` runs on each. A case is right if the primary cause is the planted one with its place; a
healthy training is right if nothing is wrong with it.

With `--resume FILE`, each result is written to that file at once, and only missing cases run. `--with-tune N` tunes the
replayed models of N cases and compares the gain that tuning reached with the largest gain that the doctor said is
possible. Both are over stock DDP with its default buckets.

Programs that do not belong to the benchmark are a real cause of slow steps too. So `busy_share` is the share of the
processors that they used during a case; above 15 % the result says nothing about the doctor, and it should run again.

The exit code is 1 unless 95 % of the planted causes are found, no healthy training gives an alarm, no diagnosis takes
longer than 60 s, and no tuning gains over 3 % more than the doctor said.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.specs.background_load import BUSY_SHARE, BackgroundLoad
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, save_cluster

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.doctor_cases.cases import HEALTHY, Case, Planted, all_cases
from benchmarks.doctor_cases.gains import MOST_EXCEEDED, compared_gains, gain_cases
from benchmarks.doctor_cases.networks import with_fault
from benchmarks.shared import end_ranks, parser_of, report, run, start_ranks, tell

SCRIPT = Path(__file__).parent / "planted.py"
LEAST_RIGHT = 0.95
MOST_SECONDS = 60.0
PROBE_SECONDS = 200.0
"""A diagnosis that takes longer than the doctor's own limit and this time is ended, and counts as a failure."""
PARTING_SECONDS = 30.0

_USES_A_PROCESSOR = """
import os, time
end = time.monotonic() + {seconds}
while time.monotonic() < end and os.getppid() == {parent}:
    pass
"""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep results here, and run only missing cases")
    parser.add_argument("--cases", type=int, metavar="N", help="run N cases, spread over the kinds, instead of all")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=(), help="run these cases, such as slow_link-2")
    parser.add_argument("--timeout", type=float, default=90.0, metavar="SECONDS", help="the doctor's --timeout")
    parser.add_argument("--with-tune", type=int, metavar="N", default=0, help="also tune the models of N cases")
    parser.add_argument("--budget", default="3min", help="the time of each tuning")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases = all_cases(options.seed)
    unknown = set(options.only) - {case.name for case in cases}
    if unknown:
        parser.error(f"there is no case {min(unknown)} (KIND-NUMBER, such as slow_link-2)")
    chosen = [case for case in cases if case.name in options.only] if options.only else cases[: options.cases]
    results = Results(options.resume, options.seed)
    for number, case in enumerate(chosen, start=1):
        if case.name not in results.cases:
            results.keep_case(case.name, judged(case, options.timeout))
        tell(f"{number} of {len(chosen)}: {in_words(case, results.cases[case.name])}")
    for gained in gain_cases(cases, options.with_tune):
        if gained.name not in results.gains:
            results.keep_gain(gained.name, compared_gains(gained, options.budget))
        tell(f"{gained.name}: {json.dumps(results.gains[gained.name])}")
    document = results.document()
    return report(document, holds=bool(document["holds"]) and all(document["holds"].values()))


class Results:
    """The results so far. If they have a file, each new result is written at once."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path = path
        self._seed = seed
        self.cases: dict[str, dict[str, Any]] = {}
        self.gains: dict[str, dict[str, Any]] = {}
        if path is not None and path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["seed"] != seed:
                raise SystemExit(f"{path} has cases of --seed {before['seed']}, not of {seed}")
            self.cases, self.gains = before["cases"], before["gains"]

    def keep_case(self, name: str, result: dict[str, Any]) -> None:
        self.cases[name] = result
        self._write()

    def keep_gain(self, name: str, result: dict[str, Any]) -> None:
        self.gains[name] = result
        self._write()

    def document(self) -> dict[str, Any]:
        """Return the results with their summary and the targets that hold."""
        summary = summary_of(list(self.cases.values()), list(self.gains.values()))
        return {"seed": self._seed, **summary, "gains": self.gains, "cases": self.cases}

    def _write(self) -> None:
        if self._path is not None:
            jsonio.write_json(self._path, self.document())


def summary_of(cases: Sequence[Mapping[str, Any]], gains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of all results, and which targets they meet; one that no result tells of is left out."""
    planted = [one for one in cases if one["kind"] != HEALTHY]
    healthy = [one for one in cases if one["kind"] == HEALTHY]
    alarms = [one for one in healthy if not one["is_right"]]
    num_right = sum(one["is_right"] for one in planted)
    kinds = dict.fromkeys(one["kind"] for one in cases)
    seconds = [one["seconds"] for one in cases]
    targets = {
        "right": (planted, num_right >= LEAST_RIGHT * len(planted)),
        "no_alarms": (healthy, not alarms),
        "seconds": (cases, all(one <= MOST_SECONDS for one in seconds)),
        "gains": (
            gains,
            all(one["exceeded_by"] is not None and one["exceeded_by"] <= MOST_EXCEEDED for one in gains),
        ),
    }
    return {
        "num_planted": len(planted),
        "num_right": num_right,
        "num_healthy": len(healthy),
        "num_alarms": len(alarms),
        "right_by_kind": {
            kind: f"{sum(one['is_right'] for one in same)} of {len(same)}"
            for kind in kinds
            for same in [[one for one in cases if one["kind"] == kind]]
        },
        "num_on_busy_machine": sum(one["busy_share"] > BUSY_SHARE for one in cases),
        "median_seconds": statistics.median(seconds) if seconds else None,
        "most_seconds": max(seconds, default=None),
        "holds": {name: is_met for name, (results, is_met) in targets.items() if results},
    }


def judged(case: Case, timeout_seconds: float) -> dict[str, Any]:
    """Plant a case, run the doctor, and return what was planted and what was found."""
    planted = case.draw()
    with tempfile.TemporaryDirectory() as text:
        path = Path(text) / "cluster.yaml"
        save_cluster(path, planted.cluster)
        # The testbed of a cluster belongs to the exact text of its file.
        cluster = load_cluster(str(path))
        with with_fault(cluster, planted.fault), others(planted.num_others, timeout_seconds + PROBE_SECONDS):
            began, load = time.monotonic(), BackgroundLoad()
            found = diagnosis(path, planted, timeout_seconds)
            seconds, busy_share = time.monotonic() - began, load.share()
    return {
        "kind": case.kind,
        "seed": case.seed,
        "planted": _planted_fields(case, planted, cluster),
        "is_right": is_right(case, planted, found),
        "seconds": round(seconds, 1),
        "busy_share": round(busy_share, 3),
        "found": found,
    }


def diagnosis(cluster: Path, planted: Planted, timeout_seconds: float) -> dict[str, Any]:
    """Return the document of `autosync doctor`, or the reason why there is none."""
    options = ("--cluster", str(cluster), "--timeout", f"{timeout_seconds:g}s", "--json")
    script = ("--", str(SCRIPT), *planted.training.arguments())
    doctor = (sys.executable, "-P", "-m", "autosync.cli", "doctor", *options, *script)
    limit_seconds = timeout_seconds + PROBE_SECONDS
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(doctor, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            # Interrupted, the doctor ends its ranks and the testbed.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING_SECONDS)
            return {"failure": f"no diagnosis within {limit_seconds:g} s"}
        finally:
            end_ranks(process)
        out.seek(0)
        errors.seek(0)
        if code:
            return {"failure": errors.read().decode(errors="replace").strip()}
        found: dict[str, Any] = json.load(out)
        return found


def is_right(case: Case, planted: Planted, found: Mapping[str, Any]) -> bool:
    """Return whether the primary cause is the planted one, with its place."""
    primary = found.get("primary")
    if primary is None or primary["cause"] != case.cause:
        return False
    return planted.subject in {None, primary["subject"]} and planted.words in primary["evidence"]


@contextlib.contextmanager
def others(count: int, limit_seconds: float) -> Iterator[None]:
    """Let this number of other programs each use a processor for as long as the block runs."""
    code = _USES_A_PROCESSOR.format(seconds=limit_seconds, parent=os.getpid())
    programs = [start_ranks("-c", code) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            end_ranks(program)


def in_words(case: Case, result: Mapping[str, Any]) -> str:
    """Return a line about a result."""
    found = result["found"]
    primary = found.get("primary")
    told = found["failure"] if primary is None else f"{primary['cause']} {primary['subject']} {primary['share']:.0%}"
    return f"{case.name}: {'right' if result['is_right'] else 'WRONG'}, {told}, {result['seconds']} s"


def _planted_fields(case: Case, planted: Planted, cluster: ClusterSpec) -> dict[str, Any]:
    return {
        "cause": case.cause,
        "subject": planted.subject,
        "arguments": " ".join(planted.training.arguments()),
        "rates": [node.bandwidth_out for node in cluster.nodes],
        "uplinks": {rack.name: rack.uplink_out for rack in cluster.racks},
        "fault": None if planted.fault is None else str(planted.fault),
        "num_other_programs": planted.num_others,
    }


if __name__ == "__main__":
    run(main)
