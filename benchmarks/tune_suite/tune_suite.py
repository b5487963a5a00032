"""Measures how good tuning is.

    python benchmarks/tune_suite/tune_suite.py replay|simulated|real ... [--pictures FOLDER] > suite.json

`replay` lets every proposer search pools of recorded strategies (`--store`: a store, or packed records), where each
strategy takes the time of its record. `simulated` lets them search whole spaces, on clusters that a timeline simulates
with noise and with costs and links that the proposers do not know. Both run each proposer with several seeds, in turn.
For each target they report how many trials it took to come within 2 % of the best known strategy, the best so far after
each trial (median and range over the seeds), and the search's own time. Trials are counted as in a study: stock DDP is
the first. On simulated clusters, where every node has its own processors, the bound is known too, and the share of it
that each proposer reached is reported.

`real` tunes targets on this machine's testbed, as users would, and proves each result beside stock DDP, DDP with its
best single bucket and the best preset; it needs an idle machine, and hours. It keeps its results in `--folder`, and
continues from there. For each target it reports the tuner's own share of the time (in which no rank had work) and its
own memory; memory is that of this one process since it began, over all its targets.

The document is on stdout, a table of it on stderr. Ends with 1 if a target failed, was left out for want of time, if
there was none, or if `real` misses a figure of README.md; some of its targets alone (`--targets`) cannot reach all.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from autosync.search.prior import NON_LEARNING, PRIOR_SIMULATOR
from autosync.search.proposers.catalogue import proposer_names
from autosync.search.study_folder import DEFAULT_SIMULATOR
from benchmarks.shared import parser_of, run, tell
from benchmarks.tune_suite import real
from benchmarks.tune_suite.picture import write_pictures
from benchmarks.tune_suite.race import run_races
from benchmarks.tune_suite.table import race_table, real_table
from benchmarks.tune_suite.targets import OTHERS, replayed_targets, simulated_targets

NUM_SEEDS = 3


def main() -> int:
    parser = parser_of(__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    replay = modes.add_parser("replay", help="over recorded pools")
    replay.add_argument("--store", type=Path, required=True, help="a store, or a folder of packed records")
    replay.add_argument("--least-records", type=int, default=60, help="combinations with fewer are left out")
    simulated = modes.add_parser("simulated", help="on simulated clusters that nobody knows")
    simulated.add_argument("--targets", nargs="*", default=(), help="some of them, by MODEL/CLUSTER")
    for mode in (replay, simulated):
        mode.add_argument("--proposers", nargs="*", default=sorted(proposer_names()))
        mode.add_argument("--simulator", help="who predicts for proposers that ask [timeline; with --prior learned]")
        mode.add_argument("--prior", help="records of others to learn from; shipped; in replay others: the store's own")
        mode.add_argument("--trials", type=int, default=50)
        mode.add_argument("--seeds", type=int, default=NUM_SEEDS)
        mode.add_argument("--pictures", type=Path, help="draw the curves into this folder")
        mode.add_argument("--limit-seconds", type=float, default=3 * 3600.0, help="begin no race after this time")
    real.add_arguments(modes.add_parser("real", help="by trials on this machine's testbed"))
    options = parser.parse_args()
    if options.simulator is None and options.mode != "real":
        options.simulator = DEFAULT_SIMULATOR if options.prior is None else PRIOR_SIMULATOR
    if options.mode == "replay" and options.prior != OTHERS and options.simulator not in NON_LEARNING:
        parser.error(f"--simulator {options.simulator} would know what the pools have: --prior {OTHERS}")
    document = real.run(options) if options.mode == "real" else _raced(options)
    tell((real_table if options.mode == "real" else race_table)(document))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"mode": options.mode, **document, "peak_memory_bytes": 1024 * peak_kib}, indent=2))
    return 0 if is_met(document) else 1


def is_met(document: Mapping[str, Any]) -> bool:
    """Return whether everything was run, and every figure that has a target reaches it. Races have no such figures."""
    is_whole = bool(document["targets"]) and not document.get("failures") and not document.get("left_out")
    return is_whole and all(document["overall"].get("holds", {}).values())


def _raced(options: argparse.Namespace) -> dict[str, Any]:
    targets = replayed_targets if options.mode == "replay" else simulated_targets
    races = list(targets(options))
    if not races:
        tell("no target is left")
    document = run_races(
        races,
        proposers=options.proposers,
        num_seeds=options.seeds,
        num_trials=options.trials,
        limit_seconds=options.limit_seconds,
    )
    if options.pictures is not None:
        write_pictures(document, options.pictures)
    settings = {
        "simulator": options.simulator,
        "prior": options.prior,
        "num_trials": options.trials,
        "num_seeds": options.seeds,
    }
    return {**settings, **document}


if __name__ == "__main__":
    run(main)
