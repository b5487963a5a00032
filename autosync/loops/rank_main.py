"""The process of one rank: `python -m autosync.loops.rank_main`, started by `run` through a launcher.

Rank 0 reports progress to `run` on its output, in lines of JSON that begin with a mark.
"""

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
from autosync.errors import AutosyncError
from autosync.loops.load import load_loop, naming
from autosync.loops.peers import TorchPeers
from autosync.loops.rank_program import EpochReport, LoopSettings, run_first, run_other

MARK = "autosync-loop: "


def main(arguments: Sequence[str]) -> int:
    """Run this rank. `arguments` are the target, the settings as JSON, and the file for the tables or an empty text."""
    target, settings_text, output = arguments
    try:
        loop = load_loop(target)
        settings = LoopSettings(**json.loads(settings_text))
        with TorchPeers() as peers, naming(target):
            if peers.rank == 0:
                _first(peers, loop, settings, output)
            else:
                run_other(peers, loop)
    except AutosyncError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        # Threads of gloo may still wait for other ranks, and these are ended only when this process is gone.
        os._exit(1)
    return 0


def _first(peers: TorchPeers, loop: Any, settings: LoopSettings, output: str) -> None:
    def told(report: EpochReport) -> None:
        _tell({"epoch": report.number, "seconds": report.seconds, "loss": report.loss})

    result = run_first(peers, loop, settings, told)
    if output:
        with jsonio.replacing(Path(output)) as file:
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
    # Prints of the user's code go to stderr (see `user_code`), so this line goes to the real output.
    sys.__stdout__.write(f"{MARK}{json.dumps(value)}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
