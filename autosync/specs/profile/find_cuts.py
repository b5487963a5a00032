"""Finds where a model can be cut: records a forward pass, and sees what is made before a cut and used after it.

The pass runs as it is (see `tape`). A model whose Python code reads the value of a parameter, of a tensor of the batch
or of one that the model computed cannot be cut, because the recording does not show where that value goes. A second
pass with another number of examples tells which bytes grow with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from autosync.errors import TaskError
from autosync.specs.cuts import StageCut
from autosync.specs.examples import count_divisible, examples_of, join_batches, num_examples
from autosync.specs.profile.linear_calls import LinearUse, linear_uses
from autosync.specs.profile.microbatch_losses import small_microbatches, why_changes_mix, why_losses_mix
from autosync.specs.profile.recorder import ModelStructure
from autosync.specs.profile.tape import Tape, record, tensors_of
from autosync.specs.task import Task
from autosync.specs.task_run import compute_loss


class FoundCuts(NamedTuple):
    """The cuts of a model, or the reason why it has none.

    `mixes` is the reason why microbatches would train another model, if there is one, and `note` says what was not
    checked. `linears` are the uses of layers whose gradients of weights can come later. `modules` are the modules that
    the pass called: cuts are numbered by them.
    """

    cuts: tuple[StageCut, ...] = ()
    uncut: str = ""
    mixes: str = ""
    note: str = ""
    linears: tuple[LinearUse, ...] = ()
    modules: tuple[str, ...] = ()


class OtherBatch(NamedTuple):
    """A batch with `num_examples` examples where the profiled one has `num_whole`, and what computes its loss."""

    batch: Any
    forward: Callable[[], Any]
    num_examples: int
    num_whole: int


def cuts_of_task(task: Task, structure: ModelStructure, model: nn.Module, batch: Any) -> FoundCuts:
    """Return the cuts of a task's model, from a pass over a batch."""
    if reason := why_no_microbatches(task, batch):
        return FoundCuts(uncut=reason)
    other = other_batch(task, model, batch)
    return find_cuts(structure, model, lambda: compute_loss(task, model, batch), batch, other=other)


def with_checked_losses(
    found: FoundCuts, task: Task, model: nn.Module, batch: Any, draw: Callable[[], Any]
) -> FoundCuts:
    """Return the cuts with the reason why microbatches would train another model, if there is one.

    The microbatches come from the batch. If it has a single example, `draw` returns further batches.
    """
    if not found.cuts or found.mixes:
        return found
    try:
        return found._replace(mixes=why_losses_mix(task, model, _joinable(small_microbatches(batch, draw))))
    except TaskError as error:
        return _no_microbatches(error)


def _joinable(microbatches: Sequence[Any]) -> Sequence[Any]:
    """Return some microbatches; raise TaskError if they differ in their shapes."""
    try:
        join_batches(microbatches)
    except RuntimeError as error:
        raise TaskError(f"batches have different shapes ({error})", rule="with stages, all have one form") from error
    return microbatches


def _no_microbatches(error: TaskError) -> FoundCuts:
    """Return that a model has no cuts because other numbers of examples cannot pass it: its code has fixed shapes."""
    return FoundCuts(uncut=f"a microbatch cannot pass: {error.problems[0].what}")


def why_no_microbatches(task: Task, batch: Any) -> str:
    """Return why a task's batches cannot be divided into microbatches; empty if they can."""
    try:
        found = count_divisible(batch)
    except TaskError as error:
        return str(error.problems[0].what)
    if found == task.batch_size:
        return ""
    return f"its batches have {found} examples, and the task declares a batch_size of {task.batch_size}"


def other_batch(task: Task, model: nn.Module, batch: Any) -> OtherBatch:
    """Return half of the examples of a batch, or its single example twice."""
    num_whole = num_examples(batch)
    count = num_whole // 2 or 2
    other = examples_of(batch, 0, count) if num_whole > 1 else join_batches([batch, batch])
    return OtherBatch(other, lambda: compute_loss(task, model, other), count, num_whole)


def find_cuts(
    structure: ModelStructure,
    model: nn.Module,
    forward: Callable[[], Any],
    batch: Any,
    *,
    other: OtherBatch | None = None,
) -> FoundCuts:
    """Run `forward`, which computes the loss of a batch, and return the model's cuts.

    The model has passed batches before. So what fails here is what cannot be recorded.
    """
    try:
        kept = _Kept(model, batch)
        with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            tape = record(structure, model, kept.following(structure, forward), batch)
    except Exception as error:  # noqa: BLE001 - torch refuses to record some calls in its own ways
        told = error.problems[0].what if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
        return FoundCuts(uncut=f"its pass cannot be recorded: {told}")
    if tape.problem:
        return FoundCuts(uncut=tape.problem)
    if len(tape.modules) < 2:
        return FoundCuts(uncut=f"the pass calls {len(tape.modules)} modules with parameters (two or more)")
    cuts = [_cut(structure, tape, kept, before) for before in range(1, len(tape.modules)) if not tape.is_torn(before)]
    if other is not None:
        try:
            second = record(structure, model, other.forward, other.batch)
        except TaskError as error:
            return _no_microbatches(error)
        if second.problem or second.modules != tape.modules:
            return FoundCuts(uncut=second.problem or CHANGING)
        cuts = _with_fixed(cuts, second, other)
    return FoundCuts(
        cuts=tuple(cuts),
        mixes=why_changes_mix(tape.changed),
        note=_CHECKPOINTING if tape.keeps_otherwise else "",
        linears=linear_uses(tape),
        modules=tuple(tape.modules),
    )


CHANGING = "the modules that it calls change from pass to pass"
_CHECKPOINTING = (
    "with stages, activations are kept as without the model's own activation checkpointing, and the memory for them is "
    "not known (recompute: true computes them again)"
)


class _Kept:
    """Notes the tensors that autograd keeps for the backward pass, by segment."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        own = [*model.parameters(), *model.buffers(), *tensors_of(batch)]
        # These exist before the pass and on every rank.
        self._given = {_key(tensor) for tensor in own if not tensor.is_sparse}
        self._kept: list[dict[int, int]] = [{}]
        self._num_calls = 0

    def following(self, structure: ModelStructure, forward: Callable[[], Any]) -> Callable[[], Any]:
        """Return `forward` with hooks that tell when segments begin."""

        def hook(*_: Any) -> None:
            self._num_calls += 1
            if self._num_calls > 1:
                self._kept.append({})

        def run() -> Any:
            modules = [one for one in structure.modules.values() if not isinstance(one, torch.jit.ScriptModule)]
            handles = [module.register_forward_pre_hook(hook, prepend=True) for module in modules]
            try:
                return forward()
            finally:
                for handle in handles:
                    handle.remove()

        return run

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd keeps."""
        if tensor.layout == torch.strided and _key(tensor) not in self._given:
            kept, key = self._kept[-1], _key(tensor)
            kept[key] = max(kept.get(key, 0), _num_bytes(tensor))
        return tensor

    def bytes_before(self, segment: int) -> int:
        """Return the bytes that are kept when a segment begins."""
        kept: dict[int, int] = {}
        for tensors in self._kept[:segment]:
            kept |= tensors
        return sum(kept.values())


def _cut(structure: ModelStructure, tape: Tape, kept: _Kept, before: int) -> StageCut:
    owned = structure.owned[tape.modules[before]]
    num_bytes, constant_bytes = _crossing_bytes(tape, before)
    return StageCut(
        before=before,
        num_bytes=num_bytes,
        constant_bytes=constant_bytes,
        held_bytes=kept.bytes_before(before),
        tied=tuple(sorted(name for name, uses in tape.uses.items() if min(uses) < before <= max(uses))),
        uses=tuple(sorted(name for name, uses in tape.uses.items() if before in uses and name not in owned)),
    )


def _crossing_bytes(tape: Tape, before: int) -> tuple[int, int]:
    values = [tape.values[number] for number in tape.crossing(before)]
    with_gradient = sum(value.num_bytes for value in values if value.has_gradient)
    return with_gradient, sum(value.num_bytes for value in values) - with_gradient


def _with_fixed(cuts: Sequence[StageCut], tape: Tape, other: OtherBatch) -> list[StageCut]:
    """Return the cuts with the bytes that do not grow with the batch."""
    found = []
    for cut in cuts:
        num_bytes, constant_bytes = _crossing_bytes(tape, cut.before)
        fixed = _fixed(cut.num_bytes, num_bytes, other), _fixed(cut.constant_bytes, constant_bytes, other)
        found.append(replace(cut, fixed_bytes=fixed[0], fixed_constant_bytes=fixed[1]))
    return found


def _fixed(num_bytes: int, of_other: int, other: OtherBatch) -> int:
    """Return the bytes without examples, on the line through those of both batches; 0 if that is no line."""
    of_one, rest = divmod(num_bytes - of_other, other.num_whole - other.num_examples)
    fixed = num_bytes - of_one * other.num_whole
    return fixed if not rest and 0 <= fixed <= num_bytes else 0


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch has no other identity of a storage


def _num_bytes(tensor: torch.Tensor) -> int:
    # An expanded tensor shows the same memory many times.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
