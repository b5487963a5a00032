"""The first worker finds each change of parameters that servers update, however the script makes it."""

from collections.abc import Callable

import pytest
import torch

from autosync.runtime.memory.same_bits import have_same_bits
from autosync.runtime.serving.known_parameters import KnownParameters

CHANGES: dict[str, Callable[[torch.nn.Parameter], object]] = {
    "data": lambda p: p.data.mul_(0.5),
    "in place": lambda p: p.detach().add_(1),
    "an array": lambda p: p.detach().numpy().fill(3),
    "new memory": lambda p: setattr(p, "data", torch.ones(2, 3)),
    "another shape": lambda p: setattr(p, "data", torch.full((3, 2), -0.5)),
    "the other zero": lambda p: p.data[0, :1].neg_(),
}


def known() -> tuple[KnownParameters, dict[str, torch.nn.Parameter]]:
    parameters = {name: torch.nn.Parameter(torch.arange(6.0).view(2, 3)) for name in ("weight", "other")}
    return KnownParameters(parameters), parameters


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_until_it_is_noted(change: str) -> None:
    found, parameters = known()
    assert found.changed() == []
    CHANGES[change](parameters["weight"])
    assert found.changed() == ["weight"]
    found.note(["weight", "of another optimizer"])
    assert found.changed() == []


def test_what_is_about_to_change_at_the_servers_is_not_compared() -> None:
    found, parameters = known()
    found.forget()
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    assert found.changed() == []
    found.note(["other"])
    parameters["other"].data[0, 0] = 1
    assert found.changed() == ["other"]


def test_bits_are_compared_in_any_layout() -> None:
    one = torch.randn(2, 3, 4, 5)
    one[0, 0, 0, 0] = float("nan")
    assert have_same_bits(one, one.clone(memory_format=torch.channels_last))
    assert have_same_bits(one.bfloat16(), one.bfloat16())
    assert not have_same_bits(one, one.double())
    assert not have_same_bits(one, one[:1])
