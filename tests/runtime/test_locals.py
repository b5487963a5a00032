"""Local operations, in plans carried out in one process and one by one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autosync.plan.lowering import lower
from autosync.plan.types import Local
from autosync.runtime.local.operations import clip_coefficient, sum_of_squares
from autosync.runtime.local.optimizer_facts import options_of
from autosync.runtime.local.sparse_rows import Rows
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from tests.helpers.local_work import CASES, DENSE, MIXED, OneRank, World, check, cluster, make_gradient, strategies


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch says once, from its own optimizers' sparse tensors, that it does not check them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        yield


@pytest.mark.parametrize("name", CASES)
def test_random_exact_strategies_train_as_the_users_optimizer_does(name: str) -> None:
    case, where = CASES[name], cluster()
    for strategy in strategies(case, where, 40, seed=3):
        try:
            check(strategy, case, where)
        except Exception as error:
            error.add_note(f"{strategy}")
            raise


ROWS = {
    "gathered": SparseGather(),
    "at a worker": ParameterServer(server="n1", sparse=True, update="server"),
    "at a server": ParameterServer(server="s", sparse=True, update="server"),
    "through a server": ParameterServer(server="s", sparse=True, update="worker"),
}


@pytest.mark.parametrize("name", ["sgd", "adagrad", "sparse adam"])
@pytest.mark.parametrize("way", ROWS)
@pytest.mark.parametrize("partition", [None, Partition(axis=0, sizes=(2, 7)), Partition(axis=1, sizes=(3, 1))])
@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_rows(name: str, way: str, partition: Partition | None, overlap: Any) -> None:
    case = CASES[name]
    parts = ("words",) if partition is None else ("words[0]", "words[1]")
    messages = [Message(parts=(part,), synchroniser=ROWS[way]) for part in parts]
    others = tuple(v.name for v in case.variables if v.name != "words")
    messages.append(Message(parts=others))
    partitions = {} if partition is None else {"words": partition}
    check(Strategy(partitions=partitions, messages=tuple(messages), overlap=overlap), case, cluster())


@pytest.mark.parametrize("name", ["momentum", "clipped"])
@pytest.mark.parametrize("partition", [None, Partition(axis=0, sizes=(2, 3)), Partition(axis=1, sizes=(2, 1))])
@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_factors(name: str, partition: Partition | None, overlap: Any) -> None:
    case = CASES[name]
    parts = ("matrix",) if partition is None else ("matrix[0]", "matrix[1]")
    messages = [Message(parts=(part,), synchroniser=SufficientFactors()) for part in parts]
    # What is updated in shards makes the norm everybody's by a transfer.
    messages.append(Message(parts=("image", "bias"), synchroniser=Sharded()))
    messages.append(Message(parts=("table",)))
    partitions = {} if partition is None else {"matrix": partition}
    check(Strategy(partitions=partitions, messages=tuple(messages), overlap=overlap), case, cluster())


def test_one_worker_alone() -> None:
    where = ClusterSpec(name="test", nodes=cluster(1).nodes[:1])
    for name in ("momentum", "sgd"):
        for strategy in strategies(CASES[name], where, 10, seed=1):
            check(strategy, CASES[name], where)


def test_one_part_in_rows_and_one_not() -> None:
    for name in ("sgd", "adagrad", "sparse adam"):
        case = CASES[name]
        others = tuple(v.name for v in case.variables if v.name != "words")
        for dense in (AllReduce(), Sharded()):
            for axis, sizes in ((0, (4, 5)), (1, (1, 3))):
                messages = (
                    Message(parts=("words[0]",), synchroniser=SparseGather()),
                    Message(parts=("words[1]",), synchroniser=dense),
                    Message(parts=others),
                )
                partitions = {"words": Partition(axis=axis, sizes=sizes)}
                check(Strategy(partitions=partitions, messages=messages), case, cluster())


def test_gradients_given_back_are_of_the_kind_that_came() -> None:
    case = CASES["sgd"]
    plan = lower(Strategy(messages=(Message(parts=tuple(v.name for v in MIXED)),)), case.model(), cluster())
    rank = OneRank(plan, case, 0)
    generator = torch.Generator().manual_seed(0)
    words = make_gradient(MIXED[4], generator).gradient
    rank.sparse.take("words", words, 0)
    back = rank.sparse.give_back("words", 0)
    assert rank.sparse.variables == {"words"}
    assert back.is_sparse
    assert back.is_coalesced()
    assert torch.equal(back.to_dense(), words.to_dense())


def test_a_dense_gradient_that_travelled_as_rows_stays_the_tensor_it_was() -> None:
    case = CASES["sgd"]
    others = tuple(v.name for v in MIXED if v.name != "table")
    messages = (Message(parts=("table",), synchroniser=SparseGather()), Message(parts=others))
    rank = OneRank(lower(Strategy(messages=messages), case.model(), cluster()), case, 0)
    gradient = torch.zeros(9, 4, dtype=torch.float64)
    gradient[5] = 2.0
    rank.sparse.take("table", gradient, 0)
    region = next(i for i, one in enumerate(rank.plan.regions) if one.kind == "rows")
    rank.memory.put(region, 0, Rows(torch.tensor([3, 5]), torch.ones(2, 4, dtype=torch.float64)))
    assert rank.sparse.give_back("table", 0) is gradient
    assert gradient.sum(1).tolist() == [0, 0, 0, 4, 0, 4, 0, 0, 0]


def test_contents_do_not_pile_up() -> None:
    case = CASES["sgd"]
    others = tuple(v.name for v in MIXED if v.name != "words")
    messages = (Message(parts=("words",), synchroniser=SparseGather()), Message(parts=others))
    world = World(lower(Strategy(messages=messages), case.model(), cluster()), case)
    generator = torch.Generator().manual_seed(0)
    for iteration in range(20):
        made = [{v.name: make_gradient(v, generator) for v in case.variables} for _ in range(3)]
        world.step(made, iteration, options_of(world.ranks[0].optimizer))
    assert len(world.ranks[0].memory._contents) <= 3


@pytest.mark.parametrize("norm", [0.0, 0.1, 1.0, 5.0, float("inf"), float("nan")])
def test_the_coefficient_is_that_of_clip_grad_norm(norm: float) -> None:
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full((1,), norm, dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 0.75)
    ours = torch.full((1,), norm, dtype=torch.float64) * clip_coefficient(norm**2, 0.75)
    torch.testing.assert_close(ours, parameter.grad, equal_nan=True, rtol=1e-15, atol=0)


def test_squares_that_float32_cannot_say_make_a_norm() -> None:
    case = CASES["clipped"]
    plan = lower(
        Strategy(messages=(Message(parts=tuple(v.name for v in DENSE)),), overlap="forward"), case.model(), cluster()
    )
    rank = OneRank(plan, case, 0)
    index = next(i for i, o in enumerate(plan.operations) if isinstance(o, Local) and o.kind == "norm")
    for variable in DENSE:
        rank.memory.take_gradient(variable.name, torch.full(variable.shape, 1e200, dtype=torch.float64))
    rank.locals.run(index, 5)
    assert rank.memory.norms(5)[0].isinf()
    assert rank.memory.norms(6).tolist() == [0, 0]


def test_momentum_with_rows_is_refused() -> None:
    case = CASES["sgd"]
    others = tuple(v.name for v in MIXED if v.name != "words")
    messages = (
        Message(parts=("words",), synchroniser=ParameterServer(server="s", sparse=True)),
        Message(parts=others),
    )
    world = World(lower(Strategy(messages=messages), case.model(), cluster()), case)
    made = [{v.name: make_gradient(v, torch.Generator()) for v in case.variables} for _ in range(3)]
    options = [{**options_of(world.ranks[0].optimizer)[0], "momentum": 0.9}]
    with pytest.raises(Exception, match="SGD with momentum moves rows that no batch touched"):
        world.step(made, 0, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1e-12, 1.0, 1e15, 1e30])
@pytest.mark.parametrize("shape", [(0,), (3,), (4096,), (20_000,), (7, 3000)])
def test_squares_are_summed_as_float64_does(shape: tuple[int, ...], magnitude: float, dtype: torch.dtype) -> None:
    """Whatever float32 could not hold the squares of, and however many there are."""
    values = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * magnitude).to(dtype)
    found = sum_of_squares(values)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(float(values.double().square().sum()), rel=2e-6)


def test_gradients_that_are_no_numbers_have_no_sum() -> None:
    values = torch.ones(10_000)
    values[5000] = math.inf
    assert float(sum_of_squares(values)) == math.inf
    values[5000] = math.nan
    assert math.isnan(float(sum_of_squares(values)))
