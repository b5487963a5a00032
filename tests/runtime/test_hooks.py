"""Hooks on a script's objects: copies of these are as if there had been no hooks."""

import copy
import pickle

import torch
from torch import nn

from autosync.runtime.session.hooks import Hook


def _hooked() -> tuple[nn.Module, list[str]]:
    model, heard = nn.Linear(2, 2), list[str]()
    model.register_forward_pre_hook(Hook(lambda *_: heard.append("begins")))
    model.register_forward_hook(Hook(lambda *_: heard.append("ends")), with_kwargs=True)
    model.register_state_dict_pre_hook(Hook(lambda *_: heard.append("is read")))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(Hook(lambda *_: heard.append("is loaded")))  # type: ignore[no-untyped-call]
    return model, heard


def _use(model: nn.Module) -> torch.Tensor:
    model.load_state_dict(model.state_dict())
    found: torch.Tensor = model(torch.ones(1, 2))
    return found


def test_a_hook_is_called() -> None:
    model, heard = _hooked()
    _use(model)
    assert heard == ["is read", "is loaded", "begins", "ends"]


def test_copies_of_hooks_do_nothing() -> None:
    model, heard = _hooked()
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(_use(one), _use(model))
        heard.clear()
        _use(one)
        assert heard == []


def test_what_is_pickled_needs_no_autosync() -> None:
    model, _ = _hooked()
    assert b"autosync" not in pickle.dumps(model)


def test_a_copy_compiles_as_one_graph() -> None:
    model, _ = _hooked()
    compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)))
