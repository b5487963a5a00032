"""Whatever reads or writes a parameter whose update is under way waits for it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.optim.swa_utils import AveragedModel

from autosync.errors import OperationError
from autosync.runtime.session.pending_parameters import Awaited, pass_this_thread


class Updates:
    """A model whose updates are said to be under way; `waited` are the names of those that were waited for."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.waited: list[str] = []
        parameters = dict(model.named_parameters())
        names = list(parameters)
        self.awaited = Awaited(model, parameters, lambda number: self.waited.append(names[number]), holders={})

    def begin(self) -> list[str]:
        """Begin anew; what was waited for at once."""
        self.awaited.settle()
        self.waited.clear()
        self.awaited.begin(self.awaited.shared())
        at_once = list(self.waited)
        self.waited.clear()
        return at_once


@pytest.fixture
def updates() -> Iterator[Updates]:
    made = Updates(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)))
    yield made
    made.awaited.close()


ALL = ["0.weight", "0.bias", "1.weight", "1.bias"]
BATCH = torch.ones(4, 3)
ACCESSES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a call": (lambda m: m(BATCH), ALL),
    "a module's forward": (lambda m: m[0].forward(BATCH), ALL[:2]),
    "a function": (lambda m: nn.functional.linear(BATCH, m[0].weight), ALL[:1]),
    "an operator": (lambda m: BATCH @ m[0].weight.t(), ALL[:1]),
    "data": (lambda m: m[0].weight.data, ALL[:1]),
    "detach": (lambda m: m[0].bias.detach().clamp_(-1, 1), ALL[1:2]),
    "one number": (lambda m: float(m[0].bias[0]), ALL[1:2]),
    "numbers": (lambda m: list(m[0].bias), ALL[1:2]),
    "a vector": (lambda m: nn.utils.parameters_to_vector(m.parameters()), ALL),
    "many at once": (lambda m: torch._foreach_norm(list(m.parameters())), ALL),
    "an average": (lambda m: AveragedModel(m).update_parameters(m), ALL),
    "a copy": (copy.deepcopy, ALL),
    "a pickle": (lambda m: pickle.dumps(m[0].weight), ALL[:1]),
    "a state": (lambda m: m.state_dict(), ALL),
    "a functional call": (lambda m: torch.func.functional_call(m, dict(m.named_parameters()), BATCH), ALL),
    "an initialisation": (lambda m: nn.init.zeros_(m[0].bias), ALL[1:2]),
    "memory": (lambda m: m[0].weight.data_ptr(), ALL[:1]),
    "words": (lambda m: repr(m[0].weight), ALL[:1]),
    "another type": (lambda m: m.to(torch.float64), ALL),
    "a vmap": (lambda m: torch.vmap(torch.sum)(m[0].weight), ALL[:1]),
    "a grad": (lambda m: torch.func.grad(torch.sum)(m[0].weight), ALL[:1]),
    "a vjp": (lambda m: torch.func.vjp(torch.sum, m[0].weight), ALL[:1]),
    "a jvp": (lambda m: torch.func.jvp(torch.sum, (m[0].weight,), (torch.ones(2, 3),)), ALL[:1]),
    "a jacrev": (lambda m: torch.func.jacrev(torch.sum)(m[0].weight), ALL[:1]),
    "a jacfwd": (lambda m: torch.func.jacfwd(torch.sum)(m[0].weight), ALL[:1]),
    "a hessian": (lambda m: torch.func.hessian(torch.sum)(m[0].bias), ALL[1:2]),
    "a functionalize": (lambda m: torch.func.functionalize(torch.sum)(m[0].weight), ALL[:1]),
    "a linearize": (lambda m: torch.func.linearize(torch.sum, m[0].weight), ALL[:1]),
    "a vmap over others": (lambda m: torch.vmap(lambda x: m[0].weight @ x)(BATCH), ALL[:1]),
    "a parameter in a dictionary": (lambda m: torch.func.grad(lambda p: p["w"].sum())({"w": m[0].weight}), ALL[:1]),
    "a dual": (lambda m: _dual(m[0].weight), ALL[:1]),
    "a dictionary": (lambda m: torch.stack([*{"bias": m[0].bias}.values()]), ALL[1:2]),
}


def _dual(tensor: torch.Tensor) -> None:
    with forward_ad.dual_level():
        forward_ad.make_dual(tensor, torch.ones_like(tensor))


# Forward-mode derivatives load decompositions that torch scripts.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("name", ACCESSES)
def test_an_access_waits_for_what_it_reads(updates: Updates, name: str) -> None:
    access, expected = ACCESSES[name]
    assert updates.begin() == []
    with torch.no_grad():
        access(updates.model)
    assert updates.waited == expected


def test_what_reads_no_value_waits_for_nothing(updates: Updates) -> None:
    weight = updates.model[0].weight  # type: ignore[index,union-attr]
    updates.model(BATCH).sum().backward()
    updates.begin()
    updates.model.zero_grad()
    assert weight.grad is None
    assert weight.shape == (2, 3)
    assert (weight.numel(), weight.dim(), weight.dtype, weight.requires_grad) == (6, 2, torch.float32, True)
    assert torch.zeros_like(weight).sum() == 0
    assert isinstance(weight, nn.Parameter)
    assert updates.waited == []


def test_a_parameter_is_waited_for_once_and_is_then_as_before(updates: Updates) -> None:
    updates.begin()
    updates.model(BATCH)
    updates.model(BATCH)
    assert updates.waited == ALL
    assert {type(parameter) for parameter in updates.model.parameters()} == {nn.Parameter}


def test_a_class_of_the_users_own_comes_back() -> None:
    class Mine(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Mine(torch.ones(2, 2))
    updates = Updates(model)
    updates.begin()
    assert isinstance(model.weight, Mine)
    model(torch.ones(1, 2))
    assert type(model.weight) is Mine
    updates.awaited.close()


KEEPERS: dict[str, Callable[[torch.Tensor], object]] = {
    "a view": lambda weight: weight.data.view(-1),
    "an array": lambda weight: weight.detach().numpy(),
    "a capsule": lambda weight: torch.utils.dlpack.to_dlpack(weight.detach()),
    "a storage": lambda weight: weight.untyped_storage(),
    "a typed storage": lambda weight: weight.storage(),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("keeper", KEEPERS)
def test_memory_that_another_object_shares_is_waited_for_at_once(updates: Updates, keeper: str) -> None:
    kept = KEEPERS[keeper](updates.model[0].weight)  # type: ignore[index,arg-type,union-attr]
    assert updates.begin() == ["0.weight"]
    del kept
    assert updates.begin() == []


def test_new_memory_that_a_script_keeps_is_waited_for_at_once() -> None:
    """The engine's tensors of before do not stand for those of the script."""
    model = nn.Linear(2, 2)
    of_engine = model.weight.data
    awaited = Awaited(model, dict(model.named_parameters()), lambda _: None, holders={"weight": 1})
    assert awaited.shared() == frozenset()
    kept = torch.ones(2, 2)
    model.weight.data = kept
    assert awaited.shared() == {0}
    assert of_engine.data_ptr() != kept.data_ptr()
    awaited.close()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_modules_are_waited_for_at_once() -> None:
    updates = Updates(nn.Sequential(torch.jit.script(nn.Linear(3, 2)), nn.Linear(2, 2)))
    assert updates.begin() == ["0.weight", "0.bias"]
    updates.awaited.close()


def test_evaluation_waits_for_all(updates: Updates) -> None:
    updates.model.eval()
    updates.begin()
    with torch.no_grad():
        updates.model(BATCH)
    assert updates.waited == ALL


def test_attention_that_is_not_trained_takes_its_usual_path() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    updates = Updates(model)
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        expected = model(x, x, x)[0]
        updates.begin()
        assert torch.equal(model(x, x, x)[0], expected)
    updates.awaited.close()


def test_what_keeps_an_update_from_its_end_is_raised_at_every_access() -> None:
    model = nn.Linear(3, 2)

    def fail(_: int) -> None:
        raise OperationError("rank 1 is gone")

    awaited = Awaited(model, dict(model.named_parameters()), fail, holders={})
    awaited.begin()
    for _ in range(2):
        with pytest.raises(OperationError, match="rank 1 is gone"):
            model.weight.sum()
    awaited.close()
    assert type(model.weight) is nn.Parameter


def test_an_engines_thread_does_not_wait(updates: Updates) -> None:
    def update() -> None:
        pass_this_thread()
        updates.model[0].weight.detach().add_(1)  # type: ignore[index,union-attr]

    updates.begin()
    thread = threading.Thread(target=update)
    thread.start()
    thread.join()
    assert updates.waited == []
