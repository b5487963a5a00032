"""The gradients of weights that can come later: which layers have some, and how long they take."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task
from autosync.specs.model import ModelSpec
from autosync.specs.profile import profile
from autosync.specs.profile.device_rates import DeviceRate
from autosync.specs.profile.linear_calls import LinearUse, linear_uses
from autosync.specs.profile.recorder import structure_of
from autosync.specs.profile.tape import record
from autosync.strategy.stage_compute import pass_seconds, weight_seconds
from autosync.strategy.stages import ModelStage

# So fast at memory that operations count alone.
COUNTING = DeviceRate(name="counting", peak_operations=1e9, peak_bytes=1e15, operations_share=1.0, bytes_share=1.0)


class _Layers(nn.Module):
    """The first layer gets the batch, which has no gradient; a later one is frozen, and one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.twice = nn.Linear(8, 8, bias=False)
        self.frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)
        self.wide = nn.Linear(8, 40)
        self.last = nn.Linear(40, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        x = self.frozen(self.twice(self.twice(x).tanh()))
        result: Tensor = self.last(self.wide(x).relu())
        return result


def _task() -> Task:
    return Task(
        name="layers",
        model=_Layers,
        batch=lambda generator: torch.randn(16, 6, generator=generator),
        loss=lambda model, x: functional.mse_loss(model(x), x[:, :1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=16,
    )


def test_layers_that_somebody_waits_for_can_leave_their_gradients() -> None:
    model = _Layers()
    batch = torch.randn(16, 6)
    tape = record(structure_of(model), model, lambda: model(batch).mean(), batch)
    assert tape.modules == ["first", "norm", "twice", "twice", "frozen", "wide", "last"]
    kind = torch.float32
    assert linear_uses(tape) == (
        LinearUse(2, 16, 8, 8, kind, has_bias=False),
        LinearUse(3, 16, 8, 8, kind, has_bias=False),
        LinearUse(5, 16, 8, 40, kind, has_bias=True),
        LinearUse(6, 16, 40, 1, kind, has_bias=True),
    )


def test_computed_times_are_those_of_operations() -> None:
    spec = profile(_task(), times="computed", rate=COUNTING, cuts=True)
    timeline = spec.timeline
    assert timeline.splits is not None
    assert [timeline.forward[one.segment].module for one in timeline.splits] == ["twice", "twice", "wide", "last"]
    sizes = [one.num_examples for one in timeline.sizes]
    for one, elements in zip(timeline.splits, (64, 64, 320, 40), strict=True):
        # Two operations for each element of the weight and each row, as far as the backward pass of the segment has
        # so many: a frozen layer has fewer, and shares its time with the layer before it.
        counted = [2 * elements * size / 1e9 for size in sizes]
        assert all(0.5 * most < seconds <= 1.001 * most for seconds, most in zip(one.seconds, counted, strict=True))
        if elements != 64:
            assert one.seconds == pytest.approx(counted, rel=0.001)
    for num_examples in (3, 16, 32):
        times = [one for one in weight_seconds(spec, num_examples) if one]
        assert times[2:] == pytest.approx([2 * elements * num_examples / 1e9 for elements in (320, 40)], rel=0.001)


def test_measured_times_are_within_those_of_backward_passes() -> None:
    spec = profile(_task(), steps=3, cuts=True)
    assert spec.timeline.splits is not None
    assert all(all(seconds > 0 for seconds in one.seconds) for one in spec.timeline.splits)
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=5, ranks=(1,))]
    for num_examples in (1, 5, 16, 32):
        whole = pass_seconds(stages, spec, num_examples, recompute=False, splits_backward=False)
        split = pass_seconds(stages, spec, num_examples, recompute=False, splits_backward=True)
        for stage in range(2):
            assert 0 < split["weights", stage] < whole["backward", stage]
            assert split["weights", stage] + split["backward", stage] == pytest.approx(whole["backward", stage])
    slow = spec.dilated(3.0)
    assert weight_seconds(slow, 8) == pytest.approx([3 * one for one in weight_seconds(spec, 8)])


def _without_splits(spec: ModelSpec) -> ModelSpec:
    return replace(spec, timeline=replace(spec.timeline, splits=None))


def test_without_such_times_half_of_linear_layers_is_taken() -> None:
    spec = _without_splits(profile(_task(), times="computed", rate=COUNTING, cuts=True))
    by_module = dict(zip([one.module for one in spec.timeline.forward], weight_seconds(spec, 16), strict=True))
    backward = {one.module: one.seconds for one in spec.timeline.backward}
    share = 320 / 360
    assert by_module["wide"] == pytest.approx(0.5 * share * backward["wide"])
    assert by_module["norm"] == 0.0


def test_models_without_stages_have_no_such_times() -> None:
    assert profile(_task(), times="computed").timeline.splits is None
    torn = replace(_task(), loss=lambda model, x: model(x).sum())
    assert profile(torn, times="computed", cuts=True).timeline.splits is None
