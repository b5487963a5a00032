"""Compares the bytes on the links with the plan: `python benchmarks/wire/bytes_on_the_wire.py > bytes.json`.

It trains with every preset that applies (only some classes with `--class lossy --class stale`) on emulated hosts (four;
two of two ranks each; three and two that only serve), and counts the bytes through each host's interface in a step,
both ways. They are compared with the plan's totals of the node. If torch's own reducer can run a plan, both it and our
engine do. Bound: within 2 %, for each host in each direction; of the busiest host's bytes, where the plan has none.

The number of rows is known only at run time. The plan's totals are the expectation for a model with its average of
touched rows. The bound applies to the plan's totals with the rows that the batches really touched. Both are reported.

Bytes beyond the plan's are headers: `rest_bytes` has their number for a step on the busiest host. Segmentation offload
lets the interface count one header for up to 64 KB, acknowledgements pass the other way, and each message needs a
request and an announcement. Messages are large here; a strategy of many small ones has a larger rest. So those lossy
presets that send a hundredth or less by default send more here, and averages are due within the counted steps.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from autosync.errors import DoesNotApplyError
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.plan.traffic import Contributions, Traffic, amortised_traffic, plan_traffic
from autosync.plan.types import Plan, Transfer
from autosync.runtime.session.support import unsupported
from autosync.runtime.stock.buckets import stock_buckets
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launchers import LAUNCHERS
from autosync.specs.profile.run import profile
from autosync.specs.task_run import draw_batch
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import StrategyClass

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.wire.ranks import CASE_SECONDS, NUM_STEPS, NUM_WARMUP_STEPS, START_SECONDS, generator_of
from benchmarks.wire.tasks import TASKS, touched_rows

BOUND_SHARE = 0.02
MEGABITS = 1000.0
POLL_SECONDS = 0.1
# After this many launches in a row without a count, the fault is not in a single case.
MAX_LOST = 3

# Options besides a preset's defaults: every topology, and both ways to a server.
OPTIONS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "all_reduce_per_variable": ({"topology": "ring"}, {"topology": "tree"}, {"topology": "halving_doubling"}),
    "hierarchical": ({"topology": "ring"}, {"topology": "ring", "cap_bytes": "4 MB"}),
    "ps_load_balanced": ({"local_proxy": True},),
    "ps_partitioned": ({"local_proxy": True}, {"parts": "by_rate"}),
    "ddp_cap": ({"cap_bytes": "4 MB"},),
    "sharded": ({"cap_bytes": "4 MB"}, {"fitted": True}),
}

# Options in place of a preset's defaults, so that its bytes exceed the headers and occur in the counted steps.
INSTEAD: Mapping[str, Mapping[str, Any]] = {
    "dgc": {"ratio": 0.05},
    "diloco": {"every": 2},
    "power_sgd": {"rank": 32},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training whose bytes are counted. With `hand_off`, torch's reducer runs it."""

    name: str
    task: str
    bundle: Bundle
    plan: Plan
    hand_off: bool


def clusters() -> dict[str, ClusterSpec]:
    """Return the clusters on which bytes are counted."""
    return {
        "4 hosts": emulated(*(MEGABITS,) * 4),
        "2 hosts of 2 ranks": emulated(*(MEGABITS,) * 2, devices=2),
        "3 hosts and 2 servers": emulated(*(MEGABITS,) * 3, servers=(MEGABITS,) * 2),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", metavar="TEXT", help="the cases in whose name, task or cluster this is")
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        choices=get_args(StrategyClass),
        help="presets of this class (may be repeated; all unless told)",
    )
    parser.add_argument("--limit-seconds", type=float, default=1200.0, help="begin no launch after this time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    refusals: dict[str, str] = {}
    for place, cluster in clusters().items():
        found = cases_on(cluster, place, refusals, frozenset(options.classes or get_args(StrategyClass)))
        cases = [case for case in found if _is_wanted(case, place, options.only)]
        results += count_all(cases, cluster, place, began + options.limit_seconds)
    holds = bool(results) and all(result["holds"] for result in results)
    document = {
        "holds": holds,
        "num_cases": len(results),
        "num_held": sum(result["holds"] for result in results),
        "worst_deviation": max((result.get("deviation", 1.0) for result in results), default=None),
        "seconds": round(time.monotonic() - began, 1),
        "does_not_apply": refusals,
        "cases": results,
    }
    return report(document, holds=holds)


def _is_wanted(case: Case, place: str, only: str | None) -> bool:
    return only is None or any(only in text for text in (case.name, case.task, place))


# ---------------------------------------------------------------------------------------------------------- cases


def cases_on(
    cluster: ClusterSpec, place: str, refusals: dict[str, str], classes: frozenset[StrategyClass]
) -> Iterator[Case]:
    """Yield a case for every preset of the classes and both tasks; each distinct strategy only once."""
    for task_name, task in TASKS.items():
        model = profile(task, times="computed", steps=20)
        known: set[str] = set()
        for preset in preset_names():
            for options in (INSTEAD.get(preset, {}), *OPTIONS.get(preset, ())):
                name = preset + "".join(f" {key}={value}" for key, value in options.items())
                try:
                    bundle = bundled(build_preset(preset, model, cluster, **options), model, cluster)
                except DoesNotApplyError as error:
                    refusals[f"{name}, {task_name}, {place}"] = error.problems[0].what
                    continue
                if bundle.strategy_id in known or not bundle.strategy.classes <= classes:
                    continue
                known.add(bundle.strategy_id)
                plan = lower(bundle.strategy, model, cluster)
                assert not unsupported(plan), "the engine runs every preset"
                assert _is_counted_fairly(plan), "what is not of every step is due in its share of the steps"
                for hand_off in (False, True) if stock_buckets(plan) is not None else (False,):
                    yield Case(name=name, task=task_name, bundle=bundle, plan=plan, hand_off=hand_off)


def _is_counted_fairly(plan: Plan) -> bool:
    """Return whether the counted steps have the average amount of everything."""
    periods = {one.every for one in plan.operations}
    return all(
        period * ((NUM_WARMUP_STEPS + NUM_STEPS) // period - NUM_WARMUP_STEPS // period) == NUM_STEPS
        for period in periods
    )


def count_all(cases: Sequence[Case], cluster: ClusterSpec, place: str, deadline: float) -> list[dict[str, Any]]:
    """Count case after case. A case that fails ends its ranks, and the others continue with new ones."""
    results: list[dict[str, Any]] = []
    num_lost = 0
    while len(results) < len(cases) and time.monotonic() < deadline and num_lost < MAX_LOST:
        first = len(results)
        counted, failure = launch(cases[first:], cluster, deadline)
        for case, counts in zip(cases[first:], counted, strict=False):
            results.append({**_named(case, place), **judged(case, cluster, counts)})
            told = f"{results[-1]['deviation']:.2%} off" + ("" if results[-1]["holds"] else ", NOT HELD")
            tell(f"{place}, {case.task}, {case.name}: {told}")
        num_lost = 0 if counted else num_lost + 1
        if failure is not None and len(results) < len(cases):
            case = cases[len(results)]
            results.append({**_named(case, place), "holds": False, "failure": failure})
            tell(f"{place}, {case.task}, {case.name}: {failure}")
    left = cases[len(results) :]
    return results + [{**_named(case, place), "holds": False, "failure": "not begun"} for case in left]


def _named(case: Case, place: str) -> dict[str, Any]:
    return {"cluster": place, "task": case.task, "preset": case.name, "torchs_reducer": case.hand_off}


Counts = Mapping[str, Sequence[float]]
"""`sent` and `received`: the bytes of each node in a step."""


def judged(case: Case, cluster: ClusterSpec, counts: Counts) -> dict[str, Any]:
    """Return the counts, compared with the plan."""
    expected, actual = amortised_traffic(case.plan, cluster), _actual_traffic(case, cluster)
    out, into = np.array(counts["sent"]), np.array(counts["received"])
    pairs = [(out, actual.node_out), (into, actual.node_in)]
    deviation = 0.0
    for counted, planned in pairs:
        # A node without a part in a plan sends nothing, and has no ratio: its bytes are a share of the busiest node's.
        scale = np.where(planned > 0, planned, planned.max())
        deviation = max(deviation, float((np.abs(counted - planned) / scale).max()))
    num_messages = sum(isinstance(operation, Transfer) for operation in case.plan.operations)
    found = {
        "holds": deviation <= BOUND_SHARE,
        "deviation": round(deviation, 5),
        "num_transfers": num_messages,
        "sent_bytes": [round(number) for number in out],
        "received_bytes": [round(number) for number in into],
        "planned_out_bytes": [round(number) for number in actual.node_out],
        "planned_in_bytes": [round(number) for number in actual.node_in],
        "rest_bytes": round(float(max((counted - planned).max() for counted, planned in pairs))),
    }
    if _row_transfers(case.plan):
        ratio = actual.node_out / np.where(expected.node_out > 0, expected.node_out, 1.0)
        found["touched_against_expected"] = [round(float(one), 4) for one in ratio]
    return found


# ------------------------------------------------------------------------------------- rows that are really touched


def _row_transfers(plan: Plan) -> dict[int, Transfer]:
    """Return the transfers whose size depends on the batch, by position."""
    return {
        index: one
        for index, one in enumerate(plan.operations)
        if isinstance(one, Transfer) and plan.regions[one.regions[0]].kind in ("rows", "new_rows")
    }


def _actual_traffic(case: Case, cluster: ClusterSpec) -> Traffic:
    """Return the plan's bytes of a step with the rows that were touched in the measured steps."""
    transfers = _row_transfers(case.plan)
    if not transfers:
        return amortised_traffic(case.plan, cluster)
    ranks = [_touched(case, rank) for rank in range(cluster.num_workers)]
    steps = []
    for step in range(NUM_STEPS):
        rows = [touched[step] for touched in ranks]
        contributions = {index: _contributions(case.plan, one, rows) for index, one in transfers.items()}
        steps.append(plan_traffic(case.plan, cluster, contributions=contributions))
    return Traffic(
        node_out=np.mean([one.node_out for one in steps], axis=0),
        node_in=np.mean([one.node_in for one in steps], axis=0),
        node_within=np.mean([one.node_within for one in steps], axis=0),
        rack_out=np.mean([one.rack_out for one in steps], axis=0),
        rack_in=np.mean([one.rack_in for one in steps], axis=0),
    )


def _touched(case: Case, rank: int) -> list[Mapping[str, torch.Tensor]]:
    """Return for each measured step the rows of each table that a rank touches."""
    batches = generator_of(rank)
    drawn = [draw_batch(TASKS[case.task], batches) for _ in range(NUM_WARMUP_STEPS + NUM_STEPS)]
    return [touched_rows(batch) for batch in drawn[NUM_WARMUP_STEPS:]]


def _contributions(plan: Plan, transfer: Transfer, rows: Sequence[Mapping[str, torch.Tensor]]) -> Contributions:
    """Return each member's contribution to a transfer of rows: its own rows, or at the root all touched rows."""
    part = plan.parts[plan.regions[transfer.regions[0]].part]
    name = part.variable.name
    row_elements = part.row_bytes // transfer.item_bytes

    def size(touched: torch.Tensor) -> int:
        inside = len(touched) if part.axis else int(((touched >= part.begin) & (touched < part.end)).sum())
        return inside * row_elements

    (group,) = transfer.groups
    if transfer.collective == "broadcast":
        return {group[0]: size(torch.cat([touched[name] for touched in rows]).unique())}
    return {rank: size(rows[rank][name]) if rank < len(rows) else 0 for rank in group}


# ------------------------------------------------------------------------------------------------- launching ranks


def launch(cases: Sequence[Case], cluster: ClusterSpec, deadline: float) -> tuple[list[Counts], str | None]:
    """Return the counts of the cases in their order, and the failure that ended the ranks early, if any."""
    with tempfile.TemporaryDirectory(prefix="autosync-bytes-") as name:
        folder = Path(name)
        for number, case in enumerate(cases):
            save_bundle(folder / f"case-{number}.json", case.bundle)
        work = [{"task": case.task, "hand_off": case.hand_off} for case in cases]
        (folder / "work.json").write_text(json.dumps(work))
        launcher = LAUNCHERS.get(cluster.launcher)()
        command = (sys.executable, str(Path(__file__).with_name("ranks.py")), name)
        running = launcher.start(launcher.plan(cluster, command, folder))
        until = min(deadline, time.monotonic() + START_SECONDS + CASE_SECONDS * len(cases))
        try:
            while None in (codes := running.exit_codes()) and time.monotonic() < until:
                if any(code not in (None, 0) for code in codes):
                    break
                time.sleep(POLL_SECONDS)
            codes = running.exit_codes()
        finally:
            running.stop()
        counted = _counted(folder, cluster)
        if all(code == 0 for code in codes):
            return counted, None
        ended = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
        if ended is None:
            return counted, "no end in time"
        lines = (folder / f"rank-{ended}.log").read_text().strip().splitlines()
        return counted, f"rank {ended} ended with {codes[ended]}: {lines[-1] if lines else 'it said nothing'}"


def _counted(folder: Path, cluster: ClusterSpec) -> list[Counts]:
    """Return the counts by the first rank of each node, as far as all ranks got."""
    nodes = []
    for node in range(len(cluster.nodes)):
        file = folder / f"counts-{cluster.leader(node)}"
        nodes.append([json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [])
    return [
        {what: [counts[what] for counts in case] for what in ("sent", "received")} for case in zip(*nodes, strict=False)
    ]


if __name__ == "__main__":
    run(main)
