"""Runs plans that stock DDP can express (see `buckets`) on torch's own C++ `Reducer`, so that they cost what DDP costs.

DistributedDataParallel is not involved: the model stays the same object, and only the plan's buckets are used.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Reducer, _compute_bucket_assignment_by_size
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from autosync.errors import OperationError
from autosync.right_of_way import marks
from autosync.runtime.memory.unused_variables import NOTHING, is_absent
from autosync.runtime.session.backward_passes import Passes, accumulate_quietly
from autosync.runtime.stock.buckets import StockBuckets
from autosync.runtime.stock.layouts import Layouts
from autosync.specs.profile.inert_hook import as_nothing

# Of more elements, marking the first costs less than adding to all.
_FEW_ELEMENTS = 64


def as_process_group(connections: Any, store: Any, device: torch.device | None = None) -> dist.ProcessGroup:
    """Return connections that were made directly (a group of `Links`, on its store) as a process group for a Reducer.

    The group is for tensors on `device`, by default on the CPU.
    """
    group: Any = dist.ProcessGroup(store, connections.rank(), connections.size())
    kind = getattr(group.BackendType, connections.name().upper())
    group._register_backend(torch.device(device.type if device else "cpu"), kind, connections)  # noqa: SLF001 - torch's own way to make groups
    group._set_default_backend(kind)  # noqa: SLF001 - the same
    made: dist.ProcessGroup = group
    return made


class BackwardEnded(Protocol):
    """Is called at the end of a backward pass."""

    def __call__(self, *, synchronised: bool) -> None: ...


class StockReducer:
    """Runs buckets on torch's Reducer until `close()`; all ranks of the process group must make one together.

    `parameters` are by name, in the order of the plan's variables; buckets hold positions in it. If `layouts` says
    that strides have changed on all ranks, a new Reducer is made.

    - **As under DDP**, a forward pass of the model with gradients enabled prepares the backward pass that follows, and
      when that returns, gradients are averaged over all ranks. Several forward passes may come before it. Forward
      passes under `torch.no_grad()` change nothing.
    - `syncs` is true. While it is set to false, forward and backward passes accumulate gradients without communication;
      the next backward pass after a forward pass with `syncs` averages the whole.
    - DDP silently leaves a backward pass unsynchronised if no such forward pass came before it (a second one over a
      kept graph, or one through modules of the model alone). Here, with `syncs`, it is synchronised when it ends,
      without overlap.
    - A parameter that a rank has not used counts as zero there; if no rank has used it, its gradient stays None (see
      `unused_variables`).
    - `backward_ended(synchronised=…)` is called at the end of every backward pass that has brought gradients, when
      these are final.
    - Call `check()` before gradients are used: it raises an error if a backward pass has failed. The next forward pass
      raises it too.
    - Gradients are tensors of their own, as under DDP's defaults: a script may keep them, and its own tensors stay in
      place. Views into the buckets (DDP's `gradient_as_bucket_view`) would save a copy, but the next backward pass
      would change what the script has kept.
    - A copy of the model, deep or by pickling, is an ordinary model without any of this.

    For single parameters Python code runs only to mark their gradients as used; otherwise it runs at the end of forward
    and at both ends of backward.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        stock: StockBuckets,
        process_group: dist.ProcessGroup,
        layouts: Layouts,
        *,
        backward_ended: BackwardEnded | None = None,
    ) -> None:
        self.syncs = True
        everything = list(parameters.items())
        # The Reducer knows parameters by their positions in the order of launch.
        launched = [everything[position] for bucket in stock.buckets for position in bucket]
        self._parameters = [parameter for _, parameter in launched]
        self._names = [name for name, _ in launched]
        self._stock = stock
        self._buckets = _consecutive(stock.buckets)
        self._process_group = process_group
        self._layouts = layouts
        self._reducer: Any = self._make_reducer()
        self._tell = backward_ended
        self._is_prepared = False
        # Whether the first or the last parameter has got a gradient in the pass under way.
        self._has_heard = False
        self._has_failed = False
        # The gradients before a pass that was not prepared.
        self._before: list[tuple[int, int]] | None = None
        self._passes = Passes(begins=self._backward_begins, ends=self._backward_ends, fails=self._backward_fails)
        self._hooks: list[Any] = [model.register_forward_hook(_Tell(self._forward_ended))]
        for parameter in {self._parameters[0], self._parameters[-1]}:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(_Tell(self._hear)))  # type: ignore[no-untyped-call]
        for parameter in self._parameters:
            mark = _mark_all if parameter.numel() <= _FEW_ELEMENTS else _mark_first
            self._hooks.append(parameter.register_post_accumulate_grad_hook(mark))  # type: ignore[no-untyped-call]

    def _make_reducer(self) -> Reducer:
        """Make the Reducer: see the notes THE REDUCER REBUILDS here and ONE LIST OF SIZES in `buckets`."""
        tensors: list[torch.Tensor] = [*self._parameters]
        limits = list(self._stock.limits_bytes)
        in_order = list(range(len(tensors)))
        made, _ = _compute_bucket_assignment_by_size(tensors, limits, tensor_indices=in_order)
        assert made == self._buckets, "the limits are made for the buckets"
        reducer = Reducer(
            tensors,
            self._buckets,
            [limits[0]] * len(self._buckets),
            self._process_group,
            param_to_name_mapping=dict(enumerate(self._names)),
            bucket_bytes_cap_list=limits,
        )
        reducer._push_all_rebuilt_params()  # noqa: SLF001 - DDP does so
        rebuilt = reducer._rebuild_buckets()  # noqa: SLF001 - DDP does so
        assert rebuilt, "a new Reducer rebuilds"
        return reducer

    def close(self) -> None:
        """Leave the model as it was: remove the hooks, end communication and free the buckets' memory."""
        self.leave_to_parent()
        self._reducer = None

    def leave_to_parent(self) -> None:
        """Remove the hooks but keep the Reducer: a process that freed it would close its parent's connections."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._passes.close()
        if self._reducer is not None:
            self._reducer._remove_autograd_hooks()  # noqa: SLF001 - as its destructor does, perhaps much later

    def check(self) -> None:
        """Raise an `OperationError` if a backward pass has failed while gradients were on their way."""
        if self._has_failed or self._missing():
            raise OperationError(
                "a backward pass has ended with an error when some gradients were on their way already, to which "
                "nothing can be added (release(model) and parallelize again to go on)"
            )

    def _missing(self) -> list[int]:
        """Return the parameters (by number) that the Reducer still waits for; none if it has not begun."""
        try:
            self._reducer._check_reducer_finalized()  # noqa: SLF001 - DDP's own way to ask
        except RuntimeError as error:
            # With TORCH_DISTRIBUTED_DEBUG, torch lists their names before, in the same words.
            found = re.search(r"indices which did not receive grad for rank \d+:((?: \d+)+)", str(error))
            return [int(number) for number in found[1].split()] if found else list(range(len(self._parameters)))
        return []

    def prepare(self) -> None:
        """Prepare the next backward pass to be synchronised, whatever `syncs` is."""
        self._passes.train_here()
        self.check()
        if self._layouts.have_changed():
            # A Reducer writes averages with the new strides into memory that it has filled with the old ones: a model
            # that is made channels_last under stock DDP gets gradients with their elements exchanged.
            self._reducer._remove_autograd_hooks()  # noqa: SLF001 - as its destructor does, perhaps much later
            self._reducer = self._make_reducer()
        self._reducer.prepare_for_backward([])
        self._is_prepared = True

    def _forward_ended(self) -> None:
        if torch.is_grad_enabled():
            self._passes.train_here()
            if self.syncs:
                self.prepare()

    def _hear(self) -> None:
        """Note a gradient of one of the two parameters that nearly every backward pass reaches."""
        self._passes.gradient_came()
        self._has_heard = True
        if self._is_prepared:
            marks().messages_travel = True

    def _backward_begins(self) -> None:
        self._has_heard = False
        self._before = None if self._is_prepared else self._gradients()

    def _gradients(self) -> list[tuple[int, int]]:
        """Return values by which changes of gradients can be noticed."""
        gradients = [parameter.grad for parameter in self._parameters]
        return [(0, 0) if one is None else (id(one), one._version) for one in gradients]  # noqa: SLF001 - torch counts changes there

    def _backward_fails(self, error: BaseException) -> OperationError | None:
        marks().messages_travel = False
        # If an average fails, the Reducer has already received all gradients, so none is missing.
        if not (self._is_prepared and (self._has_heard or self._missing())):
            return None
        self._has_failed = True
        if "mark a variable ready only once" not in str(error):
            return self._layouts.refuse_lone_change()
        return OperationError(
            "a gradient came twice in this backward pass, as that of a layer under two reentrant checkpoints does, and "
            "torch's reducer takes each once (parallelize(..., hand_off=False) trains it by autosync's engine; "
            "checkpoint(..., use_reentrant=False) has no such passes within a pass)"
        )

    def _backward_ends(self, _: bool) -> None:  # noqa: FBT001 - a callback with one argument
        """Handle the end of a pass, of this model or of another."""
        marks().messages_travel = False
        if self._is_prepared:
            missing = self._missing()
            if missing:
                self._contribute_nothing(missing)
            elif not self._has_heard:
                return
            self._is_prepared = False
            self._backward_ended(synchronised=True)
        elif self._before is not None and self._gradients() != self._before:
            if self.syncs:
                self._average_now()
            self._backward_ended(synchronised=self.syncs)

    def _contribute_nothing(self, numbers: Sequence[int]) -> None:
        """Let the Reducer finish without the parameters that this rank has not used."""
        unused = [self._parameters[number] for number in numbers]
        frozen = [parameter for parameter in unused if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_()
        accumulate_quietly(list(unused), [_nothing_of(parameter) for parameter in unused])
        for parameter in frozen:
            parameter.requires_grad_(False)  # noqa: FBT003 - torch takes it by position only
        self._forget_absent(unused)

    def _forget_absent(self, unused: Sequence[torch.nn.Parameter]) -> None:
        """Drop the gradients of parameters that no rank has used, so that their optimizer leaves them alone."""
        for parameter in unused:
            if parameter.grad is not None and is_absent(parameter.grad.flatten()):
                parameter.grad = None

    def _backward_ended(self, *, synchronised: bool) -> None:
        if self._tell is not None:
            self._tell(synchronised=synchronised)

    @torch.no_grad()
    def _average_now(self) -> None:
        """Average gradients for which the Reducer was not prepared, bucket by bucket."""
        unused = [parameter for parameter in self._parameters if parameter.grad is None]
        for parameter in unused:
            parameter.grad = _nothing_of(parameter)
        for bucket in self._buckets:
            gradients: list[Any] = [self._parameters[number].grad for number in bucket]
            flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
            # The Reducer divides before it sums, too: a sum of float16 may be too large for the type.
            flat /= self._process_group.size()
            self._process_group.allreduce([flat]).wait()
            averages = _unflatten_dense_tensors(flat, gradients)  # type: ignore[no-untyped-call]
            for gradient, values in zip(gradients, averages, strict=True):
                gradient.copy_(values)
        self._forget_absent(unused)


def _mark_all(parameter: torch.Tensor) -> None:
    """Add +0.0 to a gradient: if all of its elements were -0.0, it would count as unused."""
    if parameter.grad is not None:
        parameter.grad.detach().add_(0.0)


def _mark_first(parameter: torch.Tensor) -> None:
    """Add +0.0 to a gradient's first element in memory, for the same reason."""
    if parameter.grad is not None:
        parameter.grad.detach().as_strided((1,), (1,)).add_(0.0)


def _nothing_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.full_like(parameter, NOTHING, requires_grad=False)


class _Tell:
    """A hook that calls a method as long as the method's object lives. A copy of it calls nothing."""

    __slots__ = ("_method",)

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *_: Any) -> None:
        method = self._method()
        if method is not None:
            method()

    def __reduce__(self) -> tuple[Any, ...]:
        return as_nothing()


def _consecutive(buckets: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return buckets of the same lengths that hold consecutive numbers."""
    numbers = iter(range(sum(map(len, buckets))))
    return [[next(numbers) for _ in bucket] for bucket in buckets]


# THE REDUCER REBUILDS. Until its buckets were rebuilt once, the Reducer notes every gradient of every step for the
# rebuilding; if that never happens, this costs 16 bytes for each parameter and step. So the rebuilding is done at once,
# before the first step: the Reducer is told that gradients came in the order of the buckets, and gets limits that end
# each bucket where the plan does. It then makes the same buckets, and notes nothing from then on.
