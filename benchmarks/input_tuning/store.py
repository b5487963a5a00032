"""A file server for a host of a testbed, limited only by the host's link: `store.py FOLDER PORT`, until it is ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.input_tuning.workloads import limited_server

UNLIMITED = 1e12

if __name__ == "__main__":
    with limited_server(Path(sys.argv[1]), host="0.0.0.0", port=int(sys.argv[2]), rate=UNLIMITED):  # noqa: S104 - the testbed is closed
        signal.pause()
