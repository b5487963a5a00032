"""Factors of gradients against the gradients that torch makes, and the uses of a weight that have none."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.local.factors import Factors, Pair, cut_factors, pack_factors, rebuild, unpack_factors
from autosync.runtime.memory.regions import Memory
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.parts import Part, Partition, parts_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

WIDTH, DEPTH = 6, 4


def variable() -> Variable:
    return Variable(name="weight", shape=(WIDTH, DEPTH), dtype="float64", kind="linear", use=0, ready=0, factor_rows=3)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Part, ...]:
    axis = draw(st.sampled_from([None, 0, 1]))
    if axis is None:
        return parts_of(variable(), None)
    size = (WIDTH, DEPTH)[axis]
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=3)))
    sizes = tuple(int(one) for one in np.diff([0, *cuts, size]))
    return parts_of(variable(), Partition(axis=axis, sizes=sizes))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), partitions(), st.integers(0, 1000))
def test_cut_sent_and_rebuilt_is_the_average(num_rows: list[int], parts: tuple[Part, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = [Pair(*(torch.from_numpy(rng.standard_normal((rows, n))) for n in (WIDTH, DEPTH))) for rows in num_rows]
    expected = sum(pair.outputs.numpy().T @ pair.inputs.numpy() for pair in pairs) / len(pairs)
    for part in parts:
        sent = []
        for pair in pairs:
            packed = pack_factors(cut_factors(pair, part))
            assert len(packed) == len(pair.outputs) * sum(part.shape) * 8
            shifted = torch.cat([packed.new_zeros(5), packed])[5:]
            sent.append(unpack_factors(shifted, part, torch.float64))
        gradient = torch.empty(part.num_elements, dtype=torch.float64)
        rebuild(sent, len(pairs), gradient)
        piece = expected if part.name.whole else np.take(expected, range(part.begin, part.end), axis=part.axis)
        np.testing.assert_allclose(gradient.numpy().reshape(part.shape), piece, rtol=1e-12, atol=1e-12)


def test_bytes_that_are_no_whole_rows_are_refused() -> None:
    (part,) = parts_of(variable(), None)
    with pytest.raises(OperationError, match="88 bytes of factors of weight"):
        unpack_factors(torch.zeros(88, dtype=torch.uint8), part, torch.float64)


class Net(nn.Module):
    """A layer whose weight travels as factors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DEPTH, WIDTH)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y


def plan(partition: Partition | None = None) -> Plan:
    variables = (
        Variable(
            name="linear.weight",
            shape=(WIDTH, DEPTH),
            dtype="float64",
            kind="linear",
            use=0,
            ready=1,
            factor_rows=3,
        ),
        Variable(name="linear.bias", shape=(WIDTH,), dtype="float64", use=0, ready=0),
    )
    names = tuple(v.name for v in variables)
    forward = (Segment(module="linear", seconds=0.001, variables=names),)
    backward = (Segment(module="linear", seconds=0.001, variables=names[::-1]),)
    spec = ModelSpec(
        name="m",
        variables=variables,
        optimizer=OptimizerSpec(name="SGD"),
        timeline=Timeline(device="d", source="measured", forward=forward, backward=backward),
    )
    nodes = tuple(Node(name=f"n{i}", host="h", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    parts = parts_of(variables[0], partition)
    strategy = Strategy(
        partitions={} if partition is None else {"linear.weight": partition},
        messages=(
            *(Message(parts=(str(part.name),), synchroniser=SufficientFactors()) for part in parts),
            Message(parts=("linear.bias",), synchroniser=AllReduce()),
        ),
    )
    return lower(strategy, spec, ClusterSpec(name="test", nodes=nodes))


def attached(net: nn.Module, partition: Partition | None = None) -> tuple[Factors, Memory, Plan]:
    lowered = plan(partition)
    memory = Memory(lowered, dict(net.named_parameters()), contributes=True)
    factors = Factors(lowered, memory)
    factors.attach(net)
    return factors, memory, lowered


def weight_gradient(net: Net) -> torch.Tensor:
    assert net.linear.weight.grad is not None
    return net.linear.weight.grad


@pytest.mark.parametrize("partition", [None, Partition(axis=0, sizes=(2, 4)), Partition(axis=1, sizes=(3, 1))])
@pytest.mark.parametrize("shape", [(3, DEPTH), (2, 5, DEPTH), (DEPTH,), (0, DEPTH)])
def test_the_factors_of_one_call_make_up_the_gradient(partition: Partition | None, shape: tuple[int, ...]) -> None:
    net = Net()
    factors, memory, lowered = attached(net, partition)
    assert factors.variables == {"linear.weight"}
    for iteration in range(3):
        net.zero_grad()
        net.eval()
        with torch.no_grad():
            net(torch.randn(shape, dtype=torch.float64))
        net(torch.randn(shape, dtype=torch.float64))  # never goes backward
        net.train()
        net(torch.randn(shape, dtype=torch.float64)).square().sum().backward()
        factors.take("linear.weight", weight_gradient(net), iteration)
        for index, region in enumerate(lowered.regions):
            if region.kind == "factors":
                part = lowered.parts[region.part]
                flat = torch.empty(part.num_elements, dtype=torch.float64)
                rebuild([memory.get(index, iteration)], 1, flat)
                whole = weight_gradient(net)
                expected = whole if part.name.whole else whole.narrow(part.axis, part.begin, part.end - part.begin)
                torch.testing.assert_close(flat.view(part.shape), expected)
    factors.close()
    net.zero_grad()
    net(torch.randn(3, DEPTH, dtype=torch.float64)).sum().backward()
    with pytest.raises(OperationError, match="no call of its layer"):
        factors.take("linear.weight", weight_gradient(net), 3)


def _twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net(x).square() + net(2 * x)


def _by_function(net: Net, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, net.linear.weight).square()


def _both(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net(x).square() + functional.linear(x, net.linear.weight)


def _penalised(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net(x).square() + 1e-6 * net.linear.weight.square().sum()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (_twice, "2 calls of its layer"),
        (_by_function, "no call of its layer"),
        (_both, "not the product"),
        (_penalised, "not the product"),
    ],
)
@pytest.mark.parametrize("at_step", [0, 2])
def test_other_uses_of_a_weight_are_refused(use: Callable[..., torch.Tensor], message: str, at_step: int) -> None:
    net = Net()
    factors, _, _ = attached(net)
    x = torch.randn(3, DEPTH, dtype=torch.float64)
    for iteration in range(at_step):
        net.zero_grad()
        net(x).square().sum().backward()
        factors.take("linear.weight", weight_gradient(net), iteration)
    net.zero_grad()
    use(net, x).sum().backward()
    with pytest.raises(OperationError, match=message):
        factors.take("linear.weight", weight_gradient(net), at_step)


def test_a_gradient_that_was_not_set_to_zero_is_refused() -> None:
    net = Net()
    factors, _, _ = attached(net)
    x = torch.randn(3, DEPTH, dtype=torch.float64)
    net(x).sum().backward()
    factors.forget("linear.weight")
    net(2 * x).sum().backward()
    with pytest.raises(OperationError, match="not set to zero"):
        factors.take("linear.weight", weight_gradient(net), 0)


def test_a_gradient_thrown_away_does_not_count() -> None:
    net = Net()
    factors, _, _ = attached(net)
    x = torch.randn(3, DEPTH, dtype=torch.float64)
    net(x).sum().backward()
    factors.forget("linear.weight")
    net.zero_grad()
    net(2 * x).sum().backward()
    factors.take("linear.weight", weight_gradient(net), 0)


def test_a_copy_of_the_model_records_nothing() -> None:
    net = Net()
    factors, _, _ = attached(net)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        copied(torch.randn(3, DEPTH, dtype=torch.float64)).sum().backward()
        (hook,) = copied.linear._forward_hooks.values()
        assert hook(copied.linear, (), {}, None) is None
    assert factors._pairs == {"linear.weight": []}


def test_autocast_is_refused() -> None:
    net = Net().float()
    memory = Memory(plan(), dict(net.named_parameters()), contributes=True)
    factors = Factors(plan(), memory)
    factors.attach(net)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(OperationError, match="without autocast"):
        net(torch.randn(3, DEPTH))


def test_a_weight_of_two_layers_or_of_none_is_refused() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(DEPTH, WIDTH).double()
            self.other = nn.Linear(DEPTH, WIDTH, bias=False)
            self.other.weight = self.linear.weight

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Bilinear(1, 1, 1).double()
            self.linear.weight = nn.Parameter(torch.zeros(WIDTH, DEPTH, dtype=torch.float64))

    for kind, message in ((Tied, "a Linear and a Linear"), (Bare, "a Bilinear")):
        with pytest.raises(OperationError, match=message):
            attached(kind())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_not_taken_for_another_use(dtype: torch.dtype) -> None:
    net = Net().to(dtype)
    memory = Memory(plan(), dict(net.named_parameters()), contributes=True)
    factors = Factors(plan(), memory)
    factors.attach(net)
    for iteration in range(20):
        net.zero_grad()
        net(torch.randn(500, DEPTH, dtype=dtype)).square().mean().backward()
        factors.take("linear.weight", weight_gradient(net), iteration)
