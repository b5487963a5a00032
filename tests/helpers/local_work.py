"""Plans carried out in one process, operation by operation: real local work on every rank's memory, sums for transfers.

What comes out is held against the user's optimizer on the averaged gradients. `whole_plans` runs sessions and engines
on top of the same parts; here there is none, so that a wrong result is the fault of the local work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autosync.plan.lowering import lower
from autosync.plan.types import Local, Plan, Transfer
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_update import EngineUpdate
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.factors import Factors, Pair
from autosync.runtime.local.operations import Locals
from autosync.runtime.local.optimizer_facts import StepScale, facts_of, options_of
from autosync.runtime.local.sparse_rows import Sparse
from autosync.runtime.memory.regions import Memory
from autosync.runtime.wire.varying_contents import Contents, are_contents
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.representation import (
    Strategy,
)
from autosync.strategy.space import Limits, Space
from tests.helpers.collectives import carry_out, chunk

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
                self.factors.keep(name, pair)
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
                self.memory.return_gradients({name: parameter.grad})
        if self.case.clip_norm is not None and not self.engines.operations:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.case.clip_norm)
        self.optimizer.step()


class World:
    """All ranks of a plan."""

    def __init__(self, plan: Plan, case: Case) -> None:
        self.plan = plan
        self.case = case
        self.ranks = [OneRank(plan, case, rank) for rank in range(len(plan.ranks))]

    def step(self, made: list[dict[str, Made]], iteration: int, options: Any) -> None:
        for rank, gradients in zip(self.ranks, made, strict=False):
            rank.take(gradients, iteration)
        for rank in self.ranks:
            rank.source.options.put(iteration, options, StepScale(clips=self.case.clip_norm is not None))
        users_have_stepped = False
        for index, operation in enumerate(self.plan.operations):
            if isinstance(operation, Transfer):
                self._move(operation, iteration)
                continue
            if operation.kind == "update" and index not in self.ranks[0].engines.operations:
                if not users_have_stepped:
                    for worker in self.ranks:
                        if worker.is_worker:
                            worker.update(iteration)
                users_have_stepped = True
                continue
            for position in (position for group in operation.groups for position in group):
                self.ranks[position].locals.run(index, iteration)

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
            carry_out(transfer, buffers)
            if kind == "param":
                for memory in memories:
                    memory.store(transfer.regions)

    def _move_contents(self, transfer: Transfer, group: tuple[int, ...], iteration: int) -> None:
        sent = [self.ranks[rank].contents.outgoing(transfer, group, iteration) for rank in group]
        if len(group) == 1:
            return
        # One behind the other, as they lie in a gather's buffer.
        gathered = torch.cat([torch.zeros(3, dtype=torch.uint8), *sent])[3:]
        arrived = torch.split(gathered, [len(one) for one in sent])
        for rank in group[:1] if transfer.collective == "gather_v" else group:
            self.ranks[rank].contents.arrived(transfer, group, iteration, arrived)


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
