"""A task: the model, data and optimizer of a training, which the user gives by a function `task()` in a Python file."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from autosync.errors import InputError, Problem, TaskError, did_you_mean
from autosync.specs.dataset_batches import RULE, DatasetBatches, is_dataset

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autosync.specs.graph_batching import GraphProfile
    from autosync.specs.input_settings import InputSettings


class GraphTraining(Protocol):
    """What a task with a model of vertex functions can say and do beyond a task (see `autosync.graphs`).

    `measure` times the policies and compares the deals, on examples drawn from a generator. `deal` returns one rank's
    part of a global batch, dealt by the costs of a profile.
    """

    def measure(self, task: Task, generator: torch.Generator, device: torch.device) -> GraphProfile: ...
    def deal(self, graphs: Sequence[Any], profile: GraphProfile, *, rank: int, num_ranks: int) -> Any: ...


def _no_batch(_generator: torch.Generator) -> Any:
    """Stand for a function that the user did not give."""
    raise AssertionError("a task without it is refused, unless it has a dataset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Model, batch, loss and optimizer of a training job.

    `model` is called once on every rank after seeding. `batch` draws a rank's batch for one microstep from a generator
    that differs by rank. `loss` is the mean loss of the model on a batch. `accumulation_steps` microsteps make one
    optimizer step. `clip_norm` and `loss_scaling` declare that the training clips the global gradient norm or scales
    the loss; then all gradients must be complete before the first update. `weight` says how much a batch weighs in the
    mean over all ranks' batches, if that is not its number of examples: its tokens, for example, where the loss is a
    mean over tokens. `dataset` and `collate` may be given in place of `batch`: a dataset with a length and examples by
    number, or a function that returns one, and what makes a batch of some examples. Trials then read each batch with
    `autosync.loader`, and tuning finds its settings too. `input` are the settings with which the training reads its
    dataset now, as names of `InputSettings` with their values: what is found is compared with them. `graphs` is set by
    tasks of models whose graph changes (`GraphTask.task`). `source` is the origin of the task for error messages,
    `FILE.py:NAME`; `load_task` sets it.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Any] = _no_batch
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    dataset: Any = None
    collate: Callable[[list[Any]], Any] | None = None
    input: InputSettings | Mapping[str, Any] | None = None
    name: str = ""
    batch_size: int = 1
    accumulation_steps: int = 1
    clip_norm: float | None = None
    loss_scaling: bool = False
    weight: Callable[[Any], float] | None = None
    graphs: GraphTraining | None = None
    source: str = ""

    def __post_init__(self) -> None:
        problems = [*_dataset_problems(self), *_problems(self)]
        if problems:
            raise TaskError(problems)
        if self.dataset is not None:
            batches = DatasetBatches(self.dataset, self.batch_size, self.collate)
            object.__setattr__(self, "batch", batches.or_same(self.batch))

    @property
    def stated_input(self) -> InputSettings | None:
        """The settings under which the training reads its dataset now; None: the defaults of `autosync.loader`."""
        return _settings(self.input)

    @property
    def reads_dataset(self) -> bool:
        """Whether batches come from the dataset."""
        return isinstance(self.batch, DatasetBatches)


def _dataset_problems(task: Task) -> Iterator[Problem]:
    if task.dataset is None:
        if task.batch is _no_batch:
            yield Problem(what="is missing", rule="a task has batch, or dataset in its place", path=("batch",))
        if task.collate is not None:
            yield Problem(
                what="is given without dataset", rule="it makes a batch of a dataset's examples", path=("collate",)
            )
        if task.input is not None:
            yield Problem(what="is given without dataset", rule="it says how a dataset is read", path=("input",))
        return
    yield from _input_problems(task.input)
    if not is_dataset(task.dataset):
        yield Problem(what=f"is {_describe(task.dataset)}", rule=RULE, path=("dataset",))
    collate: object = task.collate
    if collate is not None and not callable(collate):
        yield Problem(
            what=f"is {_describe(collate)}", rule="a function: (examples) -> batch, or None", path=("collate",)
        )
    if task.batch is not _no_batch and not task.reads_dataset:
        yield Problem(what="is given beside dataset", rule="a task has one of them", path=("batch",))
    if task.graphs is not None:
        yield Problem(what="is given for a model of graphs", rule="these draw batches", path=("dataset",))


def _input_problems(given: object) -> Iterator[Problem]:
    """Yield a problem for each wrong name or value of stated input settings."""
    from autosync.specs.input_settings import InputSettings

    if given is None or isinstance(given, InputSettings):
        return
    if not isinstance(given, Mapping):
        rule = 'names of input settings with their values: {"num_workers": 4, "prefetch_factor": 2}'
        yield Problem(what=f"is {_describe(given)}", rule=rule, path=("input",))
        return
    known = [one.name for one in fields(InputSettings)]
    for name in (one for one in given if one not in known):
        rule, hint = f"known: {', '.join(known)}", did_you_mean(str(name), known)
        yield Problem(what=f"{name!r} is no input setting", rule=rule, path=("input",), hint=hint)
    try:
        InputSettings(**{name: value for name, value in given.items() if name in known})
    except InputError as error:
        yield from (replace(problem, path=("input", *problem.path)) for problem in error.problems)


def _settings(given: InputSettings | Mapping[str, Any] | None) -> InputSettings | None:
    """Return input settings that were given by name, or as they are."""
    from autosync.specs.input_settings import InputSettings

    return given if given is None or isinstance(given, InputSettings) else InputSettings(**given)


def _problems(task: Task) -> Iterator[Problem]:
    """Yield a problem for each field with a wrong value."""
    for field, signature in _CALLABLES.items():
        value = getattr(task, field)
        if not callable(value) or _is_module(value):
            rule = f"{field} is a function: {signature}"
            yield Problem(
                what=f"is {_describe(value)}", rule=rule, path=(field,), hint=f"write {field}={_LAMBDAS[field]}"
            )
    for field in ("batch_size", "accumulation_steps"):
        value = getattr(task, field)
        if not _is_number(value, int) or value < 1:
            yield Problem(what=f"is {_describe(value)}", rule="a whole number of 1 or more", path=(field,))
    weight: object = task.weight
    if weight is not None and not callable(weight):
        what = f"is {_describe(weight)}"
        yield Problem(what=what, rule="weight is a function: (batch) -> number, or None", path=("weight",))
    if task.weight is not None and task.accumulation_steps != 1:
        rule = "a weight is that of a whole step, so such a task does not accumulate"
        yield Problem(what=f"is {task.accumulation_steps} beside weight", rule=rule, path=("accumulation_steps",))
    clip = task.clip_norm
    if clip is not None and not (_is_number(clip, int | float) and math.isfinite(clip) and clip > 0):
        yield Problem(what=f"is {_describe(clip)}", rule="a finite number above 0, or None", path=("clip_norm",))
    for field, kind, rule in (
        ("loss_scaling", bool, "True or False"),
        ("name", str, "a string"),
        ("source", str, "a string"),
    ):
        value = getattr(task, field)
        if not isinstance(value, kind):
            yield Problem(what=f"is {_describe(value)}", rule=rule, path=(field,))


_CALLABLES = {
    "model": "() -> Module",
    "batch": "(generator) -> batch",
    "loss": "(model, batch) -> Tensor",
    "optimizer": "(parameters) -> Optimizer",
}
_LAMBDAS = {
    "model": "lambda: …",
    "batch": "lambda generator: …",
    "loss": "lambda model, batch: …",
    "optimizer": "lambda parameters: …",
}


def _is_number(value: object, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_module(value: object) -> bool:
    """Whether the value is a module instead of a function that builds a module. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _describe(value: object) -> str:
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    return f"of type {type(value).__name__}"
