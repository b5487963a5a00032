"""The stages of recorded models compute together what the models compute, with the bytes of the plan."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autosync.errors import OperationError, TaskError
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.stages.batch_form import form_of, microbatches_of, refuse_other_form
from autosync.runtime.stages.recorded_model import planned_bytes, record_stages
from autosync.runtime.stages.stage_program import StageProgram
from autosync.specs.examples import join_batches
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.specs.task import Task
from autosync.specs.task_file import load_task
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule
from tests.helpers.staged_models import nodes

TASKS = Path(__file__).with_name("stage_tasks.py")
Spec = Callable[[str], ModelSpec]


def _recorded(
    spec: ModelSpec,
    task: Task,
    places: list[int],
    *,
    model: nn.Module | None = None,
    schedule: PipelineSchedule = "1f1b",
) -> list[StageProgram]:
    stages = [ModelStage(before=before, ranks=(number,)) for number, before in enumerate(places)]
    cluster = nodes(*[1] * len(stages))
    strategy = divided_strategy(spec, stages, 2 * len(stages), schedule)
    plan = lower(strategy, spec, cluster)
    generator = torch.Generator().manual_seed(1)
    batch = join_batches([task.batch(generator) for _ in stages])
    pieces = microbatches_of(batch, plan.microbatches, spec.batch_size // 2)
    programs = record_stages(task, model or task.model(), bundled(strategy, spec, cluster), plan, pieces)
    for number, program in enumerate(programs[:-1]):
        assert program.leaving is not None
        assert program.leaving.num_bytes == planned_bytes(plan, number)
    return programs


@pytest.mark.parametrize("name", ["convolutions", "tied_text", "far_skip", "tables"])
def test_stages_compute_what_the_model_computes(staged_spec: Spec, name: str) -> None:
    spec, task = staged_spec(name), load_task(f"{TASKS}:{name}")
    cuts = [cut.before for cut in spec.timeline.cuts]
    _recorded(spec, task, [0, *cuts])
    rng = random.Random(name)
    for _ in range(4):
        _recorded(spec, task, [0, *sorted(rng.sample(cuts, rng.randint(0, len(cuts))))])


def test_what_differs_from_the_profile_is_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    cuts = tuple(replace(cut, num_bytes=cut.num_bytes + 32) for cut in spec.timeline.cuts)
    other = replace(spec, timeline=replace(spec.timeline, cuts=cuts))
    with pytest.raises(OperationError, match="profile the model again"):
        _recorded(other, task, [0, 2])
    segments = (replace(spec.timeline.forward[0], module="layers.9"), *spec.timeline.forward[1:])
    renamed = replace(spec, timeline=replace(spec.timeline, forward=segments))
    with pytest.raises(OperationError, match=r"segment 0 of the forward pass is layers.0, and was layers.9"):
        _recorded(renamed, task, [0, 2])


def test_a_model_that_does_something_else_for_each_batch_is_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    counter = iter(range(1, 100))
    counted = replace(task, loss=lambda model, batch: task.loss(model, batch) * next(counter))
    with pytest.raises(OperationError, match="does something else for each batch"):
        _recorded(spec, counted, [0, 2])


def test_the_form_of_a_batch_has_no_values() -> None:
    one, other = {"x": torch.zeros(2, 3), "count": 2}, {"x": torch.ones(2, 3), "count": 2}
    assert form_of(one) == form_of(other)
    assert form_of(one) != form_of({"x": torch.zeros(2, 4), "count": 2})
    with pytest.raises(OperationError, match="a batch of 5 examples"):
        microbatches_of(torch.zeros(5), 2, 2)
    with pytest.raises(TaskError, match="an entry for each"):
        microbatches_of({"x": torch.zeros(4), "names": ["a", "b", "c", "d"]}, 2, 2)


def test_another_form_is_refused_by_its_first_difference_alone() -> None:
    one, other = ({"x": torch.zeros(2, 3), "words": ["same"] * 500 + [last] * 500} for last in ("one", "other"))
    refuse_other_form(form_of(one), form_of(one))
    with pytest.raises(OperationError, match="a batch of another form") as refused:
        refuse_other_form(form_of(one), form_of(other))
    assert "'one'" in str(refused.value)
    assert "'other'" in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_loss_that_is_no_mean_is_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    summed = replace(task, loss=lambda model, batch: task.loss(model, batch) * len(batch))
    with pytest.raises(OperationError, match="or weighs them unevenly"):
        _recorded(spec, summed, [0, 2])


def test_dropout_in_functions_does_not_hide_a_loss_that_is_no_mean(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")

    def summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        values = nn.functional.dropout(model(batch), 0.5).unsqueeze(1)
        # One key for each example: attention does nothing but drop it.
        return nn.functional.scaled_dot_product_attention(values, values, values, dropout_p=0.5).square().sum()

    with pytest.raises(OperationError, match="or weighs them unevenly"):
        _recorded(spec, replace(task, loss=summed), [0, 2])
    _recorded(spec, replace(task, loss=lambda model, batch: summed(model, batch) / len(batch)), [0, 2])


def test_random_numbers_besides_dropout_are_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")

    def noisy(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        values = model(batch)
        return (values + torch.randn_like(values)).square().mean()

    with pytest.raises(OperationError, match="random numbers besides dropout"):
        _recorded(spec, replace(task, loss=noisy), [0, 2])


def test_random_numbers_of_numpy_are_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if np.random.random() < 2 else 0.5  # noqa: NPY002 - what old code draws from
        return task.loss(model, batch) * factor

    with pytest.raises(OperationError, match="random numbers of numpy's"):
        _recorded(spec, replace(task, loss=loss), [0, 2])


def test_a_pass_that_changes_a_number_of_its_model_is_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    model: Any = task.model()
    model.calls = 0

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        model.calls += 1
        return task.loss(model, batch) * (1.0 if model.calls < 1000 else 0.5)

    with pytest.raises(OperationError, match="the forward pass changes calls of the model, which was 1 and then 2"):
        _recorded(spec, replace(task, loss=loss), [0, 2], model=model)


class Turned(nn.Module):
    """A value is transposed before a cut and viewed after it, which fits its own memory but not a copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8).double(), nn.Linear(4, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = self.first(x).view(-1, 2, 4).transpose(1, 2)
        rows = self.second(torch.ones(1, 4, dtype=x.dtype)) + turned.transpose(1, 2).view(len(x), 8)
        return rows.square().mean()


def test_a_view_that_fits_no_copy_is_refused_with_its_cut() -> None:
    task = Task(
        name="turned",
        model=Turned,
        batch=lambda generator: torch.randn(4, 8, generator=generator, dtype=torch.float64),
        loss=lambda model, x: model(x),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )
    spec = profile(task, steps=1, cuts=True)
    with pytest.raises(OperationError, match="after the cut between stages 0 and 1 cannot be made again") as refused:
        _recorded(spec, task, [0, 1])
    assert "reshape() fits" in str(refused.value)


def _gradients(
    programs: list[StageProgram], batch: torch.Tensor, model: nn.Module, *, keeps: bool, refills: bool = False
) -> list[torch.Tensor]:
    """The gradients of all stages, one after the other on this rank. A script may refill its batch in between."""
    batch = batch.clone()
    torch.manual_seed(3)
    received: dict[int, torch.Tensor] = {}
    all_passed = []
    for program in programs:
        passed = program.forward([batch], received, keeps=keeps)
        all_passed.append(passed)
        received = passed.sent
    if refills:
        batch.numpy().fill(7.0)
    gradients: dict[int, torch.Tensor] = {}
    for program, passed in zip(reversed(programs), reversed(all_passed), strict=True):
        gradients = program.backward(passed, gradients, scale=1.0)
    # What is drawn next must not depend on it.
    found = [torch.rand(2)]
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def test_activations_that_are_computed_again_have_the_same_dropout(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(model(batch), 0.5).square().mean()

    model = task.model()
    programs = _recorded(spec, replace(task, loss=loss), [0, 2], model=model)
    batch = task.batch(torch.Generator().manual_seed(2))[: spec.batch_size // 2]
    kept, again = (_gradients(programs, batch, model, keeps=keeps) for keeps in (True, False))
    for one, other in zip(kept, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("keeps", [True, False])
def test_without_a_flush_a_script_may_refill_its_batch(staged_spec: Spec, keeps: bool) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    model = task.model()
    programs = _recorded(spec, task, [0, 2], model=model, schedule="2bw")
    batch = task.batch(torch.Generator().manual_seed(2))[: spec.batch_size // 2]
    wanted, found = (_gradients(programs, batch, model, keeps=keeps, refills=refills) for refills in (False, True))
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
