"""Plans carried out in one process: real local operations on every rank's memory, transfers by plain sums and copies.

What comes out is held against the user's optimizer on the averaged gradients.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from autosync.plan.expansion import chunk_bounds
from autosync.plan.lowering import lower
from autosync.plan.types import Local, Plan, Transfer
from autosync.runtime.contents import Contents, are_contents
from autosync.runtime.engine_optimizer import EngineOptimizer, EngineUpdate
from autosync.runtime.factors import Factors, Pair
from autosync.runtime.locals import Locals, clip_coefficient
from autosync.runtime.memory import Memory
from autosync.runtime.optimizer_facts import facts_of, options_of
from autosync.runtime.sparse import Rows, Sparse
from autosync.runtime.updates import engine_updates
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.representation import (
    AllReduce,
    Message,
    ParameterServer,
    Partition,
    Sharded,
    SparseGather,
    Strategy,
    SufficientFactors,
)
from autosync.strategy.space import Limits, Space

RUN_HERE = {"average", "merge_rows", "norm", "read_rows", "rebuild", "update", "write_rows"}
NUM_STEPS = 3


def embedding(name: str, use: int, ready: int, *, sparse: bool) -> Variable:
    return Variable(
        name=name,
        shape=(9, 4),
        dtype="float64",
        kind="embedding",
        use=use,
        ready=ready,
        touched_rows=3.0,
        max_touched_rows=5,
        sparse=sparse,
    )


DENSE = (
    Variable(name="matrix", shape=(5, 3), dtype="float64", kind="linear", factor_rows=2, use=0, ready=3),
    Variable(name="image", shape=(2, 3, 2), dtype="float64", use=1, ready=2),
    Variable(name="bias", shape=(7,), dtype="float64", use=2, ready=1),
    embedding("table", 3, 0, sparse=False),
)
MIXED = (*DENSE[:3], embedding("table", 3, 0, sparse=False), embedding("words", 4, 4, sparse=True))
SPARSE = (embedding("table", 0, 1, sparse=True), embedding("words", 1, 0, sparse=True))


@dataclass(frozen=True)
class Case:
    """An optimizer with its options, and what it trains."""

    optimizer: str
    options: dict[str, Any]
    variables: tuple[Variable, ...]
    takes_sparse: bool = False
    clip_norm: float | None = None

    def model(self) -> ModelSpec:
        by_use = sorted(self.variables, key=lambda variable: variable.use)
        by_ready = sorted(self.variables, key=lambda variable: variable.ready)
        timeline = Timeline(
            device="d",
            source="measured",
            forward=tuple(Segment(module=v.name, seconds=0.001, variables=(v.name,)) for v in by_use),
            backward=tuple(Segment(module=v.name, seconds=0.001, variables=(v.name,)) for v in by_ready),
        )
        spec = OptimizerSpec(name=self.optimizer, sparse=self.takes_sparse, state_slots=1)
        return ModelSpec(
            name="m", optimizer=spec, variables=self.variables, timeline=timeline, clip_norm=self.clip_norm
        )

    def make(self, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(parameters.values(), **self.options)
        return made


CASES = {
    "momentum": Case("SGD", {"lr": 0.1, "momentum": 0.9}, DENSE),
    "adam": Case("AdamW", {"lr": 0.1}, DENSE),
    "clipped": Case("SGD", {"lr": 0.1, "momentum": 0.5}, DENSE, clip_norm=0.7),
    "sgd": Case("SGD", {"lr": 0.1}, MIXED, takes_sparse=True),
    "adagrad": Case("Adagrad", {"lr": 0.1, "lr_decay": 0.01}, MIXED, takes_sparse=True),
    "sparse adam": Case("SparseAdam", {"lr": 0.1}, SPARSE, takes_sparse=True),
}


def cluster(num_workers: int = 3) -> ClusterSpec:
    workers = [Node(name=f"n{i}", host="h", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(num_workers)]
    server = Node(name="s", host="h", devices=0, bandwidth_out=1e8, bandwidth_in=1e8, role="server")
    return ClusterSpec(name="test", nodes=(*workers, server))


def initial(case: Case) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        v.name: nn.Parameter(torch.randn(v.shape, generator=generator, dtype=torch.float64)) for v in case.variables
    }


@dataclass
class Made:
    """One worker's gradient of one variable: dense or sparse, and its factors."""

    gradient: torch.Tensor
    pair: Pair | None = None


def make_gradient(variable: Variable, generator: torch.Generator) -> Made:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if variable.kind == "linear":
        rows = int(torch.randint(0, 4, (), generator=generator))
        pair = Pair(numbers(rows, variable.shape[0]), numbers(rows, variable.shape[1]))
        return Made(pair.outputs.t() @ pair.inputs, pair)
    if variable.kind == "embedding":
        # Rows in any order, some twice; now and then none.
        count = int(torch.randint(0, 5, (), generator=generator))
        indices = torch.randint(0, variable.shape[0], (1, count), generator=generator)
        made = torch.sparse_coo_tensor(
            indices, numbers(count, variable.shape[1]), variable.shape, check_invariants=True
        )
        return Made(made if variable.sparse else made.to_dense())
    return Made(numbers(*variable.shape))


def mean_gradient(variable: Variable, made: list[Made]) -> torch.Tensor:
    if not variable.sparse:
        mean: torch.Tensor = torch.stack([one.gradient for one in made]).mean(0)
        return mean
    parts = [one.gradient.coalesce() for one in made]
    joined = torch.sparse_coo_tensor(
        torch.cat([part.indices() for part in parts], dim=1),
        torch.cat([part.values() for part in parts]) / len(made),
        variable.shape,
        check_invariants=True,
    )
    return joined.coalesce()


class OneRank:
    """What the session of one rank holds."""

    def __init__(self, plan: Plan, case: Case, rank: int) -> None:
        self.is_worker = plan.ranks[rank].role == "worker"
        self.plan, self.case = plan, case
        self.parameters = initial(case)
        self.optimizer = case.make(self.parameters)
        self.memory = Memory(plan, self.parameters, contributes=self.is_worker)
        self.sparse = Sparse(plan, self.memory)
        self.factors = Factors(plan, self.memory)
        self.contents = Contents(plan, self.memory, rank=rank)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.source = (
            EngineOptimizer.of_user(self.optimizer, self.parameters)
            if self.is_worker
            else EngineOptimizer.of_facts(facts_of(self.optimizer, names))
        )
        self.engines = engine_updates(plan)
        updates = {
            index: EngineUpdate(plan, index, rank, memory=self.memory, optimizer=self.source)
            for index in self.engines.operations
            if any(rank in group for group in plan.operations[index].groups)
        }
        self.locals = Locals(plan, self.memory, rank=rank, updates=updates)

    def take(self, made: dict[str, Made], iteration: int) -> None:
        """What the session does in the gradients' hooks."""
        for name, parameter in self.parameters.items():
            gradient = made[name].gradient.clone()
            parameter.grad = gradient
            if name in self.sparse.variables:
                self.sparse.take(name, gradient, iteration)
                continue
            seen = self.memory.take_gradient(name, gradient)
            pair = made[name].pair
            if name in self.factors.variables and pair is not None:
                self.factors._pairs[name].append(pair)
                self.factors.take(name, gradient, iteration)
            if name not in self.engines.variables:
                parameter.grad = seen

    def update(self, iteration: int) -> None:
        """What the session does when backward has returned, and the user's step after it."""
        for name, parameter in self.parameters.items():
            if name in self.engines.variables:
                parameter.grad = None
            elif name in self.sparse.variables:
                parameter.grad = self.sparse.give_back(name, iteration)
            elif name in self.memory.staged_variables():
                assert parameter.grad is not None
                self.memory.return_gradient(name, parameter.grad)
        if self.case.clip_norm is not None and not self.engines.operations:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.case.clip_norm)
        self.optimizer.step()


class World:
    """All ranks of a plan."""

    def __init__(self, plan: Plan, case: Case) -> None:
        self.plan = plan
        self.ranks = [OneRank(plan, case, rank) for rank in range(len(plan.ranks))]

    def step(self, made: list[dict[str, Made]], iteration: int, options: Any) -> None:
        for rank, gradients in zip(self.ranks, made, strict=False):
            rank.take(gradients, iteration)
        for rank in self.ranks:
            rank.source.options.put(iteration, options)
        users_have_stepped = False
        for index, operation in enumerate(self.plan.operations):
            if isinstance(operation, Transfer):
                self._move(operation, iteration)
                continue
            if operation.kind == "update" and index not in self.ranks[0].engines.operations:
                if not users_have_stepped:
                    for rank in self.ranks:
                        if rank.is_worker:
                            rank.update(iteration)
                users_have_stepped = True
                continue
            for group in operation.groups:
                for rank in group:
                    self.ranks[rank].locals.run(index, iteration)

    def _move(self, transfer: Transfer, iteration: int) -> None:
        kind = self.plan.regions[transfer.regions[0]].kind
        for group in transfer.groups:
            memories = [self.ranks[rank].memory for rank in group]
            if are_contents(self.plan, transfer):
                self._move_contents(transfer, group, iteration)
                continue
            if kind == "param" and not self.ranks[0].engines.operations:
                for memory in memories:
                    memory.load(transfer.regions)
            buffers = [memory.view(transfer.regions, iteration) for memory in memories]
            if transfer.collective == "reduce" and not self.ranks[group[0]].is_worker:
                # A server has no gradient of its own to add.
                buffers[0].zero_()
            if transfer.within:
                buffers = [
                    chunk(buffer, next(g for g in transfer.within if rank in g), rank)
                    for rank, buffer in zip(group, buffers, strict=True)
                ]
            self._move_numbers(transfer, group, buffers)
            if kind == "param":
                for memory in memories:
                    memory.store(transfer.regions)

    def _move_numbers(self, transfer: Transfer, group: tuple[int, ...], buffers: list[torch.Tensor]) -> None:
        with torch.no_grad():
            total = torch.stack(buffers).sum(0)
            bounds = chunk_bounds(len(total), len(group))
            owned = torch.cat([b[bounds[i] : bounds[i + 1]] for i, b in enumerate(buffers)])
            for position, buffer in enumerate(buffers):
                mine = slice(bounds[position], bounds[position + 1])
                match transfer.collective:
                    case "all_reduce":
                        buffer.copy_(total)
                    case "reduce":
                        # What is left elsewhere is nobody's to use.
                        buffer.copy_(total if position == 0 else torch.full_like(total, float("nan")))
                    case "broadcast":
                        buffer.copy_(buffers[0])
                    case "reduce_scatter":
                        kept = total[mine].clone()
                        buffer.fill_(float("nan"))
                        buffer[mine] = kept
                    case "all_gather":
                        buffer.copy_(owned)

    def _move_contents(self, transfer: Transfer, group: tuple[int, ...], iteration: int) -> None:
        sent = [self.ranks[rank].contents.outgoing(transfer, group, iteration) for rank in group]
        if len(group) == 1:
            return
        # One behind the other, as they lie in a gather's buffer.
        gathered = torch.cat([torch.zeros(3, dtype=torch.uint8), *sent])[3:]
        arrived = gathered.split([len(one) for one in sent])
        for rank in group[:1] if transfer.collective == "gather_v" else group:
            self.ranks[rank].contents.arrived(transfer, group, iteration, arrived)


def chunk(buffer: torch.Tensor, group: tuple[int, ...], rank: int) -> torch.Tensor:
    bounds = chunk_bounds(len(buffer), len(group))
    position = group.index(rank)
    return buffer[bounds[position] : bounds[position + 1]]


def check(strategy: Strategy, case: Case, where: ClusterSpec) -> None:
    """Every worker's parameters after some steps are those of the user's optimizer alone."""
    plan = lower(strategy, case.model(), where)
    assert {o.kind for o in plan.operations if isinstance(o, Local)} <= RUN_HERE
    world = World(plan, case)
    expected = initial(case)
    reference = case.make(expected)
    generator = torch.Generator().manual_seed(7)
    for iteration in range(NUM_STEPS):
        made = [{v.name: make_gradient(v, generator) for v in case.variables} for _ in range(where.num_workers)]
        for variable in case.variables:
            expected[variable.name].grad = mean_gradient(variable, [one[variable.name] for one in made])
        if case.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(expected.values(), case.clip_norm)
        for group in reference.param_groups:
            group["lr"] *= 0.8
        options = options_of(reference)
        for rank in world.ranks:
            for group in rank.optimizer.param_groups:
                group["lr"] *= 0.8
        reference.step()
        world.step(made, iteration, options)
        for number, rank in enumerate(world.ranks):
            if rank.is_worker:
                for name, parameter in rank.parameters.items():
                    difference = (parameter - expected[name]).norm() / expected[name].norm()
                    assert difference < 1e-12, f"rank {number}: {name} in step {iteration} by {difference:.2g}"


def strategies(case: Case, where: ClusterSpec, count: int, seed: int) -> Iterator[Strategy]:
    space = Space(model=case.model(), cluster=where, limits=Limits(overlaps=("backward", "forward")))
    rng = random.Random(seed)
    found = 0
    for _ in range(100 * count):
        strategy = space.sample(rng)
        if strategy.is_exact:
            yield strategy
            found += 1
        if found == count:
            return


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
