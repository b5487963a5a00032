"""Cuts are found by what crosses them: skip connections, masks, tied weights; and models that cannot be cut say why."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autosync.specs.profile.find_cuts import FoundCuts, OtherBatch, cuts_of_task, find_cuts
from autosync.specs.profile.recorder import structure_of
from autosync.specs.task import Task

BATCH, WIDTH = 4, 8
ROW = 4 * WIDTH


def _cuts_of(model: nn.Module, batch: torch.Tensor | None = None) -> FoundCuts:
    given = torch.randn(BATCH, WIDTH) if batch is None else batch
    return find_cuts(structure_of(model), model, lambda: model(given).square().mean(), given)


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class _Skip(nn.Module):
    """The second layer is passed by, and the addition is in no module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _linear(), _linear(), _linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        result: torch.Tensor = self.third(torch.tanh(self.second(x)) + x)
        return result


class _Masked(nn.Module):
    """A mask without a gradient is used again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _linear(), _linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        mask = (x > 0).float()
        result: torch.Tensor = self.second(y) * mask
        return result


class _Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _linear(), _linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        result: torch.Tensor = self.second(y) * float(y.abs().max().item())
        return result


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, WIDTH)
        self.middle = _linear()
        self.head = nn.Linear(WIDTH, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.middle(self.words(words)))
        return result


def test_a_chain_passes_on_one_activation() -> None:
    found = _cuts_of(nn.Sequential(_linear(), nn.Tanh(), _linear(), nn.ReLU(), _linear()))
    assert found.uncut == ""
    assert [(cut.before, cut.num_bytes, cut.constant_bytes) for cut in found.cuts] == [
        (1, BATCH * ROW, 0),
        (2, BATCH * ROW, 0),
    ]
    held = [cut.held_bytes for cut in found.cuts]
    assert 0 < held[0] < held[1]


def test_a_skip_connection_crosses_too() -> None:
    found = _cuts_of(_Skip())
    # Before the second layer only its input crosses; before the third, both were added up already.
    assert [cut.num_bytes for cut in found.cuts] == [BATCH * ROW, BATCH * ROW]
    chain = nn.Sequential(_linear(), _Skip(), _linear())
    assert [cut.num_bytes for cut in _cuts_of(chain).cuts] == [BATCH * ROW] * 4


def test_a_skip_past_two_layers_crosses_both_cuts() -> None:
    class Far(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x))
            result: torch.Tensor = self.third(torch.tanh(self.second(x))) + x
            return result

    assert [cut.num_bytes for cut in _cuts_of(Far()).cuts] == [BATCH * ROW, 2 * BATCH * ROW]


def test_what_needs_no_gradient_is_told_apart() -> None:
    (cut,) = _cuts_of(_Masked()).cuts
    assert (cut.num_bytes, cut.constant_bytes) == (BATCH * ROW, BATCH * ROW)


def test_what_does_not_grow_with_the_batch_is_told_apart() -> None:
    class Places(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(WIDTH)
            places = torch.tanh(self.second(torch.ones(3, WIDTH)))
            result: torch.Tensor = self.third(torch.tanh(self.first(x)) * mask + places.sum(0))
            return result

    model, whole = Places(), torch.randn(BATCH, WIDTH)
    half = whole[: BATCH // 2]
    other = OtherBatch(half, lambda: model(half).square().mean(), BATCH // 2, BATCH)
    found = find_cuts(structure_of(model), model, lambda: model(whole).square().mean(), whole, other=other)
    first, second = found.cuts
    assert (first.num_bytes, first.fixed_bytes) == (3 * ROW, 3 * ROW)
    assert (first.constant_bytes, first.fixed_constant_bytes) == (ROW, ROW)
    assert (second.num_bytes, second.fixed_bytes) == (BATCH * ROW, 0)


def test_uses_outside_the_owning_module_are_named() -> None:
    class Borrows(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.second(torch.tanh(self.first(x)))
            result: torch.Tensor = self.third(x @ self.first.weight)
            return result

    found = _cuts_of(Borrows())
    assert [cut.uses for cut in found.cuts] == [("first.weight",), ()]
    assert [cut.tied for cut in found.cuts] == [("first.weight",), ()]


def test_weights_on_both_sides_are_named() -> None:
    found = _cuts_of(_Tied(), torch.randint(5, (BATCH,)))
    assert [cut.tied for cut in found.cuts] == [("words.weight",), ("words.weight",)]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_models_that_cannot_be_cut_say_why() -> None:
    assert "reads the value of a tensor" in _cuts_of(_Reads()).uncut
    assert "1 modules with parameters" in _cuts_of(_linear()).uncut
    assert "scripted" in _cuts_of(torch.jit.script(nn.Sequential(_linear(), _linear()))).uncut


def test_what_cannot_be_recorded_is_a_reason() -> None:
    class Mapped(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = torch.vmap(torch.tanh)(self.first(x))
            result: torch.Tensor = self.third(self.second(rows))
            return result

    model, batch = Mapped(), torch.randn(BATCH, WIDTH)
    model(batch)
    assert "vmap" in _cuts_of(model, batch).uncut

    class Fails(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
                return super().forward(x)

    assert "its pass cannot be recorded: " in _cuts_of(Fails()).uncut


def test_a_single_example_is_compared_with_two() -> None:
    class Table(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = torch.arange(float(WIDTH)).cos()
            result: torch.Tensor = self.third(torch.tanh(self.second(torch.tanh(self.first(x))))) * table
            return result

    task = Task(
        name="single",
        model=Table,
        batch=lambda generator: torch.randn(1, WIDTH, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=1,
    )
    model = Table()
    found = cuts_of_task(task, structure_of(model), model, torch.randn(1, WIDTH))
    assert [(cut.num_bytes, cut.fixed_bytes) for cut in found.cuts] == [(ROW, 0), (ROW, 0)]
    assert [(cut.constant_bytes, cut.fixed_constant_bytes) for cut in found.cuts] == [(ROW, ROW), (ROW, ROW)]
    fixed = replace(task, loss=lambda model, x: model(x.view(1, WIDTH)).square().mean())
    assert "a microbatch cannot pass" in cuts_of_task(fixed, structure_of(model), model, torch.randn(1, WIDTH)).uncut
    other = replace(task, loss=lambda model, x: (model if len(x) == 1 else model.first)(x).square().mean())
    uncut = cuts_of_task(other, structure_of(model), model, torch.randn(1, WIDTH)).uncut
    assert uncut == "the modules that it calls change from pass to pass"


def test_activation_checkpointing_is_noted() -> None:
    class Checkpointed(_Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x))
            result: torch.Tensor = self.third(checkpoint(self.second, x, use_reentrant=False))
            return result

    found = _cuts_of(Checkpointed())
    assert len(found.cuts) == 2
    assert "recompute: true" in found.note
    assert _cuts_of(_Skip()).note == ""
