"""Which plans stock DDP can express, and that torch's Reducer then does just what DDP does: real ranks, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.stock.buckets import StockBuckets, stock_buckets, why_not_stock
from autosync.runtime.stock.reducer import StockReducer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.codecs import Cast
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from tests.helpers.example_plans import cluster_of, model_with
from tests.helpers.forks import Forked

PROGRAM = Path(__file__).with_name("stock_ranks.py")
LIMIT_SECONDS = 300.0

# Declared first, used first, and so ready last.
VARIABLES = (
    Variable(name="first", shape=(4, 2), use=0, ready=2),
    Variable(name="second", shape=(5,), use=1, ready=1),
    Variable(name="last", shape=(3,), use=2, ready=0),
)
TABLE = Variable(name="table", shape=(10, 2), kind="embedding", use=3, ready=3, touched_rows=2, max_touched_rows=4)
ROWS = Message(parts=("table",), synchroniser=SparseGather())


def plan_of(
    *messages: Message,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    **options: Any,
) -> Plan:
    return lower(Strategy(messages=messages, **options), model or model_with(*VARIABLES), cluster or cluster_of(1, 1))


def dense(*names: str, **options: Any) -> Message:
    return Message(parts=names, synchroniser=options.pop("synchroniser", AllReduce()), **options)


def test_buckets_come_in_the_order_in_which_gradients_do() -> None:
    found = stock_buckets(plan_of(dense("first"), dense("second", "last")))
    assert found == StockBuckets(buckets=((2, 1), (0,)), limits_bytes=(32, 32))


def test_ddps_own_preset_is_stock() -> None:
    model = model_with(*VARIABLES)
    for preset in ("ddp", "ddp_cap"):
        assert stock_buckets(lower(build_preset(preset, model, cluster_of(2, 2)), model, cluster_of(2, 2)))


def test_clipping_is_the_users() -> None:
    found = stock_buckets(plan_of(dense(*WEIGHTS), model=model_with(*VARIABLES, clip_norm=1.0)))
    assert found is not None
    assert found.buckets == ((2, 1, 0),)


def test_slices_between_variables_are_buckets() -> None:
    """A message that is cut where a variable ends is several buckets, and nothing else."""
    model = model_with(
        Variable(name="a", shape=(256,), use=0, ready=1), Variable(name="b", shape=(256,), use=1, ready=0)
    )
    found = stock_buckets(plan_of(dense("a", "b", slice_bytes=1024), model=model))
    assert found is not None
    assert found.buckets == ((1,), (0,))


def test_a_failed_pass_stays_one_when_a_later_pass_fails_before_its_gradients() -> None:
    reducer: Any = Mock(_is_prepared=True, _has_heard=True, _has_failed=False)
    reducer._missing.return_value = []
    for has_heard in (True, False):
        reducer._has_heard = has_heard
        StockReducer._backward_fails(reducer, ValueError("the script's own error"))
    assert reducer._has_failed is True
    with pytest.raises(OperationError, match="a backward pass has ended with an error"):
        StockReducer.check(reducer)


def _two_dtypes(*sizes: tuple[int, str]) -> ModelSpec:
    return model_with(
        *(
            Variable(name=f"v{i}", shape=(size,), dtype=dtype, use=i, ready=i)  # type: ignore[arg-type]
            for i, (size, dtype) in enumerate(sizes)
        )
    )


def test_buckets_of_two_dtypes_must_fit_into_one_list_of_sizes() -> None:
    # The larger bucket (40 bytes) comes to the smaller one's 32 with its last variable: one list does for both.
    fits = _two_dtypes((8, "float32"), (1, "float64"), (4, "float64"))
    found = stock_buckets(plan_of(dense("v0"), dense("v1", "v2"), model=fits))
    assert found is not None
    assert (found.buckets, found.limits_bytes) == (((0,), (1, 2)), (32,))
    # It comes to them with its first: the Reducer would close it there.
    does_not = _two_dtypes((8, "float32"), (4, "float64"), (1, "float64"))
    plan = plan_of(dense("v0"), dense("v1", "v2"), model=does_not)
    assert why_not_stock(plan) == "its buckets of several dtypes have sizes that do not fit into one list"
    assert stock_buckets(plan) is None


LONG = Variable(name="long", shape=(300,), use=0, ready=0)
WEIGHTS = ("first", "second", "last")
WITH_TABLE = model_with(*VARIABLES, TABLE)
WITH_ROWS = model_with(*VARIABLES, replace(TABLE, sparse=True))
NOT_STOCK = {
    "forward overlap": (
        lambda: plan_of(dense(*WEIGHTS), overlap="forward"),
        "transfers overlap the forward pass",
    ),
    "lanes": (lambda: plan_of(dense("first"), dense("second", "last", lane=1)), "transfers are in several lanes"),
    "one worker": (lambda: plan_of(dense(*WEIGHTS), cluster=cluster_of(1)), "one worker has nothing to send"),
    "ring": (
        lambda: plan_of(dense(*WEIGHTS, synchroniser=AllReduce(topology="ring")), cluster=cluster_of(1, 1, 1)),
        "a transfer goes by ring rounds",
    ),
    "slices": (
        lambda: plan_of(dense("long", slice_bytes=1024), model=model_with(LONG)),
        "a transfer moves something else than whole gradients",
    ),
    "codec": (lambda: plan_of(dense(*WEIGHTS, codec=Cast(dtype="float16"))), "encode"),
    "sharded": (lambda: plan_of(dense(*WEIGHTS, synchroniser=Sharded())), "the transfer reduce_scatter of its grad"),
    "server": (
        lambda: plan_of(dense(*WEIGHTS, synchroniser=ParameterServer(server="n0"))),
        "a transfer goes by star rounds",
    ),
    "periodic": (
        lambda: plan_of(dense(*WEIGHTS, synchroniser=Periodic(every=4))),
        "not every operation is of every step",
    ),
    "hierarchical": (
        lambda: plan_of(dense(*WEIGHTS, synchroniser=AllReduce(hierarchical=True)), cluster=cluster_of(2, 2)),
        "not every operation is of all workers and of them alone",
    ),
    "rows of a sparse gradient": (
        lambda: plan_of(dense(*WEIGHTS), ROWS, model=WITH_ROWS),
        "table has the transfer all_gather_v of its rows",
    ),
    "rows of a dense gradient": (
        lambda: plan_of(dense(*WEIGHTS), ROWS, model=WITH_TABLE),
        "table has the transfer all_gather_v of its rows",
    ),
    "a sparse gradient as a dense one": (
        lambda: plan_of(dense(*WEIGHTS), dense("table"), model=WITH_ROWS),
        "table has the transfer all_reduce of its grad",
    ),
}


@pytest.mark.parametrize("what", list(NOT_STOCK))
def test_what_ddp_cannot_express_is_said(what: str) -> None:
    made: Callable[[], Plan]
    made, reason = NOT_STOCK[what]
    plan = made()
    assert reason in why_not_stock(plan)
    assert stock_buckets(plan) is None


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What each rank answers to each case, all from one launch."""
    folder = tmp_path_factory.mktemp("stock")
    with (folder / "log").open("wb") as log:
        process = Forked(
            (sys.executable, PROGRAM, folder, str(request.param)),
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_SECONDS)
        yield [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in range(request.param)]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_buckets_are_those_given(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        given, used = answer["buckets_are_those_given"]
        assert used == given


@pytest.mark.parametrize("model", ["conv", "tied_transformer"])
def test_gradients_are_those_of_ddp_bit_for_bit(answers: list[dict[str, Any]], model: str) -> None:
    for answer in answers:
        found = answer[f"{model}_is_that_of_ddp"]
        assert found["differing"] == [], found
        # Buckets of one variable alone, or one bucket alone, would prove little.
        assert found["num_buckets"] > 2
        assert found["num_merged"] > 0


def test_accumulated_gradients_are_those_of_ddp(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert [found["differing"] for found in answer["accumulated_is_that_of_ddp"]] == [[], []]


@pytest.mark.parametrize(
    "case",
    [
        "without_sync_nothing_is_sent",
        "reads_see_that_buckets_travel",
        "evaluation_changes_nothing",
        "several_forwards_before_one_backward",
        "backward_again_is_synchronised",
        "penalties_apart_are_synchronised",
        "sums_of_float16_do_not_overflow",
        "end_of_backward_is_told_with_final_gradients",
        "reentrant_checkpoint",
        "copies_are_ordinary",
        "one_after_another",
        "own_connections_do",
    ],
)
def test_a_script_may_do_what_it_does_under_ddp(answers: list[dict[str, Any]], case: str) -> None:
    """Each answers with what is not as it should be."""
    assert [answer[case] for answer in answers] == [[]] * len(answers)


@pytest.mark.parametrize("case", ["unused_parameters_count_as_zero", "unused_parameters_in_debug"])
def test_an_unused_parameter_has_no_gradient_where_no_rank_has_used_it(
    answers: list[dict[str, Any]], case: str
) -> None:
    for answer in answers:
        assert answer[case] == [len(answers) > 1 or None, None, True, [True] * 3]


def test_closed_it_is_gone(answers: list[dict[str, Any]]) -> None:
    expected = {"was_synchronised": True, "freed": True, "gone": True, "hooks": 0, "differing": []}
    assert [answer["closed_is_free"] for answer in answers] == [expected] * len(answers)


def test_steps_leave_nothing_behind(answers: list[dict[str, Any]]) -> None:
    assert max(answer["nothing_piles_up"] for answer in answers) < 2400
