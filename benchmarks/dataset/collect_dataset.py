"""Collects records for the dataset: random and other strategies of many models on many emulated clusters.

    python benchmarks/dataset/collect_dataset.py configs/campaigns/first.yaml --minutes 120  # measure for two hours
    python benchmarks/dataset/collect_dataset.py configs/campaigns/first.yaml --status       # what is missing
    python benchmarks/dataset/collect_dataset.py configs/campaigns/first.yaml --pack         # write datasets/records
    python benchmarks/dataset/collect_dataset.py configs/campaigns/first.yaml --from FOLDER  # continue from those
    python benchmarks/dataset/collect_dataset.py configs/campaigns/*.yaml --pack             # all campaigns in one

Each measurement is on the disk at once, in a store (`--store`, by default autosync-campaigns/NAME). Stop it with Ctrl-C
or pull the plug and start it again: it continues where it was. If the store is lost, `--from` restores it from the
packed records. It measures nothing while other programs use the processors.

The last output, on stdout, is one JSON document. The exit code is 0 if everything is measured, 1 if it gave up, 3 if
the time was over first, 130 if it was interrupted. docs/dataset.md tells how to write a plan.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from autosync.datasets.machine_drift import REFERENCE_ORIGIN, combination_of, flag_drift
from autosync.datasets.parquet_folder import (
    DISTURBED_FILE,
    RECORDS_FILE,
    SPECS_FILE,
    not_among,
    pack,
    read_packed,
    unpack,
)
from autosync.datasets.reliability import best_of_repeats, is_disturbed
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.errors import AutosyncError, InputError
from autosync.trials.service import TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.dataset.campaign import Collector
from benchmarks.dataset.campaign_plan import Campaign, Combination, load_campaign
from benchmarks.dataset.machine import Machine
from benchmarks.shared import parser_of, run, tell

ROOT = Path(__file__).resolve().parents[2]
STORES = Path("autosync-campaigns")
EXIT_TIME_OVER = 3
EXIT_INTERRUPTED = 130


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("plan", nargs="+", help="the plan file of the campaign; --pack takes several, for one folder")
    parser.add_argument("--store", type=Path, help=f"the folder of its records (default: {STORES}/NAME)")
    parser.add_argument("--from", dest="packed", type=Path, metavar="FOLDER", help="take up what --pack wrote there")
    parser.add_argument("--minutes", type=float, help="begin no trial that may end after this time")
    parser.add_argument("--only", action="append", metavar="MODEL:CLUSTER", help="this combination (may be repeated)")
    parser.add_argument("--busy-anyway", action="store_true", help="measure while the machine is busy (and flag it)")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--status", action="store_true", help="measure nothing; say what is there")
    task.add_argument("--pack", action="store_true", help="measure nothing; write what is there as Parquet")
    parser.add_argument("--output", type=Path, default=ROOT / "datasets" / "records", help="where --pack writes")
    parser.add_argument("--force", action="store_true", help="let --pack replace records that it has not")
    options = parser.parse_args()
    if len(options.plan) > 1 and not options.pack:
        parser.error("several plans (one campaign is measured at a time; --pack takes the records of several)")
    plans = [load_campaign(plan) for plan in options.plan]
    campaign, combinations = plans[0][0], [one for _, of_plan in plans for one in of_plan]
    store = RecordStore(options.store or STORES / campaign.name)
    if options.packed is not None:
        with store.held():
            tell(f"took up {unpack(options.packed, store)} records of {options.packed}")
    if options.pack:
        document = packed(campaign, combinations, store, options.output, force=options.force)
        code = 0
    else:
        code, document = collected(campaign, chosen(combinations, options.only), store, options)
    print(json.dumps(document, indent=2))
    return code


def chosen(combinations: Sequence[Combination], names: Sequence[str] | None) -> list[Combination]:
    """Return the combinations of these names, or all."""
    known = {combination.name: combination for combination in combinations}
    for name in names or ():
        if name not in known:
            raise InputError(
                f"{name} is no combination of this plan", rule=f"MODEL:CLUSTER, such as {next(iter(known))}"
            )
    return [known[name] for name in dict.fromkeys(names or known)]


def collected(
    campaign: Campaign, combinations: Sequence[Combination], store: RecordStore, options: argparse.Namespace
) -> tuple[int, dict[str, Any]]:
    """Measure, unless only the status is wanted; return the exit code and the document to print."""

    def open_service(combination: Combination, folder: Path) -> TrialService:
        return TrialService(
            target=combination.target,
            model=combination.model,
            cluster=combination.cluster,
            folder=folder,
            seed=campaign.seed,
            timeout_seconds=campaign.timeout_seconds,
        )

    machine = Machine(max_other_cpu=campaign.quiet.max_other_cpu, patience_seconds=campaign.quiet.patience_seconds)
    began = time.monotonic()
    collector = Collector(
        campaign,
        combinations,
        store,
        open_service=open_service,
        machine=machine,
        waits=not options.busy_anyway,
        limit_seconds=None if options.minutes is None else 60 * options.minutes,
    )
    code, reason = 0, ""
    if not options.status:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with store.held():
                if not collector.collect():
                    code = EXIT_TIME_OVER if collector.is_late else 1
                    reason = "" if collector.is_late else "not all could be measured"
        except KeyboardInterrupt:
            code, reason = EXIT_INTERRUPTED, "interrupted"
        except AutosyncError as error:
            code, reason = 1, str(error)
        tell(f"{reason or 'stopped'}: {collector.num_done} of {collector.num_wanted} records in {store.path}")
    return code, {
        "campaign": campaign.name,
        "store": str(store.path),
        "num_wanted": collector.num_wanted,
        "num_done": collector.num_done,
        "seconds": round(time.monotonic() - began, 1),
        "records_per_hour": None if collector.records_per_hour is None else round(collector.records_per_hour),
        "this_run": dict(sorted(collector.counts.items())),
        "combinations": collector.done_of_each(),
        **({"error": reason} if reason else {}),
    }


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def packed(
    campaign: Campaign, combinations: Sequence[Combination], store: RecordStore, output: Path, *, force: bool
) -> dict[str, Any]:
    """Write the store's records of the plans as Parquet, flagged where the machine drifted.

    Combinations that were removed from the plans stay in the store only, as do trials that a better one replaced.
    """
    problems: list[str] = []
    found = list(store.records(report=lambda problem: problems.append(str(problem))))
    for problem in problems:
        tell(f"left out: {problem}")
    records = flag_drift(found, share=campaign.quiet.max_drift)
    if not force:
        _refuse_loss(records, output)
    planned = {combination.key for combination in combinations}
    of_plan = [record for record in records if combination_of(record) in planned]
    chosen = best_of_repeats(of_plan)
    count = pack(chosen, store.specs(), output, force=True)
    measured = [record.measurement for record in chosen if record.measurement is not None]
    return {
        "campaign": campaign.name,
        "output": str(output),
        "num_records": count,
        "num_measured": len(measured),
        "num_references": sum(record.origin == REFERENCE_ORIGIN for record in chosen),
        "num_disturbed": sum(map(is_disturbed, chosen)),
        "num_flagged": sum(bool(one.flags) for one in measured),
        "num_replaced": len(of_plan) - len(chosen),
        "num_not_of_plan": len(records) - len(of_plan),
        "num_left_out": len(problems),
        "num_bytes": {name: (output / name).stat().st_size for name in (RECORDS_FILE, DISTURBED_FILE, SPECS_FILE)},
    }


def _refuse_loss(records: Sequence[Record], output: Path) -> None:
    """Refuse to replace packed records that the store does not have."""
    if (output / RECORDS_FILE).is_file():
        lost = not_among(read_packed(output), records)
        if lost:
            hint = f"--from {output} takes them up, --force drops them"
            what = f"{output} has {len(lost)} records that the store has not"
            raise InputError(what, rule="no record is lost unasked", hint=hint)


if __name__ == "__main__":
    run(main)
