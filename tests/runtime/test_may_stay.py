"""Which variables of a plan may stay, what the engine's threads are told of it, and how ranks merge what they know."""

import queue
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan, Transfer
from autosync.runtime.memory.travelling import Travelling
from autosync.runtime.varying.bitmaps import Bitmaps
from autosync.runtime.varying.called_modules import CalledModules
from autosync.runtime.varying.may_stay import may_stay
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from tests.helpers.example_plans import SGD, cluster_of, model_of

NAMES = {"table", "linear", "bias"}


@pytest.fixture
def model() -> ModelSpec:
    return model_of()


def plan_of(model: ModelSpec, preset: str, *devices: int, **options: Any) -> Plan:
    cluster = cluster_of(*(devices or (1, 1, 1)))
    return lower(build_preset(preset, model, cluster, **options), model, cluster)


def test_all_variables_may_stay_if_messages_only_add_up(model: ModelSpec) -> None:
    found = may_stay(plan_of(model, "ddp"))
    assert set(found.names) == NAMES
    assert not found.engines
    assert not found.groups
    assert found.closed(["bias"]) == {"bias"}


def test_shards_travel_as_a_whole(model: ModelSpec) -> None:
    plan = plan_of(model, "fsdp")
    found = may_stay(plan)
    assert set(found.names) == found.engines == NAMES
    for message in plan.messages:
        names = {str(part) for part in message}
        assert found.closed([min(names)]) >= names


def test_a_hierarchical_sum_in_shards_travels_as_a_whole(model: ModelSpec) -> None:
    plan = plan_of(model, "hierarchical", 2, 2)
    assert any(isinstance(one, Transfer) and one.within for one in plan.operations)
    assert {name for group in may_stay(plan).groups for name in group} == NAMES


@pytest.mark.parametrize("preset", ["local_sgd", "ssp", "dgc", "power_sgd"])
def test_what_lasts_longer_than_a_step_travels_always_and_codes_as_a_whole(preset: str) -> None:
    found = may_stay(plan_of(model_of(optimizer=SGD), preset))
    if preset in ("local_sgd", "ssp"):
        assert not found.names
    else:
        grouped = {name for group in found.groups for name in group}
        assert all(name in grouped or len(found.closed([name])) == 1 for name in found.names)


def test_everything_travels_where_nodes_only_serve(model: ModelSpec) -> None:
    assert not may_stay(plan_of(model, "ps_load_balanced", 1, 1, 0)).names
    assert may_stay(plan_of(model, "ps_load_balanced", 1, 1)).names


def test_threads_wait_until_it_is_known_what_travels(model: ModelSpec) -> None:
    plan = plan_of(model, "ddp")
    travelling = Travelling(plan, NAMES, timeout_seconds=20)
    index, transfer = next((i, one) for i, one in enumerate(plan.operations) if isinstance(one, Transfer))
    assert not travelling.is_known(index, 3)
    told: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: told.put(travelling.moving(index, 3)))
    thread.start()
    travelling.agree(3, {"linear"})
    thread.join()
    names = [plan.parts[plan.regions[region].part].variable.name for region in transfer.regions]
    assert told.get() == tuple(r for r, name in zip(transfer.regions, names, strict=True) if name != "linear")
    assert travelling.is_known(index, 3)
    # Other iterations know nothing of it.
    assert not travelling.is_known(index, 4)


def test_parameters_travel_if_gradients_come_late(model: ModelSpec) -> None:
    plan = plan_of(model, "fsdp")
    travelling = Travelling(plan, NAMES, timeout_seconds=20)
    kinds = {
        plan.regions[one.regions[0]].kind: index
        for index, one in enumerate(plan.operations)
        if isinstance(one, Transfer)
    }
    travelling.agree(0, NAMES)
    assert travelling.moving(kinds["grad"], 0) == ()
    assert not travelling.is_known(kinds["param"], 0)
    travelling.decide(0, NAMES)
    assert travelling.moving(kinds["grad"], 0) == ()
    parameters = plan.operations[kinds["param"]]
    assert isinstance(parameters, Transfer)
    assert travelling.moving(kinds["param"], 0) == parameters.regions


def test_a_failed_agreement_ends_the_waits(model: ModelSpec) -> None:
    plan = plan_of(model, "ddp")
    travelling = Travelling(plan, NAMES, timeout_seconds=20)
    travelling.fail(OperationError("rank 1 is gone"))
    index = next(i for i, one in enumerate(plan.operations) if isinstance(one, Transfer))
    with pytest.raises(OperationError, match="rank 1 is gone"):
        travelling.moving(index, 0)


class QueueLinks:
    """Connections between threads."""

    def __init__(self, rank: int, queues: dict[tuple[int, int, int], Any]) -> None:
        self.rank = rank
        self._queues = queues

    def name(self, rank: int) -> str:
        return f"rank {rank}"

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Any:
        self._queues[self.rank, destination, tag].put(tensor.clone())
        return _Work(lambda: None)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        return _Work(lambda: tensor.copy_(self._queues[source, self.rank, tag].get(timeout=20)))


class _Work:
    def __init__(self, wait: Any) -> None:
        self.wait = wait


@settings(deadline=None, max_examples=30)
@given(data=st.data(), num_ranks=st.integers(1, 9), num_names=st.integers(1, 20))
def test_every_rank_learns_what_any_rank_knows(data: Any, num_ranks: int, num_names: int) -> None:
    names = [f"v{number}" for number in range(num_names)]
    known = data.draw(st.lists(st.sets(st.sampled_from(names)), min_size=num_ranks, max_size=num_ranks))
    queues = {(a, b, 7): queue.SimpleQueue() for a in range(num_ranks) for b in range(num_ranks)}
    found: list[list[str]] = [[] for _ in range(num_ranks)]

    def learn(rank: int) -> None:
        links: Any = QueueLinks(rank, queues)
        found[rank] = Bitmaps(links, names, num_ranks=num_ranks, tag=7).union(known[rank])

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = set().union(*known)
    assert found == [[name for name in names if name in everything]] * num_ranks


def test_modules_are_predicted_by_their_calls_in_training_or_with_gradients() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    called = CalledModules(model, dict(model.named_parameters()))
    x = torch.ones(1, 2)
    model["a"](x)
    assert called.names() == {"a.weight", "a.bias"}
    called.forget()
    model.eval()
    with torch.no_grad():
        model["b"](x)
    assert called.names() == set()
    called.close()
    model["a"](x)
    assert called.names() == set()


def test_a_parameter_that_is_read_is_predicted_by_the_module_around_it() -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = torch.nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.read.weight

    model = torch.nn.ModuleList([Reads(), Reads()])
    called = CalledModules(model, dict(model.named_parameters()))
    model[0](torch.ones(1, 2))
    assert called.names() == set()
    called.learn(["0.read.weight"])
    assert called.names() == {"0.read.weight"}
    called.forget()
    assert called.names() == set()
    model[0](torch.ones(1, 2))
    assert called.names() == {"0.read.weight"}
    called.forget()
    # Nothing was called that it could depend on.
    called.learn(["1.read.weight"])
    assert called.names() == {"1.read.weight"}
    called.close()


def test_tied_weights_are_predicted_by_a_call_of_either_module() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    called = CalledModules(model, dict(model.named_parameters()))
    model["b"](torch.ones(1, 2))
    assert called.names() == {"a.weight"}
    called.close()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_module_is_predicted_by_the_module_around_it() -> None:
    model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(2, 2)), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    called = CalledModules(model, dict(model.named_parameters()))
    model[1](torch.ones(1, 2))
    assert called.names() == {"1.0.weight", "1.0.bias"}
    called.forget()
    model(torch.ones(1, 2))
    assert called.names() == {"0.weight", "0.bias", "1.0.weight", "1.0.bias"}
    called.close()
