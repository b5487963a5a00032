"""The process of one rank: `python -m autosync.loops.rank_main`, started by `launch` through a launcher."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync import jsonio
from autosync.datasets.files import refuse_overwrite
from autosync.errors import AutosyncError
from autosync.loops.checkpoints import Checkpoints
from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop, naming
from autosync.loops.peers import TorchPeers
from autosync.loops.rank_program import EpochReport, end_others, prepare, run_first, run_other, settings_of
from autosync.loops.reports import report_lines
from autosync.loops.tuning.contest import tune_prepared, tuning_orders_of


def main(arguments: Sequence[str]) -> int:
    """Run this rank. `arguments` are the target and the orders for rank 0 as JSON."""
    target, orders = arguments
    try:
        loop = load_loop(target)
        with TorchPeers() as peers, naming(target):
            if peers.rank == 0:
                _first(peers, loop, json.loads(orders))
            else:
                run_other(peers, loop)
    except (AutosyncError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        # Threads of gloo may still wait for other ranks, and these are ended only when this process is gone.
        os._exit(1)
    return 0


def _first(peers: TorchPeers, loop: SerialLoop, orders: dict[str, Any]) -> None:
    """Tune the loop if there are orders to, else run it."""
    if "tuning" in orders:
        prepared = prepare(loop)
        found = tune_prepared(peers, prepared, tuning_orders_of(orders["tuning"]), lambda line: _tell({"line": line}))
        end_others(peers)
        _tell(dataclasses.asdict(found))
        return
    settings = settings_of(orders["settings"])
    # Rank 0 writes the files, and may run on another machine than the command that checked its own disk.
    if orders["output"]:
        refuse_overwrite(Path(orders["output"]), force=orders["force"])
    checkpoints = None
    if orders["checkpoint"]:
        path, every, resumes = orders["checkpoint"]
        checkpoints = Checkpoints(path=Path(path), every=every, resumes=resumes)
        if not resumes:
            refuse_overwrite(checkpoints.path, force=orders["force"])

    def told(report: EpochReport) -> None:
        _tell({"epoch": report.number, "seconds": report.seconds, "loss": report.loss})

    result = run_first(peers, loop, settings, told, checkpoints=checkpoints)
    if orders["output"]:
        with jsonio.replacing(Path(orders["output"])) as file:
            np.savez(file, **result.tables)  # type: ignore[arg-type]
    _tell(
        {
            "schedule": result.schedule.kind,
            "num_ranks": result.schedule.num_ranks,
            "num_records": len(result.records),
            "losses": list(result.losses),
            "seconds": result.seconds,
            "is_compiled": result.is_compiled,
            "why_not_compiled": result.why_not_compiled,
            "ranks": [dataclasses.asdict(times) for times in result.times],
            "proof": str(result.proof),
        }
    )


def _tell(value: dict[str, Any]) -> None:
    # Prints of the user's code go to stderr (see `user_code`), so these lines go to the real output.
    sys.__stdout__.writelines(f"{line}\n" for line in report_lines(value))  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
