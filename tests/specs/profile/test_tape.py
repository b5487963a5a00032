"""A recorded pass, made again with other tensors, computes what the model computes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosync.specs.profile.recorder import structure_of
from autosync.specs.profile.tape import Tape, record

WIDTH = 6


class _Many(nn.Module):
    """In-place changes, views, slices, sums over lists, a generator of rows, no gradients, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu_(self.first(x) + 0.1) * 1.5
        x[:, 0] = 2.0
        left, right = self.second(x).chunk(2, dim=1)
        rows = torch.stack([row * 2 for row in torch.cat([left, right.tanh()], dim=1)])
        with torch.no_grad():
            scale = rows.std()
        y = functional.dropout(self.third(rows / scale), 0.3, training=True)
        return torch.add(y, x, alpha=0.5).T.contiguous()[..., :3].sum()


def _tape(model: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> Tape:
    return record(structure_of(model), model, lambda: forward(batch), batch)


def _again(tape: Tape, batch: torch.Tensor) -> torch.Tensor:
    values = dict(zip(tape.batch, [batch], strict=True))
    for call in tape.calls:
        values.update(call.make(values))
    return values[tape.loss]


def test_a_recorded_pass_gives_the_same_numbers_and_gradients() -> None:
    torch.manual_seed(1)
    model = _Many().double()
    tape = _tape(model, model, torch.randn(5, WIDTH, dtype=torch.float64))
    assert tape.problem == ""
    assert tape.modules == ["first", "second", "third"]
    other = torch.randn(5, WIDTH, dtype=torch.float64)
    found = []
    for run in (model, lambda batch: _again(tape, batch)):
        torch.manual_seed(2)
        loss = run(other)
        loss.backward()
        found.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
        model.zero_grad()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_values_that_share_memory_and_are_changed_are_not_torn_apart() -> None:
    class Shares(nn.Module):
        def __init__(self, *, changes: bool) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.changes = changes

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x) * 2
            turned = y.T
            z = self.second(torch.ones(1, WIDTH))
            if self.changes:
                y.mul_(3)
            return (y + turned.T + z).sum()

    batch = torch.randn(WIDTH, WIDTH)
    for changes in (False, True):
        model = Shares(changes=changes)
        assert _tape(model, model, batch).is_torn(1) == changes


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 5


def test_what_is_not_seen_is_a_problem() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    batch = torch.randn(3, WIDTH)
    own = _tape(model, lambda x: model[1](_Own.apply(model[0](x))).sum(), batch)
    assert "an autograd function" in own.problem

    def under_autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).sum()

    assert "autocast" in _tape(model, under_autocast, batch).problem


@pytest.mark.parametrize("read", [float, bool, int, torch.Tensor.item, torch.Tensor.tolist])
def test_reading_a_computed_value_is_a_problem(read: Callable[[torch.Tensor], object]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = model[0](x)
        read(y.detach().abs().max())
        result: torch.Tensor = model[1](y).sum()
        return result

    assert "reads the value" in _tape(model, forward, torch.randn(3, WIDTH)).problem


@pytest.mark.parametrize(
    ("read", "where"),
    [
        (lambda _, x: int(x[0, 0]), "before its first module"),
        (lambda _, x: x.tolist(), "before its first module"),
        (lambda _, x: bool((x == 0).all()), "before its first module"),
        (lambda model, _: model[0].weight.tolist(), "before its first module"),
        (lambda model, x: model[0](x) is None or x.tolist(), "in or after 0"),
    ],
    ids=["an element", "the batch", "a mask", "a parameter", "the batch after a layer"],
)
def test_reading_the_batch_or_a_parameter_is_a_problem(read: Callable[..., object], where: str) -> None:
    # The branch that the first batch takes would be taken for all.
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def forward(x: torch.Tensor) -> torch.Tensor:
        read(model, x)
        result: torch.Tensor = model(x).sum()
        return result

    problem = _tape(model, forward, torch.randn(3, WIDTH)).problem
    assert problem == f"the code {where} reads the value of a tensor, as by .item()"


def test_shapes_are_no_values() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows = x.view(len(x), x.shape[1]) if x.dim() == 2 and x.numel() else x
        result: torch.Tensor = model(rows.reshape(x.size(0), -1)).sum()
        return result

    assert _tape(model, forward, torch.randn(3, WIDTH)).problem == ""


def test_changed_buffers_are_named() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    tape = _tape(model, lambda x: model(x).sum(), torch.randn(3, WIDTH))
    assert "1.num_batches_tracked" in tape.changed


def _two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))


def _hooked_node(_: nn.Sequential, y: torch.Tensor) -> None:
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda *_: None)


def _replaced_data(model: nn.Sequential, _: torch.Tensor) -> None:
    model[1].weight.data = model[1].weight.data.clamp(-1, 1)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda _, y: y.register_hook(lambda gradient: gradient.sign()), "puts a hook on a gradient"),
        (lambda model, _: model[1].weight.register_hook(torch.sign), "puts a hook on a gradient"),
        (lambda model, _: model[1].weight.register_post_accumulate_grad_hook(print), "puts a hook on a gradient"),
        (lambda _, y: y.retain_grad(), "puts a hook on a gradient"),
        (_hooked_node, "puts a hook on a gradient"),
        (_replaced_data, "puts other values into a tensor"),
        (lambda _, y: y.detach_(), "changes whether a tensor needs a gradient"),
        (lambda model, _: model[1].weight.requires_grad_(requires_grad=False), "changes whether a tensor needs"),
        (lambda model, _: setattr(model[1].bias, "requires_grad", False), "changes whether a tensor needs"),
    ],
    ids=["hook", "of a parameter", "accumulated", "retained", "node", "data", "detached", "frozen", "set"],
)
def test_what_a_recorded_pass_would_not_repeat_is_a_problem(act: Callable[..., object], reason: str) -> None:
    model = _two_layers()

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = model[0](x)
        act(model, y)
        result: torch.Tensor = model[1](y).sum()
        return result

    problem = _tape(model, forward, torch.randn(3, WIDTH)).problem
    assert problem.startswith("the code in or after 0 ")
    assert reason in problem


def test_a_need_for_gradients_that_stays_as_it_is_is_no_problem() -> None:
    model = _two_layers()

    def forward(x: torch.Tensor) -> torch.Tensor:
        model[1].weight.requires_grad_(requires_grad=True)
        x.requires_grad = False
        result: torch.Tensor = model(x).sum()
        return result

    assert _tape(model, forward, torch.randn(3, WIDTH)).problem == ""


def test_a_parameter_whose_data_change_in_place_is_named() -> None:
    model = _two_layers()

    def forward(x: torch.Tensor) -> torch.Tensor:
        model[1].weight.data.clamp_(-1e-3, 1e-3)
        result: torch.Tensor = model(x).sum()
        return result

    assert _tape(model, forward, torch.randn(3, WIDTH)).changed == ["1.weight"]


def test_tensors_that_torch_hides_are_a_problem() -> None:
    model, row = _two_layers(), torch.randn(WIDTH)

    def mapped(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (model(x) * torch.vmap(lambda one: (one * row).sum())(x).detach()).sum()
        return result

    assert "torch.vmap" in _tape(model, mapped, torch.randn(3, WIDTH)).problem

    def inferred(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scale = x.square().sum(1, keepdim=True)
            scale = scale + 1
        result: torch.Tensor = (model(x) + scale).sum()
        return result

    assert "torch.inference_mode()" in _tape(model, inferred, torch.randn(3, WIDTH)).problem


def test_a_teacher_outside_the_model_is_part_of_the_pass() -> None:
    torch.manual_seed(1)
    model, teacher = _two_layers().double(), _two_layers().double()

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        result: torch.Tensor = (model(x) - wanted).square().mean()
        return result

    tape = _tape(model, forward, torch.randn(3, WIDTH, dtype=torch.float64))
    assert tape.problem == ""
    other = torch.randn(5, WIDTH, dtype=torch.float64)
    found = _again(tape, other)
    # What the teacher computes is that of the other batch.
    torch.testing.assert_close(found, forward(other), rtol=0, atol=0)
    found.backward()
    assert all(one.grad is None for one in teacher.parameters())


def test_a_layer_outside_the_model_that_gets_gradients_is_a_problem() -> None:
    model, other = _two_layers(), nn.Linear(1, 1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            other(model(x))
        result: torch.Tensor = other(model(x)).sum()
        return result

    problem = _tape(model, forward, torch.randn(3, WIDTH)).problem
    assert "uses a tensor outside the model that needs a gradient" in problem


def test_what_comes_from_the_batch_is_known_while_it_exists() -> None:
    model = _two_layers()
    kept: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        mask = x.new_ones(WIDTH) + torch.zeros_like(x)
        scale = torch.zeros(1)
        scale.add_(x.std())
        kept[:] = [mask, scale, torch.arange(3).to(x)]
        result: torch.Tensor = model(x * mask / scale).sum()
        return result

    batch = torch.randn(3, WIDTH)
    tape = _tape(model, forward, batch)
    found = [tensor for reference in tape.from_batch if (tensor := reference()) is not None]
    assert [id(one) for one in found] == [id(batch), id(kept[1])]
