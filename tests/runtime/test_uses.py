"""Before a parameter is used, whoever brings its update hears of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autosync.runtime.uses import Uses


class Tied(nn.Module):
    """A table that is used again at the end by a function, not by the module that owns it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.table = nn.Embedding(7, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.out(self.table(tokens)) * self.scale
        return torch.nn.functional.linear(hidden, self.table.weight)


class Hidden(torch.autograd.Function):
    """Torch functions do not see what a custom function gets."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return value * weight

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], gradients[0]


class Custom(nn.Module):
    """One parameter in a module that is called, one that no module's call tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.inner = Scale()
        self.loose = nn.ParameterList([nn.Parameter(torch.ones(3))])

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.inner(self.first(value))
        hidden: torch.Tensor = Hidden.apply(value, self.loose[0])  # type: ignore[no-untyped-call]
        return hidden


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = Hidden.apply(value, self.weight)  # type: ignore[no-untyped-call]
        return scaled


def _passes(model: nn.Module, batch: torch.Tensor, count: int = 3) -> tuple[Uses, list[list[str]]]:
    """What is heard in each of some passes, with the modules' calls between."""
    heard: list[list[str]] = []
    parameters = dict(model.named_parameters())
    names = list(parameters)
    uses = Uses(model, parameters, lambda numbers: heard[-1].append(",".join(names[number] for number in numbers)))
    for name, module in model.named_modules():
        if name:
            module.register_forward_pre_hook(lambda *_, name=name: heard[-1].append(f"({name})"))
    for _ in range(count):
        heard.append([])
        model(batch)
    return uses, heard


def test_the_pass_that_is_watched_waits_for_all_at_its_start() -> None:
    model = Tied()
    uses, heard = _passes(model, torch.tensor([1, 2]), 1)
    assert heard == [[",".join(dict(model.named_parameters())), "(table)", "(out)"]]
    assert uses.is_known


def test_later_passes_wait_where_the_first_use_was() -> None:
    _, heard = _passes(Tied(), torch.tensor([1, 2]))
    assert heard[1] == ["scale", "table.weight", "(table)", "out.weight,out.bias", "(out)"]
    assert heard[2] == heard[1]


def test_what_functions_hide_waits_at_its_owner_or_at_the_start() -> None:
    _, heard = _passes(Custom(), torch.ones(2, 3))
    assert heard[1] == ["loose.0", "first.weight,first.bias", "(first)", "inner.weight", "(inner)"]


def test_a_part_of_the_model_that_is_called_by_itself_waits_too() -> None:
    model = Tied()
    _, heard = _passes(model, torch.tensor([1]))
    heard.append([])
    model.table(torch.tensor([2]))
    assert heard[-1] == ["table.weight", "(table)"]


def test_nothing_is_known_while_the_whole_was_never_called() -> None:
    model = Tied()
    heard: list[tuple[int, ...]] = []
    uses = Uses(model, dict(model.named_parameters()), heard.append)
    model.table(torch.tensor([2]))
    assert not uses.is_known
    assert heard == []


def test_a_pass_that_fails_while_watched_is_not_taken_for_a_whole_one() -> None:
    model = Tied()
    uses = Uses(model, dict(model.named_parameters()), lambda _: None)
    for batch in (torch.tensor([99]), torch.tensor([1])):
        try:
            model(batch)
        except IndexError:
            assert not uses.is_known
    assert uses.is_known
    # The watch is over: nothing of it is left in the way of torch's functions.
    assert torch.overrides._len_torch_function_stack() == 0  # type: ignore[attr-defined]


def test_when_closed_nothing_is_left() -> None:
    model = Tied()
    uses, heard = _passes(model, torch.tensor([1]))
    uses.close()
    heard.append([])
    model(torch.tensor([1]))
    assert heard[-1] == ["(table)", "(out)"]
