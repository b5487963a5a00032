"""Records a model's pass on a microbatch, and checks that its stages together compute what the model computes.

The pass is recorded in the first step, after one in which the model makes what it keeps for all passes. It is refused
wherever stages would train something else: parameters on ranks that the plan does not give them to, other bytes than
the plan's, layers that change buffers, code that depends on random numbers of Python. Then the stages run on another
microbatch, one after the other on this rank, and must give the same loss and gradients as the model itself. The loss
and the gradients of some microbatches together must be the mean of theirs. `later_checks` repeats some of this in later
steps.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan, StagePass, Transfer
from autosync.runtime.stages.recorded_values import RecordedValues
from autosync.runtime.stages.stage_program import PassedMicrobatch, StageProgram, StageWork, stage_programs
from autosync.specs.examples import examples_of, num_examples
from autosync.specs.profile.microbatch_losses import is_near, norm_of, why_changes_mix, why_losses_mix
from autosync.specs.profile.recorder import structure_of
from autosync.specs.profile.tape import Tape, record, tensors_of
from autosync.specs.task import Task
from autosync.specs.task_run import compute_loss
from autosync.strategy.bundle import Bundle
from autosync.strategy.stages import holders_of_variables

UNDIVIDED = " (a strategy without stages takes the model as it is)"


def record_stages(
    task: Task, model: nn.Module, bundle: Bundle, plan: Plan, microbatches: Sequence[Any]
) -> list[StageProgram]:
    """Record a pass of the model on the first of some microbatches; return the checked programs of all stages."""
    with torch.random.fork_rng(devices=()):
        drawn = _drawn()
        tape = _recorded(task, model, microbatches[0])
        for whose, state in _drawn().items():
            if state != drawn[whose]:
                raise OperationError(f"the forward pass draws random numbers of {whose}, and stages would repeat these")
        _refuse(tape, bundle)
        # Without a flush, the script may refill its batch before the backward passes.
        programs = stage_programs(
            tape, plan.stages, splits_backward=plan.splits_backward, copies_batch=not plan.flushes
        )
        _refuse_other_uses(programs, plan, bundle)
        _refuse_other_bytes(programs, plan)
        values = RecordedValues(model)
        _compare(task, model, programs, microbatches[-1])
        values.refuse_own_changes()
        _refuse_mixing(task, model, microbatches)
        _refuse_uneven(programs[-1], microbatches)
    return programs


def _recorded(task: Task, model: nn.Module, microbatch: Any) -> Tape:
    """Record the second pass of a model: in the first one, it may make masks and tables, and keep them.

    What a pass uses of an earlier one must not depend on the batch of that one, of which this is only a part.
    """
    structure = structure_of(model)
    # What the first pass draws and keeps is the same on all ranks.
    torch.default_generator.manual_seed(0)
    # Tensors of its own, so that the batch that a model keeps is no other pass's batch.
    earlier = examples_of(microbatch, 0, num_examples(microbatch))
    first = record(structure, model, lambda: compute_loss(task, model, earlier), earlier)
    _refuse_unfit(first)
    tape = record(structure, model, lambda: compute_loss(task, model, microbatch), microbatch)
    kept = [tensor for reference in first.from_batch if (tensor := reference()) is not None]
    for call in tape.calls:
        if any(leaf is tensor for leaf in call.leaves if isinstance(leaf, torch.Tensor) for tensor in kept):
            (where,) = tape.modules[call.segment : call.segment + 1] or ["its first module"]
            raise OperationError(
                f"the code in or after {where} uses what an earlier pass has computed from its batch and kept, and "
                "stages would keep that of a microbatch" + UNDIVIDED
            )
    return tape


def _drawn() -> dict[str, object]:
    """Return the states of generators that a recorded pass does not show: they change when numbers are drawn."""
    numpys = np.random.get_state()  # noqa: NPY002 - models that draw from it draw from the old one
    return {"Python's": random.getstate(), "numpy's": pickle.dumps(numpys)}


def _refuse_unfit(tape: Tape) -> None:
    """Refuse a pass that cannot be recorded, or that changes its model."""
    if tape.problem:
        raise OperationError(f"the model cannot be cut: {tape.problem}")
    if reason := why_changes_mix(tape.changed):
        raise OperationError(reason + UNDIVIDED)


def _refuse(tape: Tape, bundle: Bundle) -> None:
    _refuse_unfit(tape)
    profiled = [segment.module for segment in bundle.model.timeline.forward]
    if tape.modules != profiled:
        place = next(
            (i for i, pair in enumerate(zip(tape.modules, profiled, strict=False)) if pair[0] != pair[1]),
            min(len(tape.modules), len(profiled)),
        )
        now, then = (modules[place] if place < len(modules) else "nothing" for modules in (tape.modules, profiled))
        raise OperationError(
            f"segment {place} of the forward pass is {now}, and was {then} in the profile (profile the model again)"
        )
    batch = {tape.values[number].storage for number in tape.batch}
    if any(storage in batch for _, storage in tape.changes):
        raise OperationError("the forward pass changes a tensor of its batch in place, which other stages read")


def _refuse_other_uses(programs: Sequence[StageProgram], plan: Plan, bundle: Bundle) -> None:
    holders = holders_of_variables(plan.stages, bundle.model)
    for stage, program in zip(plan.stages, programs, strict=True):
        for name in sorted(program.uses):
            if name in holders and not set(stage.ranks) <= set(holders[name]):
                raise OperationError(
                    f"ranks {list(stage.ranks)} use {name}, and the plan has it on ranks {list(holders[name])} "
                    "(profile the model again: autosync profile --cuts)"
                )


def _refuse_other_bytes(programs: Sequence[StageProgram], plan: Plan) -> None:
    for number, program in enumerate(programs[:-1]):
        assert program.leaving is not None, "only the last stage has no boundary after it"
        planned = planned_bytes(plan, number)
        if program.leaving.num_bytes != planned:
            forward, backward = program.leaving.num_bytes
            raise OperationError(
                f"a microbatch sends {forward} B from stage {number} to the next and {backward} B back, and the plan "
                f"has {planned[0]} and {planned[1]} B (profile the model again: autosync profile --cuts)"
            )


def planned_bytes(plan: Plan, boundary: int) -> tuple[int, int]:
    """Return the bytes that a microbatch sends over a boundary, forward and backward, by the plan."""
    found = {"activations": 0, "activation_grads": 0}
    for operation in plan.operations:
        if isinstance(operation, Transfer) and operation.collective == "send":
            region = plan.regions[operation.regions[0]]
            if region.part == boundary:
                found[region.kind] = operation.num_bytes
    return found["activations"], found["activation_grads"]


def num_examples_of(plan: Plan) -> int:
    """Return the number of examples in a microbatch of a plan."""
    return next(
        one.num_elements for one in plan.operations if isinstance(one, Local) and isinstance(one.settings, StagePass)
    )


def _compare(task: Task, model: nn.Module, programs: Sequence[StageProgram], microbatch: Any) -> None:
    """Refuse programs that give another loss or other gradients than the model.

    Each gradient is dropped when it is compared, so that they are not all there twice.
    """
    parameters = dict(model.named_parameters())
    before = torch.random.get_rng_state()
    loss = compute_loss(task, model, microbatch)
    torch.autograd.backward((loss,), (torch.ones_like(loss),))
    wanted, loss = _taken(parameters.items()), loss.detach()
    torch.random.set_rng_state(before)
    all_passed = pass_forward(programs, tensors_of(microbatch), keeps=True)
    found_loss = all_passed[-1].loss
    assert found_loss is not None, "the last stage computes the loss"
    if not is_near(found_loss.detach(), loss, abs(float(loss))):
        raise OperationError(
            f"the recorded pass computes the loss {float(found_loss.detach()):g} where the model computes "
            f"{float(loss):g}: its code does something else for each batch"
        )
    least = math.hypot(*map(norm_of, wanted.values())) / 64
    for names in _pass_backward(programs, all_passed):
        found = _taken((name, parameters[name]) for name in names)
        _compare_gradients(found, {name: wanted.pop(name) for name in names if name in wanted}, least)
    _compare_gradients({}, wanted, least)


def _compare_gradients(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], least: float) -> None:
    """Refuse gradients that differ by more than roundings of their norms, or of `least` if that is more."""
    for name, gradient in wanted.items():
        if name not in found or not is_near(found[name], gradient, max(norm_of(gradient), least)):
            raise OperationError(
                f"the recorded pass gives {name} another gradient than the model: a part of it has a backward pass of "
                "its own, or does something else for each batch"
            )


def _refuse_mixing(task: Task, model: nn.Module, microbatches: Sequence[Any]) -> None:
    """Refuse a loss of several microbatches that is not the mean of theirs."""
    if reason := why_losses_mix(task, model, microbatches):
        raise OperationError(reason + UNDIVIDED)


def _refuse_uneven(last: StageProgram, microbatches: Sequence[Any]) -> None:
    """Refuse microbatches whose losses are means over unequally many targets."""
    if last.targets is not None and (reason := last.targets.why_uneven([tensors_of(one) for one in microbatches])):
        raise OperationError(reason + UNDIVIDED)


def _taken(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, torch.Tensor]:
    """Take the gradients of parameters away from them, in dense form."""
    found = {}
    for name, one in parameters:
        if one.grad is not None:
            found[name] = one.grad.detach().to_dense()
            one.grad = None
    return found


def _pass_backward(programs: Sequence[StageProgram], all_passed: list[PassedMicrobatch]) -> Iterator[list[str]]:
    """Pass a microbatch backward through all stages; yield the parameters whose gradients are complete by then."""
    gradients: Mapping[int, torch.Tensor] = {}
    for number in reversed(range(len(programs))):
        program, passed = programs[number], all_passed.pop()
        if program.leaving is not None:
            gradients = program.leaving.unpack(program.leaving.pack(gradients, backward=True), backward=True)
        gradients = program.backward(passed, gradients, scale=1.0)
        program.weights(passed.left)
        yield sorted(program.uses.difference(*(one.uses for one in programs[:number])))


def pass_forward(
    programs: Sequence[StageWork], batch: Sequence[torch.Tensor], *, keeps: bool
) -> list[PassedMicrobatch]:
    """Pass a microbatch through all stages on this rank; its values cross boundaries as they do between ranks."""
    received: Mapping[int, torch.Tensor] = {}
    all_passed: list[PassedMicrobatch] = []
    for number, program in enumerate(programs):
        try:
            passed = program.forward(batch, received, keeps=keeps)
        except RuntimeError as error:
            place = f" after the cut between stages {number - 1} and {number}" if number else ""
            raise OperationError(
                f"the recorded pass{place} cannot be made again with another microbatch: {error} (values that cross a "
                "cut arrive in contiguous memory, where reshape() fits and view() may not; a strategy without stages "
                "takes the model as it is)"
            ) from error
        all_passed.append(passed)
        if program.leaving is not None:
            received = program.leaving.unpack(program.leaving.pack(passed.sent))
    return all_passed
