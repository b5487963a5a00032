"""About how many messages a step of a plan has, without listing them: a ring of a thousand ranks has millions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autosync.plan.expansion import num_chunks
from autosync.plan.outline import outline
from autosync.plan.tables import Shape, Tables
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.timeline.native_ring import SEGMENT_BYTES
from autosync.simulators.timeline.transfer_sizes import PIECE_BYTES, WHOLE_BYTES


def num_messages(tables: Tables) -> int:
    """Return about how many messages all ranks send in a step."""
    operations = tables.operations
    sizes = (operations.num_elements * operations.item_bytes).astype(np.float64)
    return sum(
        [
            _of_shape(shape, sizes[operations.shape == number])
            for number, shape in enumerate(tables.shapes)
            if shape.collective is not None
        ]
    )


def _of_shape(shape: Shape, sizes: Floats) -> int:
    """Return the messages of transfers of these bytes."""
    collective, algorithm = shape.collective, shape.algorithm
    assert collective is not None
    assert algorithm is not None
    total = 0.0
    for size, count in Counter(map(len, shape.groups)).items():
        if size == 1:
            continue
        if (collective, algorithm) == ("all_reduce", "native"):
            segments = np.maximum(np.ceil(sizes / SEGMENT_BYTES), 2 * size)
            total += count * size * float((2 * (size - 1) * np.ceil(segments / size)).sum())
            continue
        is_gather = collective in ("gather_v", "all_gather_v")
        moved = sizes if is_gather else sizes / num_chunks(collective, size, algorithm)
        pieces = np.maximum(np.ceil(moved / PIECE_BYTES), np.where(moved > WHOLE_BYTES, 2.0, 1.0))
        total += count * outline(collective, algorithm, size).num_moves * float(pieces.sum())
    return int(total)
