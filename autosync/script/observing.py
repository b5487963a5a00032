"""Observes the first steps of a script under stock DDP, and makes a model spec of what it saw.

`Observation` is told of passes and updates by the door. Hooks in the model record calls, uses and the order in which
gradients become ready, as the profile of a task does. All hooks are gone when the observation ends.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel.distributed import _find_tensors

from autosync.errors import OperationError
from autosync.script.factor_proof import FactorProof
from autosync.script.gradient_uses import GradientUses
from autosync.script.script_facts import WARMUP_STEPS, ScriptFacts
from autosync.script.step_order import ADDS, PASSES, StepOrder
from autosync.specs.profile.assemble import ProfiledStep, ProfileRecords, assemble
from autosync.specs.profile.clock import clock_of
from autosync.specs.profile.measured_training import device_name
from autosync.specs.profile.optimizer import optimizer_notes, optimizer_spec
from autosync.specs.profile.profiled_steps import known_rows, profiled_step
from autosync.specs.profile.recorder import Microstep, MicrostepRecorder, structure_of

_ELSE = "tune a task: autosync tune model.py"
_CLOSURE = "it gives a closure, or another argument, to the step of an optimizer that is none of torch's"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What a task would declare; see `assemble.TrainingFacts`."""

    name: str
    batch_size: int
    accumulation_steps: int
    clip_norm: float | None
    loss_scaling: bool


class Observation:
    """The observation of one model, from its first forward pass on."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._trained = _trained_of(model)
        self._clock = clock_of(self._trained[0].device)
        self._recorder = MicrostepRecorder(structure=structure_of(model), clock=self._clock, asks_sequence=True)
        self._factors = FactorProof(self._recorder.structure)
        self.uses = GradientUses(self._trained)
        self._order = StepOrder(self.uses)
        self._hooks = contextlib.ExitStack()
        self._steps: list[ProfiledStep] = []
        self._microsteps: list[Microstep] = []
        self._is_open = False
        self._is_in_forward = False
        self._is_in_backward = False
        self._num_nested = 0
        self._has_several_nested = False
        self._has_updated = False
        self._update_marks: list[Any] = []
        self._update_seconds = 0.0
        self._sparse: set[str] = set()
        self._reasons: dict[str, None] = {}
        self._batch_size = 1

    @property
    def num_steps(self) -> int:
        """The number of steps seen."""
        return len(self._steps)

    def begin(self) -> None:
        """Put hooks into the model."""
        for parameter in self._trained:
            hook: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.callback(hook(self._gradient_is_ready).remove)
        self._hooks.enter_context(self._recorder.attached())
        self._hooks.enter_context(self._factors.attached())

    def end(self) -> None:
        """Take all hooks away."""
        self.uses.lift()
        self._hooks.close()

    # What the door tells.

    def forward_begins(self, inputs: Sequence[Any], *, syncs: bool = True) -> None:
        """A forward pass that wants gradients begins. Under `no_sync`, `syncs` is false."""
        self.uses.lift()
        self._close_microstep()
        self._order.forward_begins(syncs=syncs)
        self._batch_size = max(next((len(one) for one in _tensors_in(inputs) if one.dim()), 1), 1)
        self._recorder.forward_begins()
        self._is_open = self._is_in_forward = True
        self._num_nested = 0

    def backward_begins(self, tensors: Any) -> None:
        """A backward pass begins; within the forward pass, it ends that: Lightning's manual optimization is such."""
        if torch._C._current_graph_task_id() == -1:  # noqa: SLF001 - torch has no other way to ask
            # Not within another pass, as those of reentrant checkpoints are.
            self._is_in_backward = False
            self._order.backward_begins()
        if self._is_in_forward:
            self._num_nested += 1
            self._has_several_nested |= self._num_nested > 1
            if self._num_nested == 1:
                self._graph_is_made(tensors)

    def forward_ends(self, output: Any) -> None:
        """It has ended."""
        self._is_in_forward = False
        if not self._num_nested:
            self._graph_is_made(output)
        if self._sees_uses:
            # The script may still read gradients of the last step, until the backward pass.
            self.uses.watch()

    def _graph_is_made(self, output: Any) -> None:
        """Everything that the backward pass goes through is there."""
        self._recorder.forward_ends([one for one in _tensors_in(output) if one.requires_grad])

    def update_begins(self, optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> None:
        """An optimizer's update begins; `given` are arguments of its step, except a closure that has returned."""
        self.uses.update_begins(optimizer)
        self._close_microstep()
        if given:
            self._reasons[_CLOSURE] = None
        else:
            self._order.update_begins()
        if vars(optimizer)["_optimizer_step_pre_hooks"]:
            self._reasons["it has hooks before its optimizer's step"] = None
        names = self._recorder.structure.parameters.items()
        self._sparse |= {name for name, one in names if one.grad is not None and one.grad.is_sparse}
        # A closure's passes are no part of the update.
        self._update_marks = [] if given else [self._clock.mark()]

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has ended."""
        self._order.update_ends(optimizer)
        if self._update_marks:
            self._update_seconds += self._clock.seconds([*self._update_marks, self._clock.mark()])[0]
            self._update_marks = []
        self._has_updated = True
        if self._sees_uses:
            self.uses.watch()

    def step_ends(self, *, has_update: bool = True) -> None:
        """The next step begins. The one before is left out if its update was skipped."""
        self._close_microstep()
        self._order.step_ends(has_update=has_update)
        if has_update:
            if self._microsteps:
                self._steps.append(profiled_step(self._microsteps, self._update_seconds, known_rows))
            self._recorder.asks_sequence = False
            # A check takes time, and later steps are measured.
            self._factors.checks_products = self.num_steps < 1 + WARMUP_STEPS
        self._microsteps, self._update_seconds = [], 0.0

    @property
    def _sees_uses(self) -> bool:
        """Whether gradients are watched: not before the first update, and not where an optimizer's step computes them.

        A script that logs gradients now and then does so after the first step.
        """
        return self._has_updated and _CLOSURE not in self._reasons

    def _close_microstep(self) -> None:
        if self._is_open:
            self._is_open = False
            self._is_in_backward = False
            microstep = self._recorder.microstep_ends()
            if microstep.ready:
                self._microsteps.append(microstep)

    def _gradient_is_ready(self, _: torch.Tensor) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        self._order.gradients_come()
        if self._sees_uses:
            engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - torch's own wrappers do so
            # DDP's own callback, after which gradients are synchronised, comes after the first one and before the
            # second.
            engine.queue_callback(lambda: engine.queue_callback(self.uses.pass_ends))

    # The result.

    def _refuse_unobserved(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Refuse a script whose steps do not show its model."""
        if not optimizers:
            raise OperationError("no optimizer holds parameters of the model that the script wraps")
        if self._has_several_nested:
            raise OperationError(
                "the script runs several backward passes inside a forward pass of its DistributedDataParallel, as "
                f"manual optimization under Lightning may: it cannot be observed ({_ELSE})"
            )
        if set(map(id, _trained_of(self._model))) != set(map(id, self._trained)):
            raise OperationError(
                "the script has frozen or thawed parameters in the steps that were observed: which of them a strategy "
                f"has to synchronise is not known (set requires_grad before the first step, or {_ELSE})"
            )
        if self._order.updates_by_local:
            raise OperationError(
                "DistributedDataParallel does not synchronise the last backward pass before an update of the script: "
                "it synchronises the first one after a forward pass of its own outside of no_sync, and no other. Each "
                "rank updates with gradients of its own then, and no strategy does that (add losses up for one "
                "backward pass, and have the last one of a step outside of no_sync)"
            )
        if self.num_steps <= 1 + WARMUP_STEPS:
            raise OperationError(
                "no backward pass brought gradients to the parameters of the model that the script wraps in "
                "most of the observed steps: torch.autograd.grad brings none, and DistributedDataParallel does not "
                f"synchronise what it returns (call backward() on the loss, or {_ELSE})"
            )

    def facts(self, name: str, optimizers: Sequence[torch.optim.Optimizer]) -> ScriptFacts:
        """Return what was seen of the script, which has this name."""
        self._refuse_unobserved(optimizers)
        reasons = [*self._reasons, *self.uses.reasons(), *self._order.reasons(optimizers)]
        if len({type(one) for one in optimizers}) > 1:
            reasons.append("its optimizers are of different classes")
        device = self._trained[0].device
        counts = [len(step.microsteps) for step in self._steps]
        if len(set(counts)) > 1:
            reasons.append("its steps do not accumulate over the same number of passes")
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            specs = [optimizer_spec(one, self._trained) for one in optimizers]
            # Where one of them updates variables together, the engine has to do so for all.
            place = next((place for place, one in enumerate(specs) if not one.elementwise), 0)
            notes = optimizer_notes(optimizers[place], specs[place])
        records = ProfileRecords(
            structure=self._recorder.structure,
            facts=self._steps[0],
            steps=tuple(self._steps[1 + WARMUP_STEPS :]),
            sparse=frozenset(self._sparse),
            optimizer=specs[place],
            device=device_name(device),
            source="measured",
            note=f"medians over {self.num_steps - 1 - WARMUP_STEPS} steps of the script under stock DDP; the update as "
            "a whole, split over modules by the elements that it changes; the loss is part of the backward pass",
            notes=(*notes, *(f"only the script's optimizer may update: {reason}" for reason in reasons)),
        )
        facts = _Facts(
            name=name,
            batch_size=self._batch_size,
            accumulation_steps=statistics.mode(counts),
            clip_norm=self.uses.clip_norm,
            loss_scaling=self.uses.scales,
        )
        adds = len(set(counts)) > 1 or not {ADDS, PASSES}.isdisjoint(reasons)
        return ScriptFacts(model=self._factors.applied(assemble(facts, records), adds=adds), reasons=tuple(reasons))


def _trained_of(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def _tensors_in(value: Any) -> Sequence[torch.Tensor]:
    """Return the tensors in a value, as DDP finds them in outputs."""
    found: Sequence[torch.Tensor] = list(_find_tensors(value))  # type: ignore[no-untyped-call]
    return found
