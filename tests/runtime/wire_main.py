"""The ranks of a test of connections: `python wire_main.py FOLDER NUM_RANKS CASE ...` runs the cases on each of them.

The ranks are forks of this process, for to import torch takes each of them seconds. A case is a function of this file
that is given the rank's connections; what it returned or raised goes to FOLDER/answers-RANK.json.
"""

import datetime as dt
import itertools
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.expansion import chunk_bounds
from autosync.runtime.wire.exchange import Coming, Exchange, Flow, TransferId
from autosync.runtime.wire.links import Links, base_store, session_name
from autosync.runtime.wire.native_collectives import run_native
from autosync.runtime.wire.transfer_pieces import compile_pieces

# Longer than any test takes where all goes well. The cases in which a peer fails have limits of their own.
LIMIT = dt.timedelta(seconds=30)
SHORT = dt.timedelta(seconds=2)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.uint8)
SYMMETRIC = ("ring", "tree", "halving_doubling")


class Here:
    """Where a case runs: on this rank, with the store that all ranks share."""

    def __init__(self, store: Any, rank: int, num_ranks: int) -> None:
        self.store = store
        self.rank = rank
        self.num_ranks = num_ranks
        self.everyone = tuple(range(num_ranks))

    def links(self, name: str, timeout: dt.timedelta = LIMIT) -> Links:
        hosts = [f"host-{rank}" for rank in self.everyone]
        store = dist.PrefixStore(name, self.store)
        return Links(store, rank=self.rank, num_ranks=self.num_ranks, timeout=timeout, hosts=hosts)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def sockets() -> int:
    files = Path("/proc/self/fd").iterdir()
    return sum(str(file.readlink()).startswith("socket:") for file in files if file.is_symlink())


def in_threads(*works: Callable[[], None]) -> None:
    """Run all at once; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)

    running = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def values(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, which every type adds up exactly, in any order."""
    return ((torch.arange(size) * (rank + 2) + salt) % 13).to(dtype)


def total(num_ranks: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    return sum((values(rank, size, dtype, salt) for rank in range(1, num_ranks)), values(0, size, dtype, salt))


# ---------------------------------------------------------------------------------------------------------- links


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


# ------------------------------------------------------------------------------------------------------- exchange


def every_collective(here: Here) -> Any:
    """All algorithms, types and awkward sizes; a wrong result is told."""
    links = here.links("every")
    exchange = Exchange(links, Flow())
    n, wrong, tag = here.num_ranks, [], 0
    cases = itertools.product(DTYPES, (0, 1, n - 1, 1001, 70_001), SYMMETRIC)
    for dtype, size, algorithm in cases:
        tag += 1
        buffer = values(here.rank, size, dtype)
        item = buffer.element_size()
        pieces = compile_pieces(
            "all_reduce", algorithm, num_members=n, position=here.rank, num_elements=size, item_bytes=item
        )
        exchange.run(pieces, buffer, members=here.everyone, tag=tag, priority=0)
        if not torch.equal(buffer, total(n, size, dtype)):
            wrong.append(f"all_reduce {algorithm} {dtype} {size}")
    for collective, algorithm in [("reduce", "star"), ("reduce", "tree"), ("reduce_scatter", "ring")]:
        tag += 1
        buffer = values(here.rank, 70_001, torch.float32)
        pieces = compile_pieces(
            collective, algorithm, num_members=n, position=here.rank, num_elements=70_001, item_bytes=4
        )
        exchange.run(pieces, buffer, members=here.everyone, tag=tag, priority=0)
        bounds = chunk_bounds(70_001, n)
        mine = slice(bounds[here.rank], bounds[here.rank + 1]) if collective == "reduce_scatter" else slice(None)
        has_result = collective == "reduce_scatter" or here.rank == 0
        if has_result and not torch.equal(buffer[mine], total(n, 70_001, torch.float32)[mine]):
            wrong.append(f"{collective} {algorithm}")
    links.close()
    return wrong


def members_in_another_order(here: Here) -> Any:
    """The root is the first member, whatever its rank; a rank that is no member has no part."""
    links = here.links("order of members")
    members = (2, 0, 3)
    buffer = torch.full((50_000,), float(here.rank))
    if here.rank in members:
        pieces = compile_pieces(
            "broadcast",
            "star",
            num_members=3,
            position=members.index(here.rank),
            num_elements=50_000,
            item_bytes=4,
        )
        Exchange(links, Flow()).run(pieces, buffer, members=members, tag=1, priority=0)
    links.close()
    return [buffer.min().item(), buffer.max().item()]


def lanes_at_once(here: Here) -> Any:
    """Four lanes of different priorities, in threads, some transfers after one another under one tag."""
    links, flow, n = here.links("lanes"), Flow(), here.num_ranks
    links.make_native([(here.everyone, 4)])
    wrong: list[str] = []

    def lane(number: int, algorithm: str, size: int) -> Callable[[], None]:
        def work() -> None:
            exchange = Exchange(links, flow)
            pieces = compile_pieces(
                "all_reduce", algorithm, num_members=n, position=here.rank, num_elements=size, item_bytes=4
            )
            for time_ in range(5):
                buffer = values(here.rank, size, torch.float32, salt=number + time_)
                exchange.run(pieces, buffer, members=here.everyone, tag=number, priority=number)
                if not torch.equal(buffer, total(n, size, torch.float32, salt=number + time_)):
                    wrong.append(f"lane {number}, time {time_}")

        return work

    def native() -> None:
        for _ in range(5):
            tensor = torch.ones(30_001)
            links.native(here.everyone, 4).allreduce([tensor]).wait()
            if not torch.equal(tensor, torch.full((30_001,), float(n))):
                wrong.append("native")

    in_threads(
        lane(0, "ring", 999),
        lane(1, "ring", 300_007),
        lane(2, "tree", 100_003),
        lane(3, "halving_doubling", 50_001),
        native,
    )
    links.close()
    return wrong


def a_lane_asks_for_what_comes_next(here: Here) -> Any:
    """Forty transfers one after another, the next ones told at times that are each rank's own."""
    links, same, own = here.links("coming"), random.Random(7), random.Random(here.rank)
    exchange = Exchange(links, Flow())
    coming, expected, told, n = [], [], 0, here.num_ranks
    for number in range(40):
        collective, algorithm = same.choice(
            [("all_reduce", "ring"), ("all_reduce", "tree"), ("reduce", "star"), ("broadcast", "star")]
        )
        size, first = same.choice((1, 999, 60_001, 400_003)), same.randrange(n)
        members = tuple((first + place) % n for place in range(n))
        pieces = compile_pieces(
            collective,
            algorithm,
            num_members=n,
            position=members.index(here.rank),
            num_elements=size,
            item_bytes=4,
        )
        buffer = values(here.rank, size, torch.float32, salt=number)
        coming.append(Coming(pieces, buffer, members, number, 0))
        if collective == "broadcast":
            expected.append(values(first, size, torch.float32, salt=number))
        else:
            has_sum = collective == "all_reduce" or here.rank == first
            expected.append(total(n, size, torch.float32, salt=number) if has_sum else buffer.clone())
    place = 0

    def following() -> Coming | None:
        nonlocal place, told
        if place == len(coming) or own.random() < 0.3:
            return None
        place, told = place + 1, told + 1
        return coming[place - 1]

    for number, (pieces, buffer, members, tag, priority) in enumerate(coming):
        place = max(place, number + 1)
        exchange.run(pieces, buffer, members=members, tag=tag, priority=priority, following=following)
    links.close()
    wrong = [one.tag for one, right in zip(coming, expected, strict=True) if not torch.equal(one.buffer, right)]
    return [wrong, told]


def contributions_of_any_length(here: Here) -> Any:
    links = here.links("lengths")
    exchange = Exchange(links, Flow())
    lengths = [7, 0, 200_003, 1]
    expected = [values(rank, length, torch.float32) for rank, length in enumerate(lengths)]
    ours = expected[here.rank]
    everyone = exchange.all_gather_v(ours, members=here.everyone, tag=1, priority=0)
    rooted = exchange.gather_v(ours, members=(2, 0, 1, 3), tag=2, priority=0)
    nothing = exchange.all_gather_v(ours[:0], members=here.everyone, tag=3, priority=0)
    right_order = [expected[rank] for rank in (2, 0, 1, 3)] if here.rank == 2 else []
    links.close()
    return [
        all(map(torch.equal, everyone, expected)),
        len(rooted) == len(right_order) and all(map(torch.equal, rooted, right_order)),
        [len(one) for one in nothing],
    ]


def checks_pass_where_all_is_well(here: Here) -> Any:
    links = here.links("well")
    exchange = Exchange(links, Flow(), checks=True)
    results = []
    for sequence, (collective, algorithm) in enumerate([("all_reduce", "ring"), ("reduce", "star")]):
        pieces = compile_pieces(
            collective, algorithm, num_members=here.num_ranks, position=here.rank, num_elements=9, item_bytes=4
        )
        buffer = torch.ones(9)
        identity = TransferId(operation=sequence + 5, iteration=0, sequence=sequence, lane=1)
        exchange.run(pieces, buffer, members=here.everyone, tag=sequence, priority=0, identity=identity)
        results.append(buffer[0].item())
    identity = TransferId(operation=8, iteration=0, sequence=2, lane=1)
    lengths = exchange.all_gather_v(torch.ones(here.rank), members=here.everyone, tag=3, priority=0, identity=identity)
    links.close()
    return [results, [len(one) for one in lengths]]


def checks_find_a_misordered_transfer(here: Here) -> Any:
    """Rank 2 has two transfers of one size the other way round, under one tag: unchecked, gloo mixes them up."""
    answers = []
    for checks in (False, True):
        links = here.links(f"misordered {checks}", SHORT)
        exchange = Exchange(links, Flow(), checks=checks)
        pieces = compile_pieces(
            "all_reduce", "ring", num_members=here.num_ranks, position=here.rank, num_elements=8, item_bytes=4
        )
        try:
            for sequence, operation in enumerate((4, 3) if here.rank == 2 else (3, 4)):
                buffer = torch.full((8,), float(operation))
                identity = TransferId(operation=operation, iteration=7, sequence=sequence, lane=0)
                exchange.run(pieces, buffer, members=here.everyone, tag=1, priority=0, identity=identity)
            answers.append(buffer[0].item())
        except OperationError as error:
            answers.append(str(error))
            links.abort()
        links.close()
    return answers


def a_dead_peer_is_an_error(here: Here) -> Any:
    """The last rank ends in the middle of a transfer: must be the last case."""
    links = here.links("dead", SHORT)
    links.make_native([(here.everyone, 0)])
    # All have all connections before one goes.
    links.native(here.everyone, 0).barrier().wait()
    if here.rank == here.num_ranks - 1:
        os._exit(0)
    exchange, errors = Exchange(links, Flow()), []
    pieces = compile_pieces(
        "all_reduce", "ring", num_members=here.num_ranks, position=here.rank, num_elements=500_000, item_bytes=4
    )
    begin = time.monotonic()
    try:
        exchange.run(pieces, torch.ones(500_000), members=here.everyone, tag=1, priority=0)
    except OperationError as error:
        errors.append(str(error))
        links.abort()
    took = time.monotonic() - begin
    links.close()
    return [errors, took < 2 * SHORT.total_seconds()]


# ---------------------------------------------------------------------------------------------------- collectives


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
        run_native("all_reduce", links.native(here.everyone, 0), torch.ones(500_000))
    except OperationError as error:
        links.close()
        return str(error)
    return "nothing was noticed"


# ----------------------------------------------------------------------------------------------------------- ranks


def run_rank(folder: Path, rank: int, num_ranks: int, cases: list[str]) -> None:
    here = Here(dist.FileStore(str(folder / "rendezvous"), num_ranks), rank, num_ranks)
    answers: list[Any] = []
    for name in cases:
        try:
            answer = globals()[name](here)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        answers.append(answer)
        (folder / f"answers-{rank}.json").write_text(json.dumps(answers))


def main(folder: Path, num_ranks: int, cases: list[str]) -> None:
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            try:
                # Before the fork it would leave a pool of threads behind that is made anew by whoever comes first.
                torch.set_num_threads(1)
                run_rank(folder, rank, num_ranks, cases)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
