"""The serial program, which runs a loop in any order of records. Results of schedules are compared with its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.passes import RecordPass, record_pass


def run_serial(
    loop: SerialLoop,
    records: Records,
    tables: Tables,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    num_epochs: int = 1,
    way: RecordPass | None = None,
) -> None:
    """Run all records `num_epochs` times, in `order` or in their own. Tables and records are changed in place."""
    made = way or record_pass(loop, records.dtype, compiled=False)
    taken = records if order is None else records[np.asarray(order, dtype=np.int64)]
    for _ in range(num_epochs):
        made.run(taken, tables)
    if order is not None:
        records[np.asarray(order, dtype=np.int64)] = taken
