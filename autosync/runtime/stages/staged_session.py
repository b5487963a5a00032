"""One model in training with stages: makes this rank's passes, and the engine sums gradients within stages.

Here a step ends with its update. `unflushed_session` has what is common to steps that go on meanwhile.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from autosync.plan.rank_passes import RankPass, passes_of
from autosync.plan.types import Plan
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.rank_script import script_of
from autosync.runtime.local.engine_updates import engine_updates, norm_operations
from autosync.runtime.local.operations import clip_coefficient
from autosync.runtime.same_batch import batch_mark, sums_of_step
from autosync.runtime.session.agreement import agree, parameters_of, refusal_told, send_state
from autosync.runtime.session.batch_weight import BatchWeight
from autosync.runtime.session.gradient_arrivals import GradientHook
from autosync.runtime.session.gradients import Gradients
from autosync.runtime.session.variable_roles import VariableRoles
from autosync.runtime.stages.batch_form import form_of, microbatches_of, refuse_other_form
from autosync.runtime.stages.boundary_links import BoundaryLinks
from autosync.runtime.stages.failure_told import FailureTold
from autosync.runtime.stages.later_checks import LaterChecks
from autosync.runtime.stages.left_products import LeftProducts
from autosync.runtime.stages.recorded_model import num_examples_of
from autosync.runtime.stages.recorded_values import RecordedValues, refuse_replaced
from autosync.runtime.stages.refused_hooks import refuse_hooks, refuse_step_hooks
from autosync.runtime.stages.stage_program import PassedMicrobatch, StageBoundary, StageProgram, StageWork
from autosync.runtime.stages.untrained_values import UntrainedValues, refuse_different_values
from autosync.runtime.stages.whole_state import send_optimizer_state, send_variables
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.native_collectives import native_groups
from autosync.specs.profile.tape import tensors_of
from autosync.specs.task import Task
from autosync.specs.task_run import step_optimizer
from autosync.strategy.bundle import Bundle
from autosync.strategy.stages import holders_of_variables, stages_of_variables


class MicrobatchPlace(NamedTuple):
    """A microbatch in a stage, and the turn of its parameters."""

    turn: int
    stage: int
    microbatch: int


MakeStages = Callable[[Task, torch.nn.Module, Bundle, Plan, Sequence[Any]], Sequence[StageWork]]
"""Makes the passes of all stages from the first step's microbatches (see `recorded_model.record_stages`)."""


class StagedSession:
    """The training of one model with stages on one rank. All ranks call each method together.

    `store` is used by no other session. The session owns the links. `make_stages` is called in the first step. With
    `repeats_checks`, some later steps compare the stages with the model again (see `later_checks`).
    """

    # What the first step has found.
    _form = ""
    _recorded_values: RecordedValues | None = None
    _later_checks: LaterChecks | None = None
    _untrained: UntrainedValues | None = None

    def __init__(
        self,
        task: Task,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        *,
        plan: Plan,
        links: Links,
        store: Any,
        timeout_seconds: float,
        init_sync: bool,
        make_stages: MakeStages,
        repeats_checks: bool,
    ) -> None:
        self._task = task
        self._make_stages = make_stages
        self._repeats_checks = repeats_checks
        self._model = model
        self._optimizer = optimizer
        self._bundle = bundle
        self._plan = plan
        self._links = links
        self._store = store
        self._patience = dt.timedelta(seconds=timeout_seconds)
        self._failure = FailureTold(store, links)
        self._holders = holders_of_variables(plan.stages, bundle.model)
        self._parameters = parameters_of(model, bundle)
        self._held = [name for name, ranks in self._holders.items() if links.rank in ranks]
        # The engine works on these gradients; those of one rank alone need no sums.
        self._norms = norm_operations(plan)
        self._worked = [name for name in self._held if self._norms or len(self._holders[name]) > 1]
        self._numbers = {name: number for number, name in enumerate(self._parameters)}
        if init_sync:
            with self._failure.naming():
                send_state(model, links, num_workers=plan.num_workers)
        links.make_native(native_groups(plan))
        updates = engine_updates(plan)
        self._execution = Execution(plan, self._parameters, links=links, updates=updates, optimizer=None)
        script = script_of(plan, links.rank, len(self._parameters), updates)
        self._engine = Engine(plan, script, self._execution, rank=links.rank, timeout_seconds=timeout_seconds)
        self._failure.end = self._engine.fail
        self._gradients = Gradients(
            self._roles(), self._execution, self._engine, BatchWeight(plan, links, batch_size=None)
        )
        self._boundaries = BoundaryLinks(plan, links)
        self._passes = passes_of(plan, links.rank)
        self._last_passes = self._last_of_variables()
        self._num_examples = num_examples_of(plan)
        # By turn and stage; and what is between the passes of a microbatch, by turn, stage and microbatch.
        self._programs: dict[int, dict[int, StageWork]] = {}
        self._kept: dict[MicrobatchPlace, PassedMicrobatch] = {}
        self._left: dict[MicrobatchPlace, LeftProducts] = {}
        self._staying: dict[int, Mapping[int, torch.Tensor]] = {}
        self._under_way = -1
        self._came: set[str] = set()
        self._hooks: list[GradientHook] = []
        self._engine.begin()

    def _roles(self) -> VariableRoles:
        """Return the roles of the variables: the engine sums the gradients of variables that other ranks hold too."""
        staged, sparse = set(self._execution.memory.staged_variables()), self._execution.sparse.variables
        dense = tuple(name for name in self._worked if name not in sparse)
        return VariableRoles(
            parameters=self._parameters,
            engine={},
            sparse=tuple(name for name in self._worked if name in sparse),
            dense=dense,
            staged=tuple(name for name in dense if name in staged and len(self._holders[name]) > 1),
        )

    def _last_of_variables(self) -> dict[str, int]:
        """Return for each variable that this rank holds the pass after which its gradient is complete."""
        stages_of = stages_of_variables(self._plan.stages, self._bundle.model)
        return {
            name: max(
                (
                    one.operation
                    for one in self._passes
                    if one.kind == self._plan.gradient_pass and one.place.stage in stages_of[name]
                ),
                default=-2,
            )
            for name in self._held
        }

    def _hook(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Take the gradient of each of these parameters when the pass is over after which it is complete.

        It gets memory of its own as soon as a microbatch brings it: the next microbatch adds to it in place.
        """
        self._hooks += [GradientHook(one, self._taking(name)) for name, one in parameters.items()]

    def _taking(self, name: str) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            if self._under_way == self._last_passes[name]:
                self._complete(name, parameter)

        return take

    def _complete(self, name: str, parameter: torch.Tensor) -> None:  # noqa: ARG002 - other sessions have several
        """Take the gradient of a parameter, which is complete."""
        self._take(name)

    def _take(self, name: str) -> None:
        """Give a gradient that is complete to the engine."""
        self._came.add(name)
        if name in self._worked:
            self._gradients.take(name)
        else:
            self._engine.gradient_ready(self._numbers[name])

    @property
    def global_batch(self) -> int:
        """The examples of a step."""
        return self._num_examples * self._plan.microbatches

    # A step.

    def step(self, batch: Any) -> float:
        """Train on a global batch, which every rank has; return its loss."""
        with self._failure.naming():
            microbatches = self._microbatches(batch)
            self._optimizer.zero_grad(set_to_none=True)
            self._came.clear()
            self._boundaries.begin()
            loss = self._run(self._passes, microbatches)
            self._sum_up()
            self._boundaries.end()
            self._update()
            return self._whole_loss(loss, batch_mark(batch), self._untrained_mark())

    def _untrained_mark(self) -> int:
        return 0 if self._untrained is None else self._untrained.mark()

    def _whole_loss(self, loss: float, batch: int, untrained: int) -> float:
        """Tell the others this rank's part of a loss and marks of what must be equal; return the global batch's loss.

        It is what the ranks of the last stage have computed.
        """
        num_workers = self._plan.num_workers
        whole, marks = sums_of_step(self._links, num_workers, [loss, untrained], batch)
        refuse_different_values(untrained, marks, num_workers)
        return whole

    def _microbatches(self, batch: Any) -> Sequence[Any]:
        """Cut a global batch into microbatches; record the model's pass on the first batch."""
        if self._recorded_values is None:
            return self._first_microbatches(batch)
        microbatches = self._cut(batch)
        refuse_other_form(form_of(microbatches[0]), self._form)
        self._recorded_values.refuse_changes()
        if self._later_checks is not None and self._later_checks.check(microbatches):
            self._recorded_values.note_again()
        return microbatches

    def _cut(self, batch: Any) -> Sequence[Any]:
        refuse_hooks({name: self._parameters[name] for name in self._held})
        refuse_step_hooks(self._optimizer)
        return microbatches_of(batch, self._plan.microbatches, self._num_examples)

    def _first_microbatches(self, batch: Any) -> Sequence[Any]:
        """Record the model's pass on the first batch, and compare this batch over all ranks."""
        store = torch.distributed.PrefixStore("first-batch/", self._store)  # type: ignore[attr-defined]
        rank, num_ranks = self._links.rank, self._plan.num_workers
        with refusal_told(store, rank=rank):
            refuse_replaced(parameters_of(self._model, self._bundle), self._parameters)
            microbatches = self._cut(batch)
            before = RecordedValues(self._model)
            programs = self._make_stages(self._task, self._model, self._bundle, self._plan, microbatches)
            mark = batch_mark(batch)
        facts = {"first batch (each rank gives step() the whole global batch)": f"batch {mark:08x}"}
        agree(store, rank=rank, num_ranks=num_ranks, facts=facts, patience=self._patience)
        self._form = form_of(microbatches[0])
        self._recorded_values = RecordedValues(self._model, before=before)
        if self._repeats_checks:
            used = [tensor for one in programs if isinstance(one, StageProgram) for tensor in one.parameters]
            tensors = [*self._model.parameters(), *self._model.buffers(), *used]
            self._untrained = UntrainedValues(tensors, self._parameters.values())
            held = {name: self._parameters[name] for name in self._held}
            self._later_checks = LaterChecks(self._task, self._model, self._plan, programs, held)
        self._begin_programs({stage: programs[stage] for stage in {one.place.stage for one in self._passes}})
        return microbatches

    def _begin_programs(self, programs: dict[int, StageWork]) -> None:
        self._programs = {0: programs}
        self._hook({name: self._parameters[name] for name in self._held})

    def _turn(self, one: RankPass) -> int:  # noqa: ARG002 - other sessions have several turns
        """Return the turn of the parameters with which a pass computes."""
        return 0

    def _run(self, passes: Sequence[RankPass], microbatches: Sequence[Any]) -> float:
        """Make passes in their order; return this rank's part of the loss."""
        losses = [loss for one in passes if (loss := self._pass(one, microbatches)) is not None]
        return math.fsum(float(loss) for loss in losses) / self._plan.microbatches

    def _pass(self, one: RankPass, microbatches: Sequence[Any]) -> torch.Tensor | None:
        """Make a pass; return the loss of its microbatch if it is the last stage's forward pass."""
        turn = self._turn(one)
        program, key = (
            self._programs[turn][one.place.stage],
            MicrobatchPlace(turn, one.place.stage, one.place.microbatch),
        )
        if one.kind == "weights":
            self._weights(program, one, self._left.pop(key))
            return None
        boundary, loss = program.arriving if one.is_forward else program.leaving, None
        arrived: Mapping[int, torch.Tensor] = {}
        if boundary is not None:
            arrived = self._staying.pop(one.before, {}) if one.before >= 0 else self._arrived(one, boundary)
        if one.is_forward:
            passed = self._kept[key] = program.forward(
                tensors_of(microbatches[one.place.microbatch]), arrived, keeps=not self._plan.recompute
            )
            made: Mapping[int, torch.Tensor] = passed.sent
            boundary, passed.sent = program.leaving, {}
            loss = None if passed.loss is None else passed.loss.detach()
        else:
            passed = self._kept.pop(key)
            made, boundary = self._backward(program, one, passed, arrived), program.arriving
            if self._plan.splits_backward:
                self._left[key] = passed.left
        if boundary is not None and self._boundaries.sends(one):
            self._boundaries.send(one, boundary.pack(made, backward=not one.is_forward))
        elif boundary is not None:
            self._staying[one.operation] = made
        return loss

    def _arrived(self, one: RankPass, boundary: StageBoundary) -> Mapping[int, torch.Tensor]:
        """Wait for what has crossed a boundary; a message without bytes is not sent."""
        buffer = self._boundaries.arrive(one)
        empty = torch.empty(0, dtype=torch.uint8)
        return boundary.unpack(empty if buffer is None else buffer, backward=not one.is_forward)

    def _backward(
        self, program: StageWork, one: RankPass, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor]
    ) -> Mapping[int, torch.Tensor]:
        self._under_way = one.operation
        try:
            return program.backward(passed, gradients, scale=1.0 / self._plan.microbatches)
        finally:
            self._under_way = -1

    def _weights(self, program: StageWork, one: RankPass, left: LeftProducts) -> None:
        """Compute what a backward pass has left. After the last such pass, all gradients of the stage are complete."""
        self._under_way = one.operation
        try:
            program.weights(left)
        finally:
            self._under_way = -1
        for name in self._held:
            is_last = self._last_passes[name] == one.operation and name not in self._came
            if is_last and self._parameters[name].grad is not None:
                self._take(name)

    def _sum_up(self) -> None:
        """Wait for the sums within stages, and clip by the norm of all gradients."""
        # Those that other ranks hold count too: a sum over all ranks may wait for one of them.
        missing = [name for name in self._parameters if name not in self._came]
        self._gradients.take_missing([name for name in missing if name in self._worked])
        for name in missing:
            if name not in self._worked:
                self._engine.gradient_ready(self._numbers[name])
        self._engine.wait("backward_returns")
        self._gradients.give_back()
        if self._plan.clip_norm is not None:
            self._clip(self._plan.clip_norm)

    def _update(self) -> None:
        """Update what this rank holds."""
        self._engine.step_called()
        self._engine.user_updated()
        self._engine.wait_due()
        self._engine.begin()
        step_optimizer(self._task, self._optimizer)

    def _clip(self, clip_norm: float) -> None:
        """Wait for the norm of all stages' gradients, and clip those of this rank by it, as `clip_grad_norm_` does."""
        self._engine.wait_operations(self._norms)
        sum_of_squares = float(self._execution.memory.norms(self._engine.iteration).sum())
        gradients = [one.grad for one in map(self._parameters.__getitem__, self._held) if one.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, clip_coefficient(sum_of_squares, clip_norm))

    # Between steps.

    def gather(self) -> None:
        """Bring the parameters of all stages to every rank. All ranks call it together, between two steps."""
        with self._failure.naming():
            send_variables(self._parameters, self._holders, self._links)

    def gather_optimizer(self) -> None:
        """Bring the optimizer's state of all stages to every rank, as `gather` does."""
        with self._failure.naming():
            send_optimizer_state(self._optimizer, self._parameters, self._holders, self._links)

    def describe(self) -> str:
        """Describe in words what this rank does."""
        mine = sorted({one.place.stage for one in self._passes})
        num_microbatches = sum(one.is_forward for one in self._passes)
        stages, rank = self._plan.stages, self._links.rank
        return (
            f"rank {rank} computes stage {' and '.join(map(str, mine))} of {len(stages)} ({len(self._held)} of "
            f"{len(self._parameters)} variables), {num_microbatches} microbatches forward and backward "
            "a step"
        )

    def finish(self) -> None:
        """Make what the last step has left. All ranks call it together, and a step leaves nothing."""

    def close(self) -> None:
        """End the engine and the connections."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._boundaries.forget()
        try:
            self._engine.close()
        finally:
            self._execution.close()
