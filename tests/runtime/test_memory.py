"""Where regions lie: nothing is copied that need not be, and what is copied comes home."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.types import Plan, Transfer
from autosync.runtime.local.operations import Locals
from autosync.runtime.memory.early_division import parts_divided_early
from autosync.runtime.memory.regions import Memory
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from tests.helpers.collectives import carry_out
from tests.helpers.example_plans import cluster_of, model_with
from tests.helpers.random_specs import random_model

WEIGHT = Variable(name="w", shape=(4, 6), use=0, ready=1)
BIAS = Variable(name="b", shape=(6,), use=1, ready=0)


def _plan(*messages: Message, **partitions: Partition) -> Plan:
    strategy = Strategy(partitions=partitions, messages=messages)
    return lower(strategy, model_with(WEIGHT, BIAS), cluster_of(1, 1))


def _parameters(model: ModelSpec) -> dict[str, torch.Tensor]:
    return {one.name: torch.randn(one.shape, dtype=getattr(torch, one.dtype)) for one in model.variables}


def _of(plan: Plan, kind: str, name: str) -> tuple[int, ...]:
    return tuple(
        index
        for index, region in enumerate(plan.regions)
        if region.kind == kind and str(plan.parts[region.part].name) == name
    )


def test_a_variable_alone_is_worked_on_where_its_gradient_is() -> None:
    plan = _plan(Message(parts=("w",)), Message(parts=("b",)))
    memory = Memory(plan, _parameters(model_with(WEIGHT, BIAS)), contributes=True)
    gradient = torch.randn(4, 6)
    assert memory.take_gradient("w", gradient) is gradient
    assert memory.view(_of(plan, "grad", "w")).data_ptr() == gradient.data_ptr()
    assert memory.staged_variables() == []


def test_merged_gradients_are_copied_into_one_buffer_and_back() -> None:
    plan = _plan(Message(parts=("b", "w")))
    memory = Memory(plan, _parameters(model_with(WEIGHT, BIAS)), contributes=True)
    gradients = {"w": torch.randn(4, 6), "b": torch.randn(6)}
    expected = torch.cat([gradients["b"], gradients["w"].reshape(-1)])
    for name, gradient in gradients.items():
        assert memory.take_gradient(name, gradient) is gradient
    whole = memory.view((*_of(plan, "grad", "b"), *_of(plan, "grad", "w")))
    assert torch.equal(whole, expected)
    whole.mul_(3)
    assert sorted(memory.staged_variables()) == ["b", "w"]
    memory.return_gradients(gradients)
    assert torch.equal(torch.cat([gradients["b"], gradients["w"].reshape(-1)]), 3 * expected)
    # What the script has kept is its own.
    whole.zero_()
    assert torch.equal(gradients["b"], 3 * expected[:6])


@pytest.mark.parametrize("names", [(("w",), ("b",)), (("b", "w"),)])
def test_gradients_of_float16_are_averaged_where_their_sum_would_overflow(names: tuple[tuple[str, ...], ...]) -> None:
    model = model_with(*[replace(one, dtype="float16") for one in (WEIGHT, BIAS)])
    strategy = Strategy(messages=tuple(Message(parts=parts) for parts in names))
    plan = lower(strategy, model, cluster_of(1, 1))
    memories = [Memory(plan, _parameters(model), contributes=True) for _ in range(plan.num_workers)]
    works = [Locals(plan, memory, rank=rank, updates={}) for rank, memory in enumerate(memories)]
    gradients = [{one.name: torch.full(one.shape, 40_000.0).half() for one in (WEIGHT, BIAS)} for _ in memories]
    for memory, brought in zip(memories, gradients, strict=True):
        for name, gradient in brought.items():
            assert memory.take_gradient(name, gradient) is gradient
    for index, operation in enumerate(plan.operations):
        if isinstance(operation, Transfer):
            carry_out(operation, [memory.view(operation.regions) for memory in memories])
        elif operation.kind == "average":
            for work in works:
                work.run(index, 0)
    for memory, brought in zip(memories, gradients, strict=True):
        memory.return_gradients(brought)
        assert all(bool((gradient == 40_000).all()) for gradient in brought.values())


def test_parts_along_the_first_axis_are_in_place_and_others_are_staged() -> None:
    for axis, sizes, staged in ((0, (1, 3), []), (1, (2, 4), ["w"])):
        plan = _plan(
            Message(parts=("w[0]",)),
            Message(parts=("w[1]",)),
            Message(parts=("b",)),
            w=Partition(axis=axis, sizes=sizes),
        )
        memory = Memory(plan, _parameters(model_with(WEIGHT, BIAS)), contributes=True)
        gradient = torch.randn(4, 6)
        expected = gradient.narrow(axis, sizes[0], sizes[1]).reshape(-1).clone()
        memory.take_gradient("w", gradient)
        view = memory.view(_of(plan, "grad", "w[1]"))
        assert torch.equal(view, expected)
        assert memory.staged_variables() == staged
        view.mul_(3)
        memory.return_gradients({"w": gradient})
        assert torch.equal(gradient.narrow(axis, sizes[0], sizes[1]).reshape(-1), expected * 3)


@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("kind", ["grad", "param"])
def test_every_view_has_the_numbers_of_its_regions(kind: str, seed: int) -> None:
    """Whatever the strategy: an operation's view is its regions, each element where the plan says."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model, cluster = random_model(rng), cluster_of(1, 1, 1)
    limits = Limits(allow=(), slice_bytes=(1024, 4096), max_parts=5)
    plan = lower(Space(model=model, cluster=cluster, limits=limits).sample(rng), model, cluster)
    parameters = _parameters(model)
    memory = Memory(plan, parameters, contributes=True)
    source = parameters if kind == "param" else _parameters(model)
    if kind == "grad":
        for name, gradient in source.items():
            memory.take_gradient(name, gradient.clone())
    for operation in plan.operations:
        regions = getattr(operation, "regions", None) or getattr(operation, "outputs", ())
        if plan.regions[regions[0]].kind != kind:
            continue
        if kind == "param":
            memory.load(regions)
        assert torch.equal(memory.view(regions), torch.cat([_elements(plan, index, source) for index in regions]))
        if kind == "param":
            memory.view(regions).mul_(2)
            memory.store(regions)
            assert torch.equal(memory.view(regions), torch.cat([_elements(plan, index, source) for index in regions]))


def _elements(plan: Plan, index: int, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    region = plan.regions[index]
    part = plan.parts[region.part]
    tensor = tensors[part.variable.name]
    cut = tensor.narrow(part.axis, part.begin, part.end - part.begin) if tensor.dim() else tensor
    found = cut.reshape(-1)[region.start : region.stop]
    is_divided = region.kind == "grad" and region.part in parts_divided_early(plan)
    return found / plan.num_workers if is_divided else found
