"""Backward passes are heard of as wholes, and gradients when they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autosync.errors import OperationError
from autosync.runtime.session import backward_passes as passes
from autosync.runtime.session.backward_passes import Passes, accumulate_quietly
from autosync.runtime.session.gradient_arrivals import Arrivals


class Heard:
    """What is heard of a model's gradients and passes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.said: list[str] = []
        self.passes = Passes(
            begins=lambda: self.said.append("begins"),
            ends=lambda is_ours: self.said.append("ends" if is_ours else "ends elsewhere"),
            fails=lambda _: self.said.append("fails"),
        )
        self.arrivals = Arrivals(dict(model.named_parameters()), came=self._came, is_whole=self.said.append)

    def _came(self, _: str) -> bool:
        self.passes.gradient_came()
        return True

    def backward(self, loss: torch.Tensor) -> list[str]:
        """What is heard of a pass, up to its end."""
        self.said.clear()
        self.arrivals.begin()
        loss.backward()
        return list(self.said)

    def close(self) -> None:
        self.passes.close()
        self.arrivals.close()


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard(nn.Linear(2, 2, bias=False))
    yield made
    made.close()


X = torch.ones(1, 2, requires_grad=True)


def test_a_pass_begins_and_ends_once_however_many_are_within(heard: Heard) -> None:
    once = checkpoint(heard.model, X, use_reentrant=True)
    twice = checkpoint(heard.model, once, use_reentrant=True)
    assert heard.backward(twice.sum()) == ["begins", "ends"]
    assert heard.backward(X.sum()) == ["begins", "ends elsewhere"]


def test_a_gradient_is_told_when_it_has_come_as_often_as_in_the_pass_before(heard: Heard) -> None:
    def loss() -> torch.Tensor:
        once = checkpoint(heard.model, X, use_reentrant=True)
        return checkpoint(heard.model, once, use_reentrant=True).sum()

    heard.backward(loss())
    assert heard.arrivals.end() == []
    assert heard.said[-1] == "weight"
    assert heard.backward(loss()) == ["begins", "weight", "ends"]
    assert heard.arrivals.end() == []
    assert heard.said.count("weight") == 1
    # It comes once alone: it is whole when the pass has ended.
    assert heard.backward(heard.model(X).sum()) == ["begins", "ends"]
    assert heard.arrivals.end() == []
    assert heard.said[-1] == "weight"
    # That it came less often once changes nothing for the passes after that.
    assert heard.backward(loss()) == ["begins", "weight", "ends"]
    assert heard.arrivals.end() == []
    # It was told, and comes again.
    more = checkpoint(heard.model, loss().expand(1, 2), use_reentrant=True)
    with pytest.raises(OperationError, match="came 3 times in this backward pass and 2 times"):
        heard.backward(more.sum())
    assert heard.said[-1] == "fails"


def test_a_pass_whose_end_is_cut_short_has_failed_for_the_models_after_it_too(heard: Heard) -> None:
    other = Heard(nn.Linear(2, 2, bias=False))

    def cut_short(_: bool) -> None:
        raise KeyboardInterrupt

    heard.passes._ends = cut_short  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        (heard.model(X).sum() + other.model(X).sum()).backward()
    assert (heard.said, other.said) == (["begins", "fails"], ["begins", "fails"])
    heard.close()
    other.said.clear()
    other.model(X).sum().backward()
    assert other.said == ["begins", "ends"]
    other.close()


def test_passes_of_other_threads_are_of_other_models(heard: Heard) -> None:
    other = nn.Linear(2, 2)
    thread = threading.Thread(target=lambda: other(X).sum().backward())
    thread.start()
    thread.join()
    assert heard.said == []
    # The model's own pass on another thread is heard of from its first gradient on.
    thread = threading.Thread(target=lambda: heard.backward(heard.model(X).sum()))
    thread.start()
    thread.join()
    assert heard.said == ["begins", "ends"]


def test_what_did_not_come_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    heard = Heard(model)
    heard.backward(model["used"](X).sum())
    assert heard.arrivals.end() == ["idle.weight", "idle.bias"]
    heard.close()


def test_hooks_of_the_script_come_first(heard: Heard) -> None:
    (weight,) = heard.model.parameters()
    weight.register_post_accumulate_grad_hook(lambda _: heard.said.append("the script's"))  # type: ignore[no-untyped-call]
    heard.backward(heard.model(X).sum())
    heard.arrivals.end()
    assert heard.backward(heard.model(X).sum()) == ["begins", "the script's", "weight", "ends"]


def test_gradients_that_are_asked_for_are_no_pass(heard: Heard) -> None:
    torch.autograd.grad(heard.model(X).sum(), list(heard.model.parameters()))
    assert heard.said == []


def test_what_is_accumulated_quietly_is_not_heard(heard: Heard) -> None:
    heard.arrivals.close()
    (weight,) = heard.model.parameters()
    hooks: list[str] = []
    weight.register_hook(lambda _: hooks.append("before"))  # type: ignore[no-untyped-call]
    weight.register_post_accumulate_grad_hook(lambda _: hooks.append("after"))  # type: ignore[no-untyped-call]
    accumulate_quietly([weight], [torch.full_like(weight, 3.0)])
    assert weight.grad is not None
    assert weight.grad.eq(3).all()
    assert (hooks, heard.said) == ([], [])
    heard.model(X).sum().backward()
    assert hooks == ["before", "after"]


def test_what_is_closed_is_not_told_of_passes() -> None:
    closed = Heard(nn.Linear(2, 2))
    closed.close()
    assert closed.passes not in passes._OPEN
    closed.model(X).sum().backward()
    assert closed.said == []
