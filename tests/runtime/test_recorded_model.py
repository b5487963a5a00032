"""The stages of recorded models compute together what the models compute, with the bytes of the plan."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

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


def test_no_object_of_the_batchs_class_is_made_for_its_form() -> None:
    batch = Texts(words=torch.zeros(4, 3), lengths=torch.ones(4))
    one, other = microbatches_of(batch, 2, 2)
    assert form_of(one) == form_of(other) == "Texts(words='float32 [2, 3]', lengths='float32 [2]', ends=[4])"
    assert form_of((1, Pair(torch.zeros(1), "a"))) == "tuple[1, Pair(x='float32 [1]', name='a')]"


@dataclass
class Texts:
    """A batch whose class checks it."""

    words: torch.Tensor
    lengths: torch.Tensor
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if self.words.shape[0] != self.lengths.shape[0]:
            raise ValueError("words and lengths differ")
        self.ends = [4]


class Pair(NamedTuple):
    """A part of a batch with names."""

    x: torch.Tensor
    name: str


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


class Dropping(nn.Module):
    """Functions of torch drop numbers within: attention, and what one recurrent layer gives to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, _ = self.recurrent(self.encoder(x.unsqueeze(1).expand(-1, 3, -1)))
        attended, _ = self.attention(rows, rows, rows)
        result: torch.Tensor = self.last(attended)
        return result


def _of_model(name: str, model: Callable[[], nn.Module]) -> Task:
    return Task(
        name=name,
        model=lambda: model().double(),
        batch=lambda generator: torch.randn(4, 8, generator=generator, dtype=torch.float64),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )


def test_dropout_in_attention_and_recurrent_layers_is_as_any_other() -> None:
    task = _of_model("dropping", Dropping)
    spec = profile(task, steps=1, cuts=True)
    assert spec.timeline.mixes == ""
    model = task.model()
    programs = _recorded(spec, task, [0, *(cut.before for cut in spec.timeline.cuts)], model=model)
    batch = task.batch(torch.Generator().manual_seed(2))[:2]
    kept, again = (_gradients(programs, batch, model, keeps=keeps) for keeps in (True, False))
    for one, other in zip(kept, again, strict=True):
        assert torch.equal(one, other)


class Lazy(nn.Module):
    """The first pass makes a mask in an attribute, a table in a buffer, and places in a dictionary."""

    table: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.mask: torch.Tensor | None = None
        self.places: dict[int, torch.Tensor] = {}
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        if self.mask is None:
            self.mask = torch.ones_like(x[0]).cumsum(0) < 7
            self.table = torch.arange(width, dtype=x.dtype).cos()
        if width not in self.places:
            self.places[width] = torch.arange(width).to(x)
        y = torch.tanh(self.first(x)) * self.mask + self.places[width]
        z = torch.tanh(self.second(y)) * self.mask + self.table
        result: torch.Tensor = self.third(z) * self.mask
        return result


def test_masks_and_tables_of_the_first_pass_are_no_values() -> None:
    task = _of_model("lazy", Lazy)
    spec = profile(task, steps=1, cuts=True)
    assert [cut.constant_bytes for cut in spec.timeline.cuts] == [0, 0]
    _recorded(spec, task, [0, 1, 2])


class ScaledByFirst(nn.Module):
    """The first pass keeps the scale of its batch, in one of several ways."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.kept: list[torch.Tensor] = []
        self.where = where
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.kept:
            scale = x.detach().std(0)
            self.kept.append(x if self.where == "batch" else scale)
            if self.where == "buffer":
                self.scale = scale
            elif self.where == "data":
                self.scale.data.copy_(scale)
        scale = self.scale if self.where in ("buffer", "data") else self.kept[0].mean(0)
        result: torch.Tensor = self.second(torch.tanh(self.first(x)) / scale)
        return result


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("list", "uses what an earlier pass has computed from its batch"),
        ("batch", "uses what an earlier pass has computed from its batch"),
        ("buffer", "uses what an earlier pass has computed from its batch"),
        ("data", "a forward pass changes scale"),
    ],
)
def test_what_the_first_pass_keeps_of_its_batch_is_refused(where: str, reason: str) -> None:
    task = _of_model("scaled", lambda: ScaledByFirst(where))
    spec = profile(task, steps=1, cuts=True)
    assert spec.timeline.cuts
    with pytest.raises(OperationError, match=reason):
        _recorded(spec, task, [0, 1])


def test_a_gradient_that_the_stages_do_not_compute_is_refused(staged_spec: Spec) -> None:
    spec, task = staged_spec("far_skip"), load_task(f"{TASKS}:far_skip")
    passes = iter(range(1, 100))

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        found = task.loss(model, batch)
        penalty = model.last.weight.square().sum()
        # The second pass is recorded.
        return found + (penalty.detach() if next(passes) == 2 else penalty)

    with pytest.raises(OperationError, match=r"the recorded pass gives last\.weight another gradient"):
        _recorded(spec, replace(task, loss=loss), [0, 2])


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

    with pytest.raises(OperationError, match="the forward pass changes calls of the model, which was 2 and then 3"):
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
