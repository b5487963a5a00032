"""Profiles of models whose weights or calls are not what their modules say: computed, hidden, late or varying."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from autosync.specs.model import ModelSpec
from autosync.specs.profile.device_rates import ZOO_RATE
from autosync.specs.profile.run import profile
from tests.helpers.profile_tasks import kinds, task

torch.set_num_threads(1)
IDS = torch.tensor([[1, 3, 3], [5, 1, 3]])


@pytest.fixture(params=["measured", "computed"])
def run(request: pytest.FixtureRequest) -> Callable[..., ModelSpec]:
    return lambda task, **options: profile(task, times=request.param, **{"steps": 2, "rate": ZOO_RATE} | options)


class _CountsCalls(nn.Module):
    """A parametrization with a parameter of its own, so that its calls begin segments."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, weight: Tensor) -> Tensor:
        return self.factor * weight


def _parametrized() -> nn.Module:
    layer = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight", _CountsCalls())
    return nn.Sequential(layer, nn.Linear(8, 2))


def test_a_parametrization_is_called_as_often_as_the_model_calls_it(run: Callable[..., ModelSpec]) -> None:
    model = run(task(_parametrized))
    # The layer asks for its weight once, which runs the list of parametrizations and the one in it.
    called = ["0", "0.parametrizations.weight", "0.parametrizations.weight.0", "1"]
    assert [segment.module for segment in model.timeline.forward] == called
    assert not [note for note in model.notes if "times a microstep" in note]
    assert kinds(model)["1.weight"] == "linear"


def test_a_normed_layer_has_a_single_segment_for_its_weight() -> None:
    model = profile(task(lambda: spectral_norm(nn.Linear(8, 2))), steps=1)
    assert [segment.module for segment in model.timeline.forward] == ["ParametrizedLinear", "parametrizations.weight"]


class _LooksUpColumns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 4, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.head.weight.t())


def test_a_look_up_in_a_transposed_weight_is_dense(run: Callable[..., ModelSpec]) -> None:
    assert kinds(run(task(_LooksUpColumns, inputs=IDS))) == {"head.weight": "dense"}


class _HidesItsHead(nn.Module):
    """An embedding that is the output layer too, within a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.middle = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.middle(self.words(ids))
        y: Tensor = checkpoint(lambda x: functional.linear(x, self.words.weight), x, use_reentrant=True)
        return y


def test_an_embedding_that_a_checkpoint_uses_as_well_is_dense(run: Callable[..., ModelSpec]) -> None:
    model = run(task(_HidesItsHead, inputs=IDS))
    assert kinds(model) == {"words.weight": "dense", "middle.weight": "linear", "middle.bias": "dense"}
    assert "words.weight is also used outside of its embedding: its gradient is dense" in model.notes


def _asks_for_values() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(int(torch.linspace(1, 3, 3)[2].item())), nn.ReLU(), nn.LazyLinear(2))


@pytest.mark.parametrize("build", [lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(2)), _asks_for_values])
def test_lazy_modules_have_their_shapes_after_a_batch(
    run: Callable[..., ModelSpec], build: Callable[[], nn.Module]
) -> None:
    model = run(task(build, batch_size=4), cuts=True)
    assert [variable.shape for variable in model.variables] == [(3, 8), (3,), (2, 3), (2,)]
    assert [cut.before for cut in model.timeline.cuts] == [1]


class _VariesItsDepth(nn.Module):
    """Calls its layer once more in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.num_calls = 1

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        for _ in range(self.num_calls):
            x = self.layer(x)
        return x


def test_a_model_whose_calls_change_has_no_cuts(run: Callable[..., ModelSpec]) -> None:
    timeline = run(task(_VariesItsDepth, batch_size=4), cuts=True).timeline
    assert timeline.cuts == ()
    assert timeline.uncut == "the modules that it calls change from pass to pass"
