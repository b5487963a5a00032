"""Later steps find what the first batch has not shown: uneven weights, and values outside the model that change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosync.errors import OperationError
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.stages.batch_form import microbatches_of
from autosync.runtime.stages.counted_targets import counted_targets
from autosync.runtime.stages.later_checks import LaterChecks, _period
from autosync.runtime.stages.recorded_model import num_examples_of, record_stages
from autosync.specs.examples import join_batches
from autosync.specs.model import ModelSpec
from autosync.specs.profile.recorder import structure_of
from autosync.specs.profile.run import profile
from autosync.specs.profile.tape import record
from autosync.specs.task import Task
from autosync.specs.task_file import load_task
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage
from tests.helpers.staged_models import nodes

TASKS = Path(__file__).with_name("stage_tasks.py")
Spec = Callable[[str], ModelSpec]


class Checked:
    """A model whose pass has been recorded on two stages, with what checks its later steps on the first rank."""

    def __init__(self, spec: ModelSpec, task: Task, places: tuple[int, int]) -> None:
        stages = [ModelStage(before=before, ranks=(number,)) for number, before in enumerate(places)]
        strategy = divided_strategy(spec, stages, 4)
        self._plan = lower(strategy, spec, nodes(1, 1))
        self._generators = [torch.Generator().manual_seed(number) for number in (1, 2)]
        self._task = task
        self.model = task.model()
        bundle = bundled(strategy, spec, nodes(1, 1))
        programs = record_stages(task, self.model, bundle, self._plan, self._cut(self.batch()))
        held = {name: one for name, one in self.model.named_parameters() if name.startswith("0.")}
        self._checks = LaterChecks(task, self.model, self._plan, programs, held or dict(self.model.named_parameters()))

    def batch(self) -> Any:
        """The next global batch."""
        return join_batches([self._task.batch(one) for one in self._generators])

    def _cut(self, batch: Any) -> list[Any]:
        return microbatches_of(batch, self._plan.microbatches, num_examples_of(self._plan))

    def check(self, batch: Any | None = None) -> bool:
        """Check the next step."""
        return self._checks.check(self._cut(self.batch() if batch is None else batch))


def test_checks_grow_rare(staged_spec: Spec) -> None:
    checked = Checked(staged_spec("far_skip"), load_task(f"{TASKS}:far_skip"), (0, 2))
    batch, drawn = checked.batch(), torch.random.get_rng_state()
    # A step has 8 examples in 4 microbatches on 2 ranks.
    found = [number for number in range(1, 600) if checked.check(batch)]
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(one.grad is None for one in checked.model.parameters())


@pytest.mark.parametrize(("microbatch", "per_rank"), [(1, 1.0), (2, 2.0), (8, 4.0), (32, 2.0), (64, 16.0)])
def test_checks_take_one_percent(microbatch: int, per_rank: float) -> None:
    period = _period(microbatch, per_rank)
    assert period.bit_count() == 1
    assert period >= 64
    seconds = 2 * microbatch + 3 * 8
    assert seconds <= 0.01 * period * 3 * microbatch * per_rank
    assert period == 64 or seconds > 0.01 * period / 2 * 3 * microbatch * per_rank


def test_uneven_weights_are_found_when_a_batch_shows_them(staged_spec: Spec) -> None:
    checked = Checked(staged_spec("masked"), load_task(f"{TASKS}:masked"), (0, 1))
    assert checked.check()
    batch = checked.batch()
    for place, one in enumerate(batch["unmasked"]):
        one[1 + place // 2 :] = 0
    with pytest.raises(OperationError, match=r"in step 3, the gradient of 0\.weight from 2 microbatches") as refused:
        checked.check(batch)
    assert "masked means" in str(refused.value)
    assert "steps after the first may have trained another model too" in str(refused.value)


def test_values_outside_the_model_that_change_are_found(staged_spec: Spec) -> None:
    task, settings = load_task(f"{TASKS}:far_skip"), {"factors": [1.0, 2.0]}

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return task.loss(model, batch) * settings["factors"][0]

    checked = Checked(staged_spec("far_skip"), replace(task, loss=loss), (0, 2))
    assert checked.check()
    settings["factors"][0] = 0.9
    with pytest.raises(OperationError, match="in step 3, the recorded pass computes the loss") as refused:
        checked.check()
    assert "something that its code uses has changed since the first step" in str(refused.value)


def test_a_loss_that_goes_back_within_its_pass_later_is_computed_all_the_same(staged_spec: Spec) -> None:
    task, settings = load_task(f"{TASKS}:far_skip"), {"has_penalty": False}

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found = task.loss(model, batch)
        if settings["has_penalty"]:
            weight = next(model.parameters())
            (slope,) = torch.autograd.grad(found, weight, create_graph=True)
            found = found + slope.square().sum()
        return found

    checked = Checked(staged_spec("far_skip"), replace(task, loss=loss), (0, 2))
    assert checked.check()
    settings["has_penalty"] = True
    with pytest.raises(OperationError, match="in step 3, the recorded pass computes the loss"):
        checked.check()


def test_dropout_changes_with_each_check_and_is_no_reason(staged_spec: Spec) -> None:
    task = load_task(f"{TASKS}:far_skip")

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return functional.dropout(model(batch), 0.5).square().mean()

    checked = Checked(staged_spec("far_skip"), replace(task, loss=loss), (0, 2))
    assert [checked.check() for _ in range(4)] == [True, True, False, True]


def test_a_training_that_diverges_is_not_refused(staged_spec: Spec) -> None:
    checked = Checked(staged_spec("far_skip"), load_task(f"{TASKS}:far_skip"), (0, 2))
    for parameter in checked.model.parameters():
        parameter.data.fill_(float("inf"))
    assert checked.check()


NUM_WORDS, LENGTH = 11, 101


class Words(nn.Module):
    """Tells the next word from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.output = nn.Embedding(NUM_WORDS, 8), nn.Linear(8, NUM_WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.words(text))
        return scores


def _texts(**options: Any) -> Task:
    criterion = nn.CrossEntropyLoss(**options)
    return Task(
        name="texts",
        model=Words,
        batch=lambda generator: torch.randint(NUM_WORDS, (4, LENGTH), generator=generator),
        loss=lambda model, text: criterion(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )


def test_a_single_target_that_is_ignored_is_found() -> None:
    task = _texts(ignore_index=-100, label_smoothing=0.1)
    checked = Checked(profile(task, steps=1, cuts=True), task, (0, 1))
    batch = checked.batch()
    # Steps 2 to 4, of which the last is checked by its targets alone.
    assert [checked.check(batch) for _ in range(3)] == [True, True, False]
    batch[0, -1] = -100
    with pytest.raises(
        OperationError, match="in step 5, the loss is a mean over 199 to 200 targets of each microbatch"
    ):
        checked.check(batch)
    # As many in each of the four microbatches of two texts.
    batch[::2, -1] = -100
    assert not checked.check(batch)


def test_classes_that_weigh_unevenly_are_refused() -> None:
    task = _texts(weight=torch.linspace(1, 1.02, NUM_WORDS))
    with pytest.raises(OperationError, match="weights of classes: microbatches weigh unevenly"):
        Checked(profile(task, steps=1, cuts=True), task, (0, 1))
    alike = _texts(weight=torch.ones(NUM_WORDS))
    assert Checked(profile(alike, steps=1, cuts=True), alike, (0, 1)).check()


def test_a_sum_over_targets_and_probabilities_are_not_counted() -> None:
    summed = _texts(reduction="sum")
    model = Words()
    text = summed.batch(torch.Generator().manual_seed(1))
    structure = structure_of(model)
    assert counted_targets(record(structure, model, lambda: summed.loss(model, text), text)) is None

    def likely() -> torch.Tensor:
        scores = model(text).flatten(0, 1)
        return functional.cross_entropy(scores, torch.ones_like(scores) / NUM_WORDS)

    assert counted_targets(record(structure, model, likely, text)) is None
