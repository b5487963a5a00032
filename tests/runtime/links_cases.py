"""What each rank does for `test_links.py`."""

import itertools
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from wire_rank import LIMIT, Here, in_threads

from autosync.errors import OperationError
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links, base_store, session_name
from autosync.runtime.wire.transfer_pieces import compile_pieces


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def sockets() -> int:
    files = Path("/proc/self/fd").iterdir()
    return sum(str(file.readlink()).startswith("socket:") for file in files if file.is_symlink())


def messages_keep_the_order_of_their_tag(here: Here) -> Any:
    links = here.links("order")
    right, left = (here.rank + 1) % here.num_ranks, (here.rank - 1) % here.num_ranks
    sends = [
        links.send(torch.full((3,), float(10 * tag + n)), right, tag) for n, tag in itertools.product(range(3), (5, 6))
    ]
    arriving = {(tag, n): torch.zeros(3) for tag, n in itertools.product((6, 5), range(3))}
    receives = [links.receive(place, left, tag) for (tag, _), place in arriving.items()]
    for work in (*receives, *sends):
        work.wait()
    links.close()
    return {f"{tag}.{n}": place[0].item() for (tag, n), place in arriving.items()}


def native_groups_of_some_members(here: Here) -> Any:
    links = here.links("natives")
    links.make_native([((0, 1, 2, 3), 0), ((0, 1, 2, 3), 1), ((3, 1), 1), ((2,), 0)])
    sums = {}
    for members, lane in [((0, 1, 2, 3), 0), ((3, 1), 1), ((0, 1, 2, 3), 1)]:
        if here.rank in members:
            tensor = torch.tensor([float(here.rank)])
            links.native(members, lane).allreduce([tensor]).wait()
            sums[f"{members}"] = tensor.item()
    links.close()
    return sums


def groups_are_made_when_all_ranks_have_made_theirs(here: Here) -> Any:
    links = here.links("meeting")
    time.sleep(0.1 * here.rank)
    # What a rank writes before it makes its groups, every other has once its own are made.
    here.store.set(f"makes {here.rank}", "yes")
    links.make_native([((0, 1), 0)])
    have_begun = here.store.check([f"makes {rank}" for rank in here.everyone])
    links.close()
    return have_begun


def close_gives_everything_back(here: Here) -> Any:
    before = (threads(), sockets())
    for number in range(3):
        links = here.links(f"close {number}")
        links.make_native([(here.everyone, 0), (here.everyone, 1)])
        tensor = torch.ones(1)
        links.native(here.everyone, 0).allreduce([tensor]).wait()
        links.close()
        links.close()
    try:
        links.send(tensor, 0, 0)
    except OperationError as error:
        # A thread that was joined may be on its way out still: now, and when it was counted before.
        deadline = time.monotonic() + 5
        while (threads() > before[0] or sockets() > before[1]) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [max(0, threads() - before[0]), max(0, sockets() - before[1]), str(error)]
    return "sent on what is closed"


def sessions_have_names_of_their_own(here: Here) -> Any:
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("user", here.store), rank=here.rank, world_size=here.num_ranks, timeout=LIMIT
    )
    pair = dist.new_group([1, 3])
    names = [session_name(here.everyone), session_name(here.everyone), session_name((1, 3))]
    stores = [type(base_store()).__name__, base_store() == base_store(dist.group.WORLD)]
    if here.rank in (1, 3):
        stores.append(type(base_store(pair)).__name__)
        links = Links(
            dist.PrefixStore(names[2], base_store(pair)), rank=(1, 3).index(here.rank), num_ranks=2, timeout=LIMIT
        )
        Exchange(links, Flow()).run(
            compile_pieces("all_reduce", "ring", num_members=2, position=links.rank, num_elements=2, item_bytes=4),
            summed := torch.ones(2),
            members=(0, 1),
            tag=1,
            priority=0,
        )
        links.close()
        stores.append(summed.tolist())
    dist.destroy_process_group()
    return [names, stores]


def abort_ends_all_waits(here: Here) -> Any:
    links = here.links("abort")
    links.make_native([(here.everyone, 0)])
    errors = []

    def message() -> None:
        place = torch.zeros(1)
        try:
            links.receive(place, (here.rank + 1) % here.num_ranks, 1).wait()
        except RuntimeError:
            errors.append("message")
            links.abort()

    def collective() -> None:
        try:
            links.native(here.everyone, 0).allreduce([torch.ones(1)]).wait()
        except RuntimeError:
            errors.append("collective")
            links.abort()

    # Rank 0 takes part in nothing and ends it all.
    works = [message] if here.rank == 0 else [message, collective]
    begin = time.monotonic()
    in_threads(*works, *([links.abort] if here.rank == 0 else []))
    took = time.monotonic() - begin
    links.close()
    return [sorted(errors), took < LIMIT.total_seconds() / 2]
