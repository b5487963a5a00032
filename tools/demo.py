"""The program behind `make demo`: tune a shipped model in the current folder, and print the path of the report.

If this machine can emulate a cluster, the demo tunes a small GPT on two hosts with slow links. Compute is replayed, so
two processors suffice. Otherwise the demo prints the reason and tunes a small task on this machine alone.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from autosync import testbed
from autosync.cli import main
from autosync.errors import AutosyncError
from autosync.search.study_folder import StudyFolder
from autosync.specs.cluster_file import load_cluster

ROOT = Path(__file__).resolve().parents[1]
STUDY = "demo"
CLUSTER = "2-hosts-2-ranks"
COMMON = ("--trials", "8", "--effort", "quick", "--study", STUDY, "-o", "best.yaml")
EMULATED = ("tune", "gpt_mini", "--cluster", CLUSTER, *COMMON)
LOCAL = ("tune", str(ROOT / "examples" / "transformer.py"), "--cluster", "local-2", *COMMON)


def demo() -> int:
    """Run the demo, and return its exit code."""
    reason = why_not_emulated()
    if reason is not None:
        print(f"No cluster can be emulated here: {reason}.")
        print("So the demo tunes on this machine alone, where there is no network on which to save time.\n")
    code = _tune(EMULATED if reason is None else LOCAL)
    if code == 0:
        page = StudyFolder(Path("autosync-studies") / STUDY).report
        print(f"\nThe report, to open in a browser: {page.resolve()}")
    return code


def why_not_emulated() -> str | None:
    """Return why this machine cannot emulate the demo's cluster; None if it can, which is tried."""
    try:
        with testbed.up(load_cluster(CLUSTER)):
            return None
    except AutosyncError as error:
        return str(error)


def _tune(command: Sequence[str]) -> int:
    print(f"$ {shlex.join(['autosync', *command])}", flush=True)
    return main.run(command)


if __name__ == "__main__":
    sys.exit(demo())
