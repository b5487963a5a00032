"""What each rank does for `test_collectives.py`."""

import itertools
import os
from typing import Any

import torch
from wire_rank import DTYPES, SHORT, Here, total, values

from autosync.errors import OperationError
from autosync.runtime.wire.native_collectives import naming, run_native


def native_collectives(here: Here) -> Any:
    links, wrong = here.links("collectives"), []
    members = (2, 3, 0, 1)
    links.make_native([(members, 3)])
    for dtype, size in itertools.product(DTYPES, (0, 1, 70_001)):
        everything = total(here.num_ranks, size, dtype)
        for collective, expected, who in [
            ("all_reduce", everything, members),
            ("reduce", everything, (2,)),
            ("broadcast", values(2, size, dtype), members),
        ]:
            buffer = values(here.rank, size, dtype)
            run_native(collective, links.native(members, 3), buffer)
            if here.rank in who and not torch.equal(buffer, expected):
                wrong.append(f"{collective} {dtype} {size}")
    links.close()
    return wrong


def a_dead_peer_of_a_native_collective(here: Here) -> Any:
    """The last rank ends while the others wait for it: must be the last case."""
    links = here.links("dead native", SHORT)
    links.make_native([(here.everyone, 0)])
    links.native(here.everyone, 0).barrier().wait()
    if here.rank == here.num_ranks - 1:
        os._exit(0)
    try:
        with naming(links, here.everyone):
            run_native("all_reduce", links.native(here.everyone, 0), torch.ones(500_000))
    except OperationError as error:
        links.close()
        return str(error)
    return "nothing was noticed"
