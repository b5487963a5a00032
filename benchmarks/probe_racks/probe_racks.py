"""Probes testbeds with planted racks and without, and compares what the probe finds; see README.md.

python benchmarks/probe_racks/probe_racks.py measure --folder racks
python benchmarks/probe_racks/probe_racks.py report --folder racks > racks.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.errors import AutosyncError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.trials.probe import Probed, ProbeSettings, probe

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.probe_racks.testbeds import Case, case, planted
from benchmarks.shared import parser_of, report, run, tell

NUM_CASES = 20
MOST_RATE_ERROR = 0.1
MOST_SECONDS = 120.0
_TIMEOUT_SECONDS = 300.0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("mode", choices=("measure", "report"))
    parser.add_argument("--folder", type=Path, required=True, help="where the results are kept")
    parser.add_argument("--cases", type=int, default=NUM_CASES, help="testbeds with racks, and as many without")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="begin no further case after this time")
    options = parser.parse_args()
    cases = [case(number, is_planted=is_planted) for number in range(options.cases) for is_planted in (True, False)]
    if options.mode == "measure":
        measure(options, cases)
        return 0
    document = results(list(_kept(options.folder, cases)))
    return report(document, holds=all(document["holds"].values()))


def measure(options: argparse.Namespace, cases: list[Case]) -> None:
    """Probe every testbed whose result the folder lacks."""
    options.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.limit_seconds
    for one in cases:
        path = options.folder / f"{one.name}.json"
        if path.is_file() or time.monotonic() > deadline:
            continue
        tell(f"probing {one.name}: {len(one.cluster.nodes)} hosts")
        try:
            with planted(one):
                probed = probe(one.cluster, settings=ProbeSettings(timeout_seconds=_TIMEOUT_SECONDS))
        except AutosyncError as error:
            tell(f"failed: {error}")
            continue
        result = compared(one, probed)
        jsonio.write_json(path, result)
        tell(f"{'right' if result['is_right'] else 'WRONG'}: {result['sentences']}")


def compared(one: Case, probed: Probed) -> dict[str, Any]:
    """Return what was planted, what was found, and whether it is the same."""
    racks = {rack.name: rack for rack in probed.cluster.racks}
    found = {
        tuple(n for n, node in enumerate(probed.cluster.nodes) if node.rack == name): (rack.uplink_out, rack.uplink_in)
        for name, rack in racks.items()
    }
    wanted = _wanted(one)
    errors = [
        abs(rate / limit - 1)
        for members, limits in wanted.items()
        for rate, limit in zip(found.get(members, ()), limits, strict=False)
    ]
    is_right = found.keys() == wanted.keys() and max(errors, default=0.0) <= MOST_RATE_ERROR
    search = probed.search
    return {
        "case": one.name,
        "num_hosts": len(one.cluster.nodes),
        "planted": [{"hosts": list(rack.members), "out": rack.out, "in": rack.into} for rack in one.racks],
        "found": [{"hosts": list(group), "out": rates[0], "in": rates[1]} for group, rates in found.items()],
        "is_right": is_right and _reloads(probed.cluster),
        "rate_errors": errors,
        "sentences": [f.message for f in probed.findings if f.kind in ("shared_link", "unclear_links")],
        "abstained": search is not None and search.doubt is not None,
        "num_loads": 0 if search is None else search.num_loads,
        "cpu_share": probed.calibration.cpu_share,
        "seconds": probed.seconds,
    }


def _wanted(one: Case) -> dict[tuple[int, ...], tuple[float, float]]:
    """Return the racks to be found with their rates out and in.

    A rack of half of the hosts is two racks. A rack of more than half is that of the others, the other way round.
    """
    hosts = range(len(one.cluster.nodes))
    wanted: dict[tuple[int, ...], tuple[float, float]] = {}
    for rack in one.racks:
        others = tuple(host for host in hosts if host not in rack.members)
        if len(rack.members) <= len(others):
            wanted[rack.members] = _limits(one.cluster, rack.members, rack.out, rack.into, wanted)
        if len(rack.members) >= len(others):
            wanted[others] = _limits(one.cluster, others, rack.into, rack.out, wanted)
    return wanted


def _limits(
    cluster: ClusterSpec,
    members: tuple[int, ...],
    out: float | None,
    into: float | None,
    known: Mapping[tuple[int, ...], tuple[float, float]],
) -> tuple[float, float]:
    """Return the rates of an uplink: without a limit, the sum of its hosts; of two uplinks in a row, the slower."""
    nodes = [cluster.nodes[host] for host in members]
    rates = (
        sum(node.bandwidth_out for node in nodes) if out is None else out,
        sum(node.bandwidth_in for node in nodes) if into is None else into,
    )
    before = known.get(members, rates)
    return min(rates[0], before[0]), min(rates[1], before[1])


def _reloads(cluster: ClusterSpec) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.yaml"
        save_cluster(path, cluster)
        return load_cluster(path) == cluster


def _kept(folder: Path, cases: list[Case]) -> Iterator[dict[str, Any]]:
    for one in cases:
        path = folder / f"{one.name}.json"
        if path.is_file():
            yield json.loads(path.read_text(encoding="utf-8"))


def results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many testbeds of each kind are right, beside the targets."""
    with_racks, without = ([row for row in rows if bool(row["planted"]) == is_planted] for is_planted in (True, False))
    errors = [error for row in with_racks for error in row["rate_errors"]]
    found = {
        "num_with_racks": len(with_racks),
        "num_right_with_racks": sum(row["is_right"] for row in with_racks),
        "num_without": len(without),
        "num_right_without": sum(row["is_right"] for row in without),
        "num_abstained": sum(row["abstained"] for row in rows),
        "most_rate_error": max(errors, default=None),
        "most_loads": max((row["num_loads"] for row in rows), default=None),
        "most_seconds": max((row["seconds"] for row in rows), default=None),
    }
    holds = {
        "with_racks": found["num_right_with_racks"] == len(with_racks) >= NUM_CASES,
        "without": found["num_right_without"] == len(without) >= NUM_CASES,
        "seconds": found["most_seconds"] is not None and found["most_seconds"] <= MOST_SECONDS,
    }
    return {**found, "holds": holds, "cases": rows}


if __name__ == "__main__":
    run(main)
