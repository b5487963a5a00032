"""Updates by the engine, rank by rank without any transport: each rank's pieces against the user's optimizer alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Local, Plan
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_update import EngineUpdate
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.optimizer_facts import (
    OptimizerFacts,
    Options,
    Step,
    StepScale,
    facts_of,
    options_of,
    plain_step,
    step_from_plain,
)
from autosync.runtime.memory.kept_state import bring_home
from autosync.runtime.memory.regions import Memory
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "bias": (7,),
    "matrix": (5, 6),
    "image": (4, 3, 2, 2),
    "other": (11, 3),
    "untouched": (3,),
}


def cluster(num_nodes: int, num_servers: int = 0) -> ClusterSpec:
    workers = [Node(name=f"n{i}", host="h", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(num_nodes)]
    servers = [
        Node(name=f"s{i}", host="h", devices=0, bandwidth_out=1e8, bandwidth_in=1e8, role="server")
        for i in range(num_servers)
    ]
    return ClusterSpec(name="test", nodes=(*workers, *servers))


def model_spec(optimizer: str) -> ModelSpec:
    last = len(SHAPES) - 1
    variables = tuple(
        Variable(name=name, shape=shape, dtype="float64", use=i, ready=last - i)
        for i, (name, shape) in enumerate(SHAPES.items())
    )
    segments = tuple(Segment(module=name, seconds=0.001, variables=(name,)) for name in SHAPES)
    timeline = Timeline(device="d", source="measured", forward=segments, backward=segments[::-1])
    return ModelSpec(name="m", variables=variables, optimizer=OptimizerSpec(name=optimizer), timeline=timeline)


def parameters(seed: int) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    values["image"] = values["image"].contiguous(memory_format=torch.channels_last)
    return {name: nn.Parameter(value) for name, value in values.items()}


def optimizer_of(kind: str, held: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups, and one parameter that no group has."""
    groups = [
        {"params": [held["matrix"], held["image"], held["scalar"]], "weight_decay": 0.1},
        {"params": [held["bias"], held["other"]], "lr": 0.02},
    ]
    options: dict[str, Any] = {"lr": 0.1}
    if kind == "SGD":
        options |= {"momentum": 0.9, "nesterov": True}
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(groups, **options)
    return made


class RankUpdates:
    """One rank with its memory and its engine updates."""

    def __init__(self, plan: Plan, rank: int, kind: str) -> None:
        self.plan = plan
        self.is_worker = plan.ranks[rank].role == "worker"
        self.parameters = parameters(0)
        self.users = optimizer_of(kind, self.parameters)
        self.memory = Memory(plan, self.parameters, contributes=self.is_worker)
        if self.is_worker:
            self.source = EngineOptimizer.of_user(self.users, self.parameters)
        else:
            facts = facts_of(self.users, {id(p): name for name, p in self.parameters.items()})
            self.source = EngineOptimizer.of_facts(OptimizerFacts.from_json(json.loads(json.dumps(facts.to_json()))))
        self.updates = {
            index: EngineUpdate(plan, index, rank, memory=self.memory, optimizer=self.source)
            for index in engine_updates(plan).operations
            if any(rank in group for group in plan.operations[index].groups)
        }

    def step(self, iteration: int, gradients: dict[str, torch.Tensor], scale: float, options: Any) -> None:
        for name, gradient in gradients.items():
            if self.is_worker:
                self.memory.take_gradient(name, gradient.clone())
        for index in self.updates:
            if not self.is_worker:
                self._fill(index, gradients)
        self.source.options.put(iteration, options)
        for update in self.updates.values():
            update.run(iteration, scale)

    def _fill(self, index: int, gradients: dict[str, torch.Tensor]) -> None:
        """What a reduce brings to a server."""
        for region_index in self.plan.operations[index].inputs:
            region = self.plan.regions[region_index]
            flat = part_of(self.plan, region.part, gradients).reshape(-1)
            self.memory.view((region_index,)).copy_(flat[region.start : region.stop])

    def updated(self) -> Iterator[tuple[int, slice]]:
        """Each part's elements that were updated here."""
        for update in self.updates.values():
            for piece in update._pieces:
                yield piece.part, slice(piece.start, piece.stop)


def part_of(plan: Plan, index: int, tensors: Any) -> torch.Tensor:
    part = plan.parts[index]
    tensor: torch.Tensor = tensors[part.variable.name].detach()
    return tensor if part.name.whole else tensor.narrow(part.axis, part.begin, part.end - part.begin)


def strategies(spec: ModelSpec, where: ClusterSpec, count: int) -> Iterator[Strategy]:
    space = Space(model=spec, cluster=where, limits=Limits(overlaps=("backward", "forward")))
    rng = random.Random(5)
    found = 0
    for _ in range(200 * count):
        strategy = space.sample(rng)
        if strategy.is_exact and engine_updates(lower(strategy, spec, where)).operations:
            yield strategy
            found += 1
        if found == count:
            return


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad", "NAdam"])
@pytest.mark.parametrize("num_servers", [0, 1])
def test_every_piece_is_updated_as_by_the_users_optimizer(kind: str, num_servers: int) -> None:
    spec, where = model_spec(kind), cluster(3, num_servers)
    generator = torch.Generator().manual_seed(1)
    num_pieces = num_states = 0
    for strategy in strategies(spec, where, 12):
        plan = lower(strategy, spec, where)
        expected = parameters(0)
        reference = optimizer_of(kind, expected)
        ranks = [RankUpdates(plan, rank, kind) for rank in range(len(plan.ranks))]
        for iteration in range(3):
            gradients = {
                name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()
            }
            for group in reference.param_groups:
                group["lr"] *= 0.7
            scale = (1.0, 0.5, 0.25)[iteration]
            for name, gradient in gradients.items():
                expected[name].grad = gradient * scale
            reference.step()
            for rank in ranks:
                rank.step(iteration, gradients, scale, options_of(reference))
                num_pieces += _check(plan, rank, expected, reference)
                # What is updated elsewhere arrives.
                for name, parameter in rank.parameters.items():
                    parameter.data.copy_(expected[name])
        num_states += sum(_check_states_at_home(plan, rank, expected, reference) for rank in ranks if rank.is_worker)
    assert num_pieces > 100
    assert num_states > 10


def _check_states_at_home(
    plan: Plan, rank: RankUpdates, expected: dict[str, nn.Parameter], reference: torch.optim.Optimizer
) -> int:
    """States of variables that the rank updated in pieces, all of them; how many."""
    before = set(rank.users.state)
    pieces = [state for update in rank.updates.values() for state in update.piece_states()]
    bring_home(plan, pieces, rank.parameters, rank.users.state.__setitem__)
    count = 0
    for name, parameter in rank.parameters.items():
        has_all = sum(p.stop - p.start for p in pieces if plan.parts[p.part].variable.name == name) == parameter.numel()
        assert (parameter in rank.users.state) == (has_all or parameter in before)
        if has_all:
            _check_state(rank.users.state[parameter], reference.state[expected[name]])
            count += 1
    return count


def _check(plan: Plan, rank: RankUpdates, expected: dict[str, nn.Parameter], reference: torch.optim.Optimizer) -> int:
    count = 0
    for part, elements in rank.updated():
        ours = part_of(plan, part, rank.parameters).reshape(-1)[elements]
        theirs = part_of(plan, part, expected).reshape(-1)[elements]
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
        count += 1
    for update in rank.updates.values():
        operation = plan.operations[update_index(rank, update)]
        if update._is_moved:
            _check_views(plan, rank, operation.outputs, update._window, expected)
        for piece in update._aliases:
            if rank.is_worker:
                _check_state(rank.users.state[rank.parameters[piece.name]], reference.state[expected[piece.name]])
    assert torch.equal(rank.parameters["untouched"], expected["untouched"])
    return count


def update_index(rank: RankUpdates, update: EngineUpdate) -> int:
    return next(index for index, one in rank.updates.items() if one is update)


def _check_views(plan: Plan, rank: RankUpdates, regions: Any, window: slice, expected: Any) -> None:
    flat = torch.cat(
        [
            part_of(plan, plan.regions[i].part, expected).reshape(-1)[plan.regions[i].start : plan.regions[i].stop]
            for i in regions
        ]
    )
    torch.testing.assert_close(rank.memory.view(regions)[window], flat[window], rtol=1e-12, atol=1e-13)


def _check_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-12, atol=1e-13)


def forward_plan(kind: str = "Adam") -> Plan:
    """Everything in one message, updated by the engine on every worker."""
    strategy = Strategy(messages=(Message(parts=tuple(SHAPES)),), overlap="forward")
    return lower(strategy, model_spec(kind), cluster(2))


def gradients_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


def test_the_users_state_dict_is_right_and_goes_on_from_a_loaded_one() -> None:
    rank = RankUpdates(forward_plan(), 0, "Adam")
    expected = parameters(0)
    reference = optimizer_of("Adam", expected)
    for iteration in range(4):
        for name, gradient in gradients_of(iteration).items():
            expected[name].grad = gradient.clone()
        reference.step()
        rank.step(iteration, gradients_of(iteration), 1.0, options_of(reference))
        saved = rank.users.state_dict()
        assert saved["state"].keys() == reference.state_dict()["state"].keys()
        if iteration == 1:
            rank.users.load_state_dict(saved)
            rank.users.state.clear()
            reference.state.clear()
    for name, parameter in expected.items():
        torch.testing.assert_close(rank.parameters[name], parameter, rtol=1e-12, atol=1e-13)
    assert rank.users.state[rank.parameters["bias"]]["step"] == 2


def test_no_state_appears_where_the_optimizer_keeps_none() -> None:
    rank = RankUpdates(forward_plan("SGD"), 0, "SGD")
    for group in rank.users.param_groups:
        group["momentum"], group["nesterov"] = 0.0, False
    rank.step(0, gradients_of(0), 1.0, options_of(rank.users))
    assert rank.users.state_dict()["state"] == {}


def test_a_parameter_may_get_new_memory() -> None:
    rank = RankUpdates(forward_plan(), 0, "Adam")
    rank.step(0, gradients_of(0), 1.0, options_of(rank.users))
    before = rank.parameters["bias"].detach().clone()
    rank.parameters["bias"].data = before.clone()
    rank.step(1, gradients_of(1), 1.0, options_of(rank.users))
    assert not torch.equal(rank.parameters["bias"], before)


def test_options_are_those_of_their_iteration() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.1))
    options = Options()
    options.put(0, options_of(optimizer))
    optimizer.param_groups[0]["lr"].fill_(0.5)
    options.put(1, options_of(optimizer))
    assert [float(options.of(i).groups[0]["lr"]) for i in (0, 1)] == pytest.approx([0.1, 0.5])
    assert "params" not in options.of(0).groups[0]


def test_what_holds_in_a_step_travels_as_json() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.25), betas=(0.5, 0.75))
    scale = StepScale(inverse=2.0**-149, is_skipped=True)
    sent = step_from_plain(json.loads(json.dumps(plain_step(Step(options_of(optimizer), scale)))))
    assert sent.scale == scale
    assert sent.groups[0]["lr"] == 0.25
    assert sent.groups[0]["betas"] == (0.5, 0.75)
    assert sent.groups[0]["foreach"] is None


def test_what_is_not_in_torch_optim_is_refused() -> None:
    class Mine(torch.optim.SGD):
        pass

    parameter = nn.Parameter(torch.zeros(2))
    with pytest.raises(OperationError, match="Mine"):
        facts_of(Mine([parameter]), {id(parameter): "w"})
    for name in ("Optimizer", "lr_scheduler", "os", "__builtins__"):
        with pytest.raises(OperationError, match="no optimizer"):
            OptimizerFacts(class_name=name, groups=()).optimizer_class()


def test_an_optimizer_that_cannot_be_made_anew_is_refused() -> None:
    class Needy(torch.optim.SGD):
        def __init__(self, params: Any, secret: int) -> None:
            super().__init__(params, lr=0.1)

    held = parameters(0)
    source = EngineOptimizer.of_user(Needy(held.values(), 3), held)
    memory = Memory(forward_plan(), held, contributes=True)
    plan = forward_plan()
    index = next(i for i, o in enumerate(plan.operations) if isinstance(o, Local) and o.kind == "update")
    with pytest.raises(OperationError, match="Needy cannot be made anew"):
        EngineUpdate(plan, index, 0, memory=memory, optimizer=source)
