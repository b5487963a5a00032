"""The plan of every synchroniser and codec, written out (see `written_plans`)."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from autosync.plan.types import Plan
from autosync.specs.model import Variable
from autosync.strategy.codecs import Cast, Int8, PowerSGD, TopK
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from tests.helpers.example_plans import WEIGHT, plan_of
from tests.helpers.written_plans import written

TABLE = Variable(name="t", shape=(10, 3), kind="embedding", use=0, ready=0, touched_rows=2.5, max_touched_rows=4)


PLANS: dict[str, tuple[Plan, str]] = {
    "all-reduce": (
        plan_of(AllReduce(topology="ring"), 1, 1, 1),
        """
        0 all_reduce ring 012: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 average 012: grad[0:24] -> grad[0:24], 24 after 0
        2 update 012: grad[0:24] -> param[0:24], 24 after 1, step
        backward_returns after 1
        step_returns after 2
        """,
    ),
    "all-reduce, forward": (
        plan_of(AllReduce(), 1, 1, overlap="forward"),
        """
        0 all_reduce native 01: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 average 01: grad[0:24] -> grad[0:24], 24 after 0
        2 update 01: grad[0:24] -> param[0:24], 24 after 1, step
        before_use 0 after 2-1
        """,
    ),
    "one worker": (
        plan_of(AllReduce(), 1),
        """
        0 update 0: grad[0:24] -> param[0:24], 24 after grad 0, step
        backward_returns after nothing
        step_returns after 0
        """,
    ),
    "all-reduce in slices": (
        plan_of(AllReduce(), 1, 1, variable=replace(WEIGHT, shape=(60, 6)), slice_bytes=1024),
        """
        0 all_reduce native 01: grad[0:256], 256 x 4 B, lane 0 after grad 0
        1 average 01: grad[0:256] -> grad[0:256], 256 after 0
        2 all_reduce native 01: grad[256:360], 104 x 4 B, lane 0 after grad 0
        3 average 01: grad[256:360] -> grad[256:360], 104 after 2
        4 update 01: grad[0:256] + grad[256:360] -> param[0:256] + param[256:360], 360 after 1, 3, step
        backward_returns after 1, 3
        step_returns after 4
        """,
    ),
    "all-reduce, clipped": (
        plan_of(AllReduce(), 1, 1, clip_norm=1.0),
        """
        0 all_reduce native 01: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 average 01: grad[0:24] -> grad[0:24], 24 after 0
        2 norm 01: grad[0:24] -> norm[0:1] float64, 24 after 1
        3 update 01: grad[0:24] -> param[0:24], 24 after 1, 2, step
        backward_returns after 1
        step_returns after 3
        """,
    ),
    "hierarchical, equal nodes": (
        plan_of(AllReduce(hierarchical=True), 2, 2),
        """
        0 reduce_scatter native 01 23: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 all_reduce native 02 13 within 01 23: grad[0:24], 24 x 4 B, lane 1 after 0
        2 all_gather native 01 23: grad[0:24], 24 x 4 B, lane 2 after 1
        3 average 0123: grad[0:24] -> grad[0:24], 24 after 2
        4 update 0123: grad[0:24] -> param[0:24], 24 after 3, step
        backward_returns after 3
        step_returns after 4
        """,
    ),
    "hierarchical, unequal nodes": (
        plan_of(AllReduce(hierarchical=True, topology="ring"), 2, 1),
        """
        0 reduce tree 01: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 all_reduce ring 02: grad[0:24], 24 x 4 B, lane 1 after grad 0, 0
        2 broadcast tree 01: grad[0:24], 24 x 4 B, lane 2 after grad 0, 0, 1
        3 average 012: grad[0:24] -> grad[0:24], 24 after 0, 1, 2
        4 update 012: grad[0:24] -> param[0:24], 24 after 3, step
        backward_returns after 3
        step_returns after 4
        """,
    ),
    "server apart": (
        plan_of(ParameterServer(server="n2"), 1, 1, 0),
        """
        0 reduce star 201: grad[0:24], 24 x 4 B, lane 1 after grad 0
        1 average 2: grad[0:24] -> grad[0:24], 24 after 0
        2 update 2: grad[0:24] -> param[0:24], 24 after 1, step
        3 broadcast star 201: param[0:24], 24 x 4 B, lane 2 after 2, step
        backward_returns after nothing
        step_returns after 2, 3
        """,
    ),
    "server, forward": (
        plan_of(ParameterServer(server="n1"), 1, 1, overlap="forward"),
        """
        0 reduce star 10: grad[0:24], 24 x 4 B, lane 1 after grad 0
        1 average 1: grad[0:24] -> grad[0:24], 24 after 0
        2 update 1: grad[0:24] -> param[0:24], 24 after 1, step
        3 broadcast star 10: param[0:24], 24 x 4 B, lane 2 after 2, step
        before_use 0 after 2-1, 3-1
        """,
    ),
    "server, clipped": (
        plan_of(ParameterServer(server="n1"), 1, 1, clip_norm=1.0),
        """
        0 reduce star 10: grad[0:24], 24 x 4 B, lane 1 after grad 0
        1 average 1: grad[0:24] -> grad[0:24], 24 after 0
        2 norm 1: grad[0:24] -> norm[0:1] float64, 24 after 1
        3 all_reduce native 01: norm[0:1] float64, 1 x 8 B, lane 1 after 2
        4 update 1: grad[0:24] -> param[0:24], 24 after 1, 3, step
        5 broadcast star 10: param[0:24], 24 x 4 B, lane 2 after 4, step
        backward_returns after nothing
        step_returns after 4, 5
        """,
    ),
    "server, proxies": (
        plan_of(ParameterServer(server="n2", local_proxy=True), 2, 1, 0),
        """
        0 reduce star 01: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 reduce star 302: grad[0:24], 24 x 4 B, lane 1 after grad 0, 0
        2 average 3: grad[0:24] -> grad[0:24], 24 after 0, 1
        3 update 3: grad[0:24] -> param[0:24], 24 after 2, step
        4 broadcast star 302: param[0:24], 24 x 4 B, lane 2 after 3, step
        5 broadcast star 01: param[0:24], 24 x 4 B, lane 3 after 3, step, 4
        backward_returns after nothing
        step_returns after 3, 4, 5
        """,
    ),
    "server, workers update": (
        plan_of(ParameterServer(server="n1", update="worker"), 1, 1),
        """
        0 reduce star 10: grad[0:24], 24 x 4 B, lane 1 after grad 0
        1 average 1: grad[0:24] -> grad[0:24], 24 after 0
        2 broadcast star 10: grad[0:24], 24 x 4 B, lane 2 after 0, 1
        3 update 01: grad[0:24] -> param[0:24], 24 after 1, 2, step
        backward_returns after 1, 2
        step_returns after 3
        """,
    ),
    "server, workers update, cast": (
        plan_of(ParameterServer(server="n1", update="worker"), 1, 1, codec=Cast()),
        """
        0 encode 01: grad[0:24] -> encoded[0:24] bfloat16, 24 after grad 0
        1 reduce star 10: encoded[0:24] bfloat16, 24 x 2 B, lane 1 after 0
        2 broadcast star 10: encoded[0:24] bfloat16, 24 x 2 B, lane 2 after 1
        3 decode 01: encoded[0:24] bfloat16 -> grad[0:24], 24 after 1, 2
        4 update 01: grad[0:24] -> param[0:24], 24 after 3, step
        backward_returns after 3
        step_returns after 4
        """,
    ),
    "server, int8": (
        plan_of(ParameterServer(server="n1"), 1, 1, codec=Int8(block=10)),
        """
        0 encode 01: grad[0:24] -> encoded[0:24] uint8, 24 after grad 0
        1 gather_v star 10: encoded[0:24] uint8, 36 x 1 B, lane 1 after 0
        2 decode 1: encoded[0:24] uint8 -> grad[0:24], 48 after 1
        3 update 1: grad[0:24] -> param[0:24], 24 after 2, step
        4 broadcast star 10: param[0:24], 24 x 4 B, lane 2 after 3, step
        backward_returns after nothing
        step_returns after 3, 4
        """,
    ),
    "server, stale": (
        plan_of(ParameterServer(server="n1", staleness=2), 1, 1, overlap="forward"),
        """
        0 reduce star 10: grad[0:24], 24 x 4 B, lane 1 after grad 0
        1 average 1: grad[0:24] -> grad[0:24], 24 after 0
        2 update 1: grad[0:24] -> master[0:24], 24 after 1, step, 3-1
        3 copy 1: master[0:24] -> incoming[0:24], 24 after 2
        4 broadcast star 10: incoming[0:24], 24 x 4 B, lane 2 after 3
        5 take 01: incoming[0:24] -> param[0:24], 24 after 3-2, 4-2, step
        before_use 0 after 5-1
        """,
    ),
    "server, stale, int8 with feedback": (
        plan_of(ParameterServer(server="n1", staleness=1), 1, 1, codec=Int8(error_feedback=True)),
        """
        0 encode 01: grad[0:24] -> encoded[0:24] uint8, 24 after grad 0, 0-1
        1 gather_v star 10: encoded[0:24] uint8, 28 x 1 B, lane 1 after 0
        2 decode 1: encoded[0:24] uint8 -> grad[0:24], 48 after 1
        3 update 1: grad[0:24] -> master[0:24], 24 after 2, step, 4-1
        4 copy 1: master[0:24] -> incoming[0:24], 24 after 3
        5 broadcast star 10: incoming[0:24], 24 x 4 B, lane 2 after 4
        6 take 01: incoming[0:24] -> param[0:24], 24 after 4-1, 5-1, step
        backward_returns after nothing
        step_returns after 6
        """,
    ),
    "rows at server": (
        plan_of(ParameterServer(server="n2", sparse=True), 1, 1, 0, variable=TABLE),
        """
        0 gather_v star 201: rows[0:30], 40 x 1 B (at most 80), lane 1 after grad 0
        1 merge_rows 2: rows[0:30] -> rows[0:30], 12 after 0
        2 update 2: rows[0:30] -> param[0:30], 12 after 1, step
        3 read_rows 2: rows[0:30] + param[0:30] -> new_rows[0:30], 12 after 2
        4 broadcast star 201: new_rows[0:30], 80 x 1 B (at most 160), lane 2 after 3, step
        5 write_rows 0 1: new_rows[0:30] -> param[0:30], 12 after 4
        backward_returns after nothing
        step_returns after 2, 5
        """,
    ),
    "rows at server, workers update": (
        plan_of(ParameterServer(server="n0", sparse=True, update="worker"), 1, 1, variable=TABLE),
        """
        0 gather_v star 01: rows[0:30], 40 x 1 B (at most 80), lane 1 after grad 0
        1 merge_rows 0: rows[0:30] -> rows[0:30], 12 after 0
        2 broadcast star 01: rows[0:30], 80 x 1 B (at most 160), lane 2 after 0, 1
        3 update 01: rows[0:30] -> param[0:30], 12 after 2, 1, step
        backward_returns after 2, 1
        step_returns after 3
        """,
    ),
    "rows at server, stale": (
        plan_of(ParameterServer(server="n0", sparse=True, staleness=2), 1, 1, variable=TABLE),
        """
        0 gather_v star 01: rows[0:30], 40 x 1 B (at most 80), lane 1 after grad 0
        1 merge_rows 0: rows[0:30] -> rows[0:30], 12 after 0
        2 update 0: rows[0:30] -> master[0:30], 12 after 1, step, 3-1
        3 read_rows 0: rows[0:30] + master[0:30] -> new_rows[0:30], 12 after 2
        4 broadcast star 01: new_rows[0:30], 80 x 1 B (at most 160), lane 2 after 3
        5 write_rows 01: new_rows[0:30] -> param[0:30], 12 after 4-2, step
        backward_returns after nothing
        step_returns after 5
        """,
    ),
    "sharded": (
        plan_of(Sharded(), 1, 1, 1, overlap="forward"),
        """
        0 reduce_scatter native 012: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 average (shard) 012: grad[0:24] -> grad[0:24], 24 after 0
        2 update (shard) 012: grad[0:24] -> param[0:24], 24 after 1, step
        3 all_gather native 012: param[0:24], 24 x 4 B, lane 1 after 2
        before_use 0 after 3-1
        """,
    ),
    "sharded, cast": (
        plan_of(Sharded(topology="ring"), 1, 1, codec=Cast(dtype="float16")),
        """
        0 encode 01: grad[0:24] -> encoded[0:24] float16, 24 after grad 0
        1 reduce_scatter ring 01: encoded[0:24] float16, 24 x 2 B, lane 0 after 0
        2 decode (shard) 01: encoded[0:24] float16 -> grad[0:24], 24 after 1
        3 update (shard) 01: grad[0:24] -> param[0:24], 24 after 2, step
        4 all_gather ring 01: param[0:24], 24 x 4 B, lane 1 after 3
        backward_returns after nothing
        step_returns after 4
        """,
    ),
    "sharded, clipped": (
        plan_of(Sharded(), 1, 1, clip_norm=1.0),
        """
        0 reduce_scatter native 01: grad[0:24], 24 x 4 B, lane 0 after grad 0
        1 average (shard) 01: grad[0:24] -> grad[0:24], 24 after 0
        2 norm (shard) 01: grad[0:24] -> norm[0:1] float64, 24 after 1
        3 all_reduce native 01: norm[0:1] float64, 1 x 8 B, lane 1 after 2
        4 update (shard) 01: grad[0:24] -> param[0:24], 24 after 1, 3, step
        5 all_gather native 01: param[0:24], 24 x 4 B, lane 1 after 4
        backward_returns after nothing
        step_returns after 5
        """,
    ),
    "rows": (
        plan_of(SparseGather(), 1, 1, variable=TABLE),
        """
        0 all_gather_v native 01: rows[0:30], 40 x 1 B (at most 80), lane 0 after grad 0
        1 merge_rows 01: rows[0:30] -> rows[0:30], 12 after 0
        2 update 01: rows[0:30] -> param[0:30], 12 after 1, step
        backward_returns after 1
        step_returns after 2
        """,
    ),
    "factors": (
        plan_of(SufficientFactors(topology="ring"), 1, 1),
        """
        0 all_gather_v ring 01: factors[0:24], 20 x 4 B, lane 0 after grad 0
        1 rebuild 01: factors[0:24] -> grad[0:24], 96 after 0
        2 update 01: grad[0:24] -> param[0:24], 24 after 1, step
        backward_returns after 1
        step_returns after 2
        """,
    ),
    "periodic": (
        plan_of(Periodic(every=4), 1, 1),
        """
        0 update 01: grad[0:24] -> param[0:24], 24 after grad 0, step
        1 all_reduce native 01: param[0:24], 24 x 4 B, lane 0, every 4 after 0
        2 average 01: param[0:24] -> param[0:24], 24, every 4 after 1
        backward_returns after nothing
        step_returns after 0, 2
        """,
    ),
    "periodic, outer, clipped": (
        plan_of(Periodic(every=4, outer=OuterOptimizer()), 1, 1, clip_norm=1.0),
        """
        0 norm 0 1: grad[0:24] -> norm[1:2] float64, 24 after grad 0
        1 update 01: grad[0:24] -> param[0:24], 24 after grad 0, 0, step
        2 all_reduce native 01: param[0:24], 24 x 4 B, lane 0, every 4 after 1
        3 average 01: param[0:24] -> param[0:24], 24, every 4 after 2
        4 outer 01: param[0:24] + anchor[0:24] -> param[0:24] + anchor[0:24], 24, every 4 after 3
        backward_returns after nothing
        step_returns after 1, 4
        """,
    ),
    "cast": (
        plan_of(AllReduce(), 1, 1, codec=Cast()),
        """
        0 encode 01: grad[0:24] -> encoded[0:24] bfloat16, 24 after grad 0
        1 all_reduce native 01: encoded[0:24] bfloat16, 24 x 2 B, lane 0 after 0
        2 decode 01: encoded[0:24] bfloat16 -> grad[0:24], 24 after 1
        3 update 01: grad[0:24] -> param[0:24], 24 after 2, step
        backward_returns after 2
        step_returns after 3
        """,
    ),
    "top-k round a ring": (
        plan_of(AllReduce(topology="ring"), 1, 1, 1, codec=TopK(ratio=0.25)),
        """
        0 encode 012: grad[0:24] -> encoded[0:24] uint8, 24 after grad 0
        1 all_gather_v ring 012: encoded[0:24] uint8, 48 x 1 B, lane 0 after 0
        2 decode 012: encoded[0:24] uint8 -> grad[0:24], 72 after 1
        3 update 012: grad[0:24] -> param[0:24], 24 after 2, step
        backward_returns after 2
        step_returns after 3
        """,
    ),
    "power_sgd": (
        plan_of(AllReduce(), 1, 1, codec=PowerSGD(rank=2)),
        """
        0 encode 01: grad[0:24] -> left[0:8], 48 after grad 0
        1 all_reduce native 01: left[0:8], 8 x 4 B, lane 0 after 0
        2 project 01: grad[0:24] + left[0:8] -> left[0:8] + right[0:12], 48 after 1
        3 all_reduce native 01: right[0:12], 12 x 4 B, lane 1 after 2
        4 decode 01: left[0:8] + right[0:12] -> grad[0:24], 48 after 3
        5 update 01: grad[0:24] -> param[0:24], 24 after 4, step
        backward_returns after 4
        step_returns after 5
        """,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_written_out(name: str) -> None:
    plan, expected = PLANS[name]
    assert written(plan) == textwrap.dedent(expected).strip()
