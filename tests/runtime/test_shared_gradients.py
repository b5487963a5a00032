"""A gradient that shares its memory is taken apart when it comes: what is done to it in place does it alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autosync.runtime.session.gradient_arrivals import Arrivals

Loss = Callable[[dict[str, nn.Parameter]], Tensor]


def _views(p: dict[str, nn.Parameter]) -> Tensor:
    return (p["a"].view(6) + p["b"].view(6)).square().sum()


def _no_broadcast(p: dict[str, nn.Parameter]) -> Tensor:
    # What arrives for `c` is what goes on to `a`.
    return (torch.tanh(p["a"].view(1, 6)) + p["c"].unsqueeze(0)).square().sum()


def _three_views(p: dict[str, nn.Parameter]) -> Tensor:
    return (p["a"].view(6) + p["b"].view(6) + p["c"].view(2, 3).view(6)).exp().sum()


def _pieces_of_one(p: dict[str, nn.Parameter]) -> Tensor:
    return torch.cat([p["c"], p["b"].view(6)]).square().sum()


def _one_in_another(p: dict[str, nn.Parameter]) -> Tensor:
    return (torch.cat([p["c"], p["c"]]).view(2, 6) + p["d"].unsqueeze(0).view(2, 6)).square().sum()


def _parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (2, 3), "b": (3, 2), "c": (6,), "d": (12,)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator).double()) for name, shape in shapes.items()}


@pytest.mark.parametrize("loss", [_views, _no_broadcast, _three_views, _pieces_of_one, _one_in_another])
def test_what_is_done_to_a_gradient_in_place_changes_no_other(loss: Loss) -> None:
    parameters = _parameters()

    def work_in_place(name: str) -> None:
        gradient = parameters[name].grad
        assert gradient is not None
        gradient.mul_(2)

    arrivals = Arrivals(parameters, came=lambda _: True, is_whole=work_in_place)
    # Only from the second pass on is it known that a gradient is whole when it has come.
    for _ in range(3):
        for one in parameters.values():
            one.grad = None
        arrivals.begin()
        loss(parameters).backward()
        missing = arrivals.end()
        used = {name: one for name, one in parameters.items() if name not in missing}
        expected = torch.autograd.grad(loss(parameters), list(used.values()))
        for one, gradient in zip(used.values(), expected, strict=True):
            assert one.grad is not None
            torch.testing.assert_close(one.grad, 2 * gradient)
    arrivals.close()


def test_gradients_accumulate_each_in_its_own_memory() -> None:
    parameters = _parameters()
    arrivals = Arrivals(parameters, came=lambda _: False, is_whole=lambda _: None)
    for _ in range(2):
        _views(parameters).backward()
    (expected,) = torch.autograd.grad(_views(parameters), [parameters["a"]])
    assert parameters["a"].grad is not None
    torch.testing.assert_close(parameters["a"].grad, 2 * expected)
    arrivals.close()


class _Layers(nn.Module):
    """Layers as networks have them, each with gradients of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 12)
        self.pictures = nn.Conv2d(3, 4, 2)
        self.norm = nn.LayerNorm(12)
        self.layers = nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Linear(5, 1))

    def forward(self, words: Tensor) -> Tensor:
        pictures = self.pictures(self.words(words).view(-1, 3, 2, 2)).flatten(1)
        found: Tensor = self.layers(self.norm(torch.cat([pictures] * 3, dim=1))).square().sum()
        return found


def test_a_gradient_that_nothing_else_holds_is_not_copied() -> None:
    model = _Layers()
    parameters = dict(model.named_parameters())
    brought: dict[str, int] = {}
    found: dict[str, int] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(_: object, gradients: tuple[Tensor, ...]) -> None:
            brought[name] = gradients[0].data_ptr()

        return note

    def came(name: str) -> bool:
        gradient = parameters[name].grad
        assert gradient is not None
        found[name] = gradient.data_ptr()
        return True

    nodes = {name: one.expand_as(one).grad_fn.next_functions[0][0] for name, one in parameters.items()}
    for name, node in nodes.items():
        node.register_hook(noting(name))
    arrivals = Arrivals(parameters, came=came, is_whole=lambda _: None)
    words = torch.arange(6)
    for _ in range(2):
        model.zero_grad()
        model(words).backward()
        assert found == brought
    # Gradients that are there already are added to.
    found.clear()
    model(words).backward()
    assert found == {name: one.grad.data_ptr() for name, one in parameters.items() if one.grad is not None}
    arrivals.close()


def test_sparse_gradients_are_left_as_they_are() -> None:
    words = nn.Embedding(5, 2, sparse=True)
    arrivals = Arrivals(dict(words.named_parameters()), came=lambda _: True, is_whole=lambda _: None)
    for _ in range(2):
        words(torch.tensor([1, 1, 4])).sum().backward()
    assert words.weight.grad is not None
    assert words.weight.grad.to_dense().tolist() == [[0, 0], [4, 4], [0, 0], [0, 0], [2, 2]]
    arrivals.close()
