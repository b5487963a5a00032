"""What each rank does for `test_exchange.py`."""

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from wire_rank import DTYPES, SHORT, Here, in_threads, total, values

from autosync.errors import OperationError
from autosync.plan.expansion import chunk_bounds
from autosync.runtime.wire.exchange import Coming, Exchange, TransferId
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.transfer_pieces import compile_pieces
from tests.helpers.random_trees import random_shape

SYMMETRIC = ("ring", "tree", "halving_doubling")


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


def over_trees(here: Here) -> Any:
    """Random trees and shares, of pieces in waves and of sizes smaller than the number of shares."""
    links, same = here.links("trees"), random.Random(29)
    exchange = Exchange(links, Flow())
    n, wrong = here.num_ranks, []
    for tag, size in enumerate((0, 1, 3, 999, 70_001, 400_003, 1_000_003) * 2):
        shape = random_shape(same, n)
        buffer = values(here.rank, size, torch.float32, salt=tag)
        pieces = compile_pieces("all_reduce", shape, num_members=n, position=here.rank, num_elements=size, item_bytes=4)
        exchange.run(pieces, buffer, members=here.everyone, tag=tag, priority=0)
        if not torch.equal(buffer, total(n, size, torch.float32, salt=tag)):
            wrong.append(f"{size} elements over {shape.shares}")
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
            [
                ("all_reduce", "ring"),
                ("all_reduce", "tree"),
                ("all_reduce", random_shape(same, n)),
                ("reduce", "star"),
                ("broadcast", "star"),
            ]
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
