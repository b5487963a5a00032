"""From given records to a spec: how times are merged, where they go, and that they add up."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autosync import Task
from autosync.specs.model import OptimizerSpec
from autosync.specs.profile.assemble import ProfiledStep, ProfileRecords, assemble, medians, round_time
from autosync.specs.profile.graph import ParameterUses
from autosync.specs.profile.recorder import Microstep, ModuleCall, structure_of

TASK = Task(
    name="given",
    model=lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3)),
    batch=lambda generator: torch.ones(1, 4),
    loss=lambda model, batch: model(batch).mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
READY = ("1.bias", "1.weight", "0.bias", "0.weight")
ONCE = {
    name: ParameterUses(operations=("AddmmBackward0",), first_sequence=5 if name[0] == "0" else 15) for name in READY
}


def microstep(forward: Sequence[float], backward: Sequence[float], **fields: Any) -> Microstep:
    standard = {
        "calls": (
            ModuleCall(module="0", factor_rows=7, sequence=0),
            ModuleCall(module="1", factor_rows=7, sequence=10),
        ),
        "forward_seconds": tuple(forward),
        "ready": READY,
        "backward_seconds": tuple(backward),
        "uses": ONCE,
    }
    return Microstep(**standard | fields)


def records(*steps: ProfiledStep) -> ProfileRecords:
    return ProfileRecords(
        structure=structure_of(TASK.model()),
        facts=steps[0],
        steps=steps,
        sparse=frozenset(),
        optimizer=OptimizerSpec(name="SGD"),
        device="none",
        source="measured",
        note="given",
    )


def step(*microsteps: Microstep, update: float = 0.0) -> ProfiledStep:
    return ProfiledStep(microsteps=microsteps, update_seconds=update, touched_rows={})


def test_every_second_goes_to_a_module() -> None:
    one = microstep([0.5, 1.0, 2.0], [4.0, 1.0, 2.0, 8.0, 0.25])
    timeline = assemble(TASK, records(step(one, update=17.0))).timeline
    # The time before the first call belongs to it, the time after the last gradient to that gradient.
    assert [(s.module, s.seconds) for s in timeline.forward] == [("0", 1.5), ("1", 2.0)]
    assert [(s.module, s.seconds) for s in timeline.backward] == [("1", 5.0), ("0", 10.25)]
    # 10 of 19 elements are in the first module, 9 in the second.
    shares = [("0", round_time(17 * 10 / 19)), ("1", round_time(17 * 9 / 19))]
    assert [(s.module, s.seconds) for s in timeline.optimizer] == shares


def test_the_median_step_counts_and_not_the_odd_one() -> None:
    usual = microstep([0.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    hiccup = microstep([0.0, 100.0, 2.0], [1.0, 50.0, 1.0, 1.0, 0.0])
    timeline = assemble(TASK, records(step(usual), step(hiccup), step(usual))).timeline
    assert [s.seconds for s in timeline.forward] == [1.0, 2.0]
    assert [s.seconds for s in timeline.backward] == [2.0, 2.0]


def test_a_variable_ready_twice_is_ready_at_the_last() -> None:
    again = microstep([0.0, 1.0, 1.0], [1.0] * 5 + [0.0], ready=("0.weight", *READY))
    model = assemble(TASK, records(step(again)))
    assert [v.name for v in sorted(model.variables, key=lambda v: v.ready)] == list(READY)
    assert [(s.module, s.seconds, s.variables) for s in model.timeline.backward] == [
        ("0", 1.0, ()),
        ("1", 2.0, ("1.bias", "1.weight")),
        ("0", 2.0, ("0.bias", "0.weight")),
    ]


def test_microsteps_that_did_something_else_are_left_out_of_the_times() -> None:
    usual = microstep([0.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    other = microstep(
        [0.0, 9.0, 9.0, 9.0],
        [9.0, 9.0, 9.0, 9.0, 9.0],
        calls=(*usual.calls, ModuleCall(module="1", factor_rows=7)),
        ready=tuple(reversed(READY)),
    )
    model = assemble(TASK, records(step(usual), step(other), step(usual)))
    assert [s.seconds for s in model.timeline.forward] == [1.0, 2.0]
    assert [s.seconds for s in model.timeline.backward] == [2.0, 2.0]
    assert "the order in which gradients become ready changes: 2 of 3 microsteps had the one given here" in model.notes
    assert "the modules called change: 2 of 3 microsteps called those given here" in model.notes


@pytest.mark.parametrize(
    "changed",
    [
        {"uses": ONCE | {"1.weight": ParameterUses(operations=("AddmmBackward0", "MmBackward0"), first_sequence=15)}},
        {"uses": {name: uses for name, uses in ONCE.items() if name != "1.weight"}},
        {
            "calls": (
                ModuleCall(module="0", factor_rows=7, sequence=0),
                ModuleCall(module="1", factor_rows=None, sequence=10),
            )
        },
    ],
)
def test_factors_must_be_beyond_doubt(changed: dict[str, Any]) -> None:
    plain = assemble(TASK, records(step(microstep([0.0] * 3, [0.0] * 5))))
    assert [plain.variable(name).kind for name in ("0.weight", "1.weight")] == ["linear", "linear"]
    doubtful = assemble(TASK, records(step(microstep([0.0] * 3, [0.0] * 5, **changed))))
    assert [doubtful.variable(name).kind for name in ("0.weight", "1.weight")] == ["linear", "dense"]


@given(st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_medians_add_up_to_the_median_of_the_whole(rows: list[list[float]]) -> None:
    columns = medians(rows)
    whole = sorted(sum(row) for row in rows)
    middle = (whole[(len(whole) - 1) // 2] + whole[len(whole) // 2]) / 2
    if sum(columns) > 0:
        assert sum(columns) == pytest.approx(middle)


def test_times_have_four_digits() -> None:
    assert round_time(0.00123456) == 0.001235
    assert round_time(0.0) == 0.0
