"""TicTac: the order in which a plan returns parameters, against TIC and TAC as the paper has them."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]

RATE = 125e6


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a parameter that has not come yet: P, M and M+ of the paper."""

    lets_start: float
    takes: float
    waits_with: float


def _facts(model: ModelSpec, outstanding: Sequence[str], takes: Mapping[str, float]) -> dict[str, Facts]:
    """Section 4.1: each computation waits for what it and all computations before it need."""
    lets_start = dict.fromkeys(outstanding, 0.0)
    waits_with = dict.fromkeys(outstanding, math.inf)
    awaited: dict[str, None] = {}
    for segment in model.timeline.forward:
        awaited |= {name: None for name in segment.variables if name in lets_start}
        if len(awaited) == 1:
            lets_start[next(iter(awaited))] += segment.seconds
        elif awaited:
            load = sum(takes[name] for name in awaited)
            waits_with |= {name: min(load, waits_with[name]) for name in awaited}
    return {name: Facts(lets_start[name], takes[name], waits_with[name]) for name in outstanding}


def _tic(model: ModelSpec) -> dict[str, float]:
    """Algorithm 2: every parameter takes 1, computation nothing; a smaller number goes first."""
    names = [variable.name for variable in model.variables]
    return {name: facts.waits_with for name, facts in _facts(model, names, dict.fromkeys(names, 1.0)).items()}


def _before(one: Facts, other: Facts) -> bool:
    """Algorithm 3: whether one must go before the other."""
    first, second = min(other.lets_start, one.takes), min(one.lets_start, other.takes)
    return one.waits_with < other.waits_with if first == second else first < second


def _orders(model: ModelSpec, plan: Plan) -> Mapping[int, list[str]]:
    """For each server, the variables in the order in which they come back to workers."""
    found: dict[int, list[str]] = defaultdict(list)
    lanes: dict[int, set[int]] = defaultdict(set)
    for operation in plan.operations:
        if isinstance(operation, Transfer) and operation.collective == "broadcast":
            (group,) = operation.groups
            (name,) = plan.messages[operation.message]
            found[group[0]].append(name)
            lanes[group[0]].add(operation.lane)
    assert sorted(name for names in found.values() for name in names) == sorted(v.name for v in model.variables)
    assert all(len(used) == 1 for used in lanes.values()), "a channel keeps its order"
    assert len({lane for used in lanes.values() for lane in used}) == len(lanes), "a channel waits for no other"
    return found


@functools.cache
def _plan(model_name: str) -> tuple[ModelSpec, Plan]:
    model, cluster = load_model(model_name), load_cluster("4-hosts")
    return model, lower(build_preset("tictac", model, cluster), model, cluster)


@pytest.mark.parametrize("name", ["resnet18", "bert_small", "inception_v3"])
def test_the_order_of_each_channel_is_one_that_tic_allows(name: str) -> None:
    model, plan = _plan(name)
    priority = _tic(model)
    for names in _orders(model, plan).values():
        assert [priority[name] for name in names] == sorted(priority[name] for name in names)


@pytest.mark.parametrize("name", ["resnet18", "bert_small"])
def test_the_order_of_each_channel_is_one_that_tac_allows(name: str) -> None:
    """Step by step over all parameters in the order of use: none that is left must go before the next."""
    model, plan = _plan(name)
    takes = {variable.name: variable.num_bytes / RATE for variable in model.variables}
    place = {name: place for names in _orders(model, plan).values() for place, name in enumerate(names)}
    use = {variable.name: variable.use for variable in model.variables}
    outstanding = sorted(use, key=lambda name: (use[name], place[name]))
    while outstanding:
        facts = _facts(model, outstanding, takes)
        chosen = outstanding.pop(0)
        assert not any(_before(facts[left], facts[chosen]) for left in outstanding), chosen


def test_a_channel_for_each_server(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(*(variable(f"w{index}", 4) for index in range(6)))

    def lanes(nodes: ClusterSpec, **options: Any) -> list[int]:
        return [message.lane for message in build_preset("tictac", spec, nodes, **options).messages]

    assert lanes(cluster([1, 1, 1])) == [0, 1, 2, 0, 1, 2]
    assert lanes(cluster([1, 1, 1]), num_lanes=2) == [0, 1, 0, 0, 1, 0]
    assert max(lanes(cluster([1] * 10, backend="nccl"))) < 8
    strategy = build_preset("tictac", spec, cluster([1, 1, 1]))
    assert strategy.overlap == "forward"
    assert {message.priority for message in strategy.messages} == {0}


def test_updates_are_the_servers(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset("tictac", model(variable("a", 4), optimizer=optimizers["lamb"]), cluster([1, 1]))
