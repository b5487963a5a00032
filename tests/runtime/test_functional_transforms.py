"""What `torch.func` is given is heard of while anything listens, and torch is as before afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from autosync.errors import OperationError
from autosync.runtime.session import functional_transforms
from autosync.runtime.session.functional_transforms import ENTRANCES, WatchedTransforms


def _entrances() -> list[object]:
    return [getattr(importlib.import_module(module), name) for module, name in ENTRANCES]


@pytest.fixture
def heard() -> Iterator[list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    watched = WatchedTransforms(tensors.append)
    yield tensors
    watched.close()


@pytest.fixture
def stock_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own functions and no listeners: sessions of other tests may still listen in this process."""
    for module, name, original in functional_transforms._originals:
        monkeypatch.setattr(module, name, original)
    monkeypatch.setattr(functional_transforms, "_originals", [])
    monkeypatch.setattr(functional_transforms, "_listeners", {})


@pytest.mark.usefixtures("stock_torch")
def test_the_last_listener_puts_torch_back() -> None:
    before = _entrances()
    heard: list[torch.Tensor] = []
    first, second = WatchedTransforms(heard.append), WatchedTransforms(heard.append)
    tensor = torch.ones(3)
    first.close()
    assert torch.vmap(torch.neg)(tensor).tolist() == [-1, -1, -1]
    assert [one is tensor for one in heard] == [True]
    second.close()
    second.close()
    assert _entrances() == before
    torch.vmap(torch.neg)(tensor)
    assert len(heard) == 1


def test_compiled_code_is_as_without_listeners(heard: list[torch.Tensor]) -> None:
    compiled = torch.compile(lambda x: torch.vmap(torch.neg)(x) + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3)).tolist() == [0, 0, 0]


@pytest.mark.usefixtures("stock_torch")
def test_a_torch_that_lacks_an_entrance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional_transforms, "ENTRANCES", (("torch._functorch.vmap", "_no_such_entrance"),))
    with pytest.raises(OperationError, match=r"has no torch\._functorch\.vmap\._no_such_entrance \(without it"):
        WatchedTransforms(lambda _: None)
    assert not functional_transforms._listeners
