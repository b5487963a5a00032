"""What ranks are told to do in the tests of devices.

`python device_cases.py FILE` tries NCCL's collectives on a GPU, among one rank, with a store in that file.
"""

import datetime as dt
import itertools
import sys
from typing import Any

import torch
import torch.distributed as dist

from autosync.plan.expansion import chunk_bounds
from autosync.runtime.wire.links import Links, base_store, session_name
from autosync.runtime.wire.native_collectives import run_native, run_native_content

SIZES = (0, 1, 2, 3, 4, 7, 8, 33)
DTYPES = (torch.float64, torch.float32, torch.uint8)
CONTENT_SIZES = ((0, 0, 0, 0), (5, 0, 17, 16), (1, 2, 3, 4), (0, 0, 0, 40))
LIMIT = dt.timedelta(seconds=60)


def numbers(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return (torch.arange(size, device=device) * 3 + 7 * rank + 1).remainder(31).to(dtype)


def wrong_buffers(group: Any, device: torch.device) -> list[str]:
    """What is wrong with a group's collectives of buffers."""
    rank, num_ranks = group.rank(), group.size()
    found = []
    for size, dtype in itertools.product(SIZES, DTYPES):
        everyones = [numbers(other, size, dtype, device) for other in range(num_ranks)]
        total = torch.stack(everyones).sum(0).to(dtype)
        bounds = chunk_bounds(size, num_ranks)
        owned = torch.cat([one[bounds[i] : bounds[i + 1]] for i, one in enumerate(everyones)])
        everything = slice(0, size)
        expected: dict[Any, tuple[slice, torch.Tensor]] = {
            "all_reduce": (everything, total),
            "reduce": (everything if rank == 0 else slice(0), total),
            "broadcast": (everything, everyones[0]),
            "reduce_scatter": (slice(bounds[rank], bounds[rank + 1]), total),
            "all_gather": (everything, owned),
        }
        for collective, (where, values) in expected.items():
            # As a part of something larger, at whatever place.
            whole = torch.full((size + 3,), 99, dtype=dtype, device=device)
            buffer = whole[1 : size + 1]
            buffer.copy_(everyones[rank])
            run_native(collective, group, buffer)
            if not torch.equal(buffer[where], values[where]):
                found.append(f"{collective} of {size} {dtype}: {buffer.tolist()}, not {values.tolist()} at {where}")
            if whole[0] != 99 or (whole[size + 1 :] != 99).any():
                found.append(f"{collective} of {size} {dtype} wrote elsewhere")
    return found


def wrong_contents(group: Any, device: torch.device) -> list[str]:
    """What is wrong with a group's collectives of contents."""
    rank, num_ranks = group.rank(), group.size()
    found = []
    for sizes in CONTENT_SIZES:
        everyones = [numbers(other, sizes[other], torch.uint8, device) for other in range(num_ranks)]
        nothing = everyones[0].new_empty(0)
        expected: dict[Any, list[torch.Tensor]] = {
            "all_gather_v": everyones,
            "gather_v": everyones if rank == 0 else [],
            "broadcast": [everyones[0], *[nothing] * (num_ranks - 1)],
        }
        for collective, values in expected.items():
            brings_nothing = collective == "broadcast" and rank > 0
            brought = torch.empty(0, dtype=torch.uint8) if brings_nothing else everyones[rank]
            got = run_native_content(collective, group, brought, device)
            if len(got) != len(values) or not all(map(torch.equal, got, values)):
                found.append(f"{collective} of {sizes}: {got}")
            if any(one.data_ptr() % 8 for one in got if len(one)):
                found.append(f"{collective} of {sizes}: not where numbers can be read")
    return found


def native_collectives() -> list[str]:
    """What is wrong with collectives as on NCCL, which gloo carries out; what torch calls such a group."""
    everyone = tuple(range(dist.get_world_size()))
    store = dist.PrefixStore(session_name(everyone) + "/", base_store())  # type: ignore[attr-defined]
    links = Links(store, rank=dist.get_rank(), num_ranks=len(everyone), timeout=LIMIT)
    links.make_native([(everyone, 0)])
    group, device = links.native(everyone, 0), torch.device("cpu")
    found = [*wrong_buffers(group, device), *wrong_contents(group, device), group.name()]
    links.close()
    return found


def main(file: str) -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    store = dist.FileStore(file, 1)  # type: ignore[attr-defined]
    links = Links(store, rank=0, num_ranks=1, timeout=LIMIT, nccl_device=device)
    # Plans have no transfers among one rank, so links make no such group by themselves.
    group = links._connect_nccl(device, "alone", (0,))
    # The current stream waits, as the engine's does; what is compared here waits for it.
    with torch.cuda.stream(torch.cuda.Stream(device)):
        found = [*wrong_buffers(group, device), *wrong_contents(group, device), group.name()]
    group.shutdown()
    links.close()
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1])
