"""Plans that stock DDP can express, run by torch's own C++ `Reducer`: they cost what DDP costs, and no more.

`stock_buckets` says whether a plan is one of those and what its buckets are, `StockReducer` runs them. No
DistributedDataParallel is involved: the model stays the object that it is, and no buckets but the plan's are used.

**What is the same.** The Reducer launches one all-reduce a bucket, strictly in the order of the buckets, as each is
complete, all on one communicator. That is a plan of one lane whose transfers each sum whole gradients of one dtype
over all workers, natively, after nothing but those gradients; whose averages and updates are every worker's own; and
which is done when backward returns. Which message a transfer belongs to does not matter, nor do priorities, which
decide between lanes only. The gradient norm of a task that clips is the user's, as under DDP.

**What is not.** Several lanes: a bucket of one lane would wait for its turn behind those of another. Slices that cut
a gradient, codecs, and topologies of ours: the Reducer has none. Overlap with the forward pass: the Reducer waits at
the end of backward. Buckets of several dtypes whose sizes do not fit into one list (see the note ONE LIST OF SIZES).
Sparse gradients: the Reducer would take them, but is not trusted with them (see the note ROWS STAY HERE).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Reducer, _compute_bucket_assignment_by_size
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from autosync.errors import OperationError
from autosync.plan.types import Groups, Plan, Transfer
from autosync.specs.model import Variable
from autosync.strategy.presets.buckets import assign_by_size

_EVERY_WORKERS_OWN = frozenset({"average", "norm", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StockBuckets:
    """The buckets of a plan, in the order of their launch, as positions of variables in the model.

    `limits_bytes` is the list of sizes by which the Reducer comes to these buckets by itself (see the note ONE LIST OF
    SIZES).
    """

    buckets: tuple[tuple[int, ...], ...]
    limits_bytes: tuple[int, ...]


def stock_buckets(plan: Plan) -> StockBuckets | None:
    """The buckets by which stock DDP would do just what the plan says; None if it cannot (see `why_not_stock`)."""
    return None if why_not_stock(plan) else _buckets(plan)


def why_not_stock(plan: Plan) -> str:
    """What in a plan stock DDP cannot express; empty if it can express it all."""
    return next(_reasons(plan), "")


def _reasons(plan: Plan) -> Iterator[str]:
    everyone: Groups = (tuple(range(plan.num_workers)),)
    if plan.overlap != "backward":
        yield "transfers overlap the forward pass"
    if plan.backend not in ("gloo", "nccl"):
        yield f"the backend is {plan.backend}"
    if plan.num_workers < 2:
        yield "one worker has nothing to send"
    for operation in plan.operations:
        if operation.groups != everyone:
            yield "not every operation is of all workers and of them alone"
        if operation.every > 1:
            yield "not every operation is of every step"
        if isinstance(operation, Transfer):
            yield from _transfer_reasons(plan, operation)
        elif operation.kind not in _EVERY_WORKERS_OWN or operation.sharded:
            yield f"the plan has {'a sharded ' if operation.sharded else ''}{operation.kind}"
    if len({transfer.lane for transfer in _transfers(plan)}) > 1:
        yield "transfers are in several lanes"
    if sum(map(len, _members(plan))) != len(plan.parts):
        yield "a gradient is in no bucket, or in several"
    elif _assigned(plan) != _members(plan):
        yield "its buckets of several dtypes have sizes that do not fit into one list"


def _transfer_reasons(plan: Plan, transfer: Transfer) -> Iterator[str]:
    regions = [plan.regions[index] for index in transfer.regions]
    if transfer.algorithm != "native" or transfer.within:
        yield f"a transfer goes by {transfer.algorithm} rounds"
    if any(edge.event != "grad_ready" or edge.lag for edge in transfer.after):
        yield "a transfer waits for more than gradients"
    for region in regions:
        variable = plan.parts[region.part].variable if region.part >= 0 else None
        if variable is None or region.num_elements != variable.num_elements or region.dtype != variable.dtype:
            yield "a transfer moves something else than whole gradients"
        # See the note ROWS STAY HERE.
        elif (transfer.collective, region.kind, variable.sparse) != ("all_reduce", "grad", False):
            yield f"{variable.name} has the transfer {transfer.collective} of its {region.kind}"
    if len({region.dtype for region in regions}) > 1:
        yield "a transfer has gradients of several dtypes"


def _transfers(plan: Plan) -> list[Transfer]:
    return [operation for operation in plan.operations if isinstance(operation, Transfer)]


def _members(plan: Plan) -> list[list[Variable]]:
    """The variables of each bucket."""
    return [[plan.parts[plan.regions[i].part].variable for i in one.regions] for one in _transfers(plan)]


def _limits_bytes(members: Sequence[Sequence[Variable]]) -> tuple[int, ...]:
    """For each k the smallest of the dtypes' k-th buckets."""
    sizes: dict[str, list[int]] = {}
    for bucket in members:
        sizes.setdefault(bucket[0].dtype, []).append(sum(variable.num_bytes for variable in bucket))
    longest = max(map(len, sizes.values()))
    return tuple(min(column[k] for column in sizes.values() if k < len(column)) for k in range(longest))


def _assigned(plan: Plan) -> list[list[Variable]]:
    """The buckets that the Reducer makes of the variables, one after the other, by the limits."""
    members = _members(plan)
    variables = [variable for bucket in members for variable in bucket]
    return assign_by_size(variables, _limits_bytes(members), lambda _: False)


def _buckets(plan: Plan) -> StockBuckets:
    # A transfer of whole gradients waits for as many variables as it moves, in the same order.
    buckets = tuple(tuple(edge.target for edge in transfer.after) for transfer in _transfers(plan))
    return StockBuckets(buckets=buckets, limits_bytes=_limits_bytes(_members(plan)))


def as_process_group(connections: Any, store: Any, device: torch.device | None = None) -> dist.ProcessGroup:
    """Connections that were made directly (a group of `Links`, on its store) as the process group a Reducer takes.

    For tensors on that device; by default on the CPU.
    """
    group: Any = dist.ProcessGroup(store, connections.rank(), connections.size())
    kind = getattr(group.BackendType, connections.name().upper())
    group._register_backend(torch.device(device.type if device else "cpu"), kind, connections)  # noqa: SLF001 - torch's own way to make groups
    group._set_default_backend(kind)  # noqa: SLF001 - the same
    made: dist.ProcessGroup = group
    return made


class BackwardEnded(Protocol):
    """Hears of the end of a backward pass."""

    def __call__(self, *, synchronised: bool) -> None: ...


class StockReducer:
    """Runs buckets on torch's Reducer until `close()`; making one is collective over the process group.

    `parameters` are by name, in the order of the plan's variables; buckets hold positions in it. Every parameter must
    get a gradient in every synchronised backward pass, as every variable of a bundle does.

    - **As under DDP**, a forward pass of the model with gradients enabled prepares the backward pass that follows,
      and when that returns, gradients are averaged over all ranks. Several forward passes may come before it. Forward
      passes under `torch.no_grad()` change nothing.
    - `syncs` is true. While it is set to false, forward and backward passes accumulate gradients without
      communication; the next backward pass after a forward pass with `syncs` averages the whole.
    - A backward pass with `syncs` but without such a forward pass before it (a second one over a kept graph, say),
      which DDP leaves unsynchronised in silence, is synchronised when it ends, without overlap. It is noticed by the
      first variable of the first bucket or the last of the last: a pass that gives neither a gradient is not.
    - `backward_ended(synchronised=…)` is called, in the thread of backward, at the end of every backward pass that is
      noticed, after the gradients are final.
    - `check()` belongs before whatever uses the gradients: it raises the error that names the parameters that got no
      gradient, with which the backward pass of this rank has returned unfinished. The next forward pass raises it too.
      Other ranks, if they got theirs, wait for this one until the group's timeout, and torch's own error ends them.
    - Gradients are views into their buckets, as under DDP's `gradient_as_bucket_view` and in our own engine: that
      saves their copy. Whoever keeps a gradient beyond the next backward pass keeps a clone.
    - A copy of the model, deep or by pickling, is an ordinary model: nothing of this goes with it.

    Nothing in Python happens per parameter, and in a step only at the end of forward and of backward.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        stock: StockBuckets,
        process_group: dist.ProcessGroup,
        *,
        backward_ended: BackwardEnded | None = None,
    ) -> None:
        self.syncs = True
        everything = list(parameters.items())
        # The Reducer knows parameters by their positions in the order of launch.
        launched = [everything[position] for bucket in stock.buckets for position in bucket]
        self._names = [name for name, _ in launched]
        self._parameters = [parameter for _, parameter in launched]
        self._buckets = _consecutive(stock.buckets)
        self._process_group = process_group
        self._reducer: Any = self._make_reducer(stock)
        self._tell = backward_ended
        self._is_prepared = False
        self._gradients_came = False
        self._backward_pass = -1
        self._hooks: list[Any] = [model.register_forward_hook(_Tell(self._prepare))]
        for parameter in {self._parameters[0], self._parameters[-1]}:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(_Tell(self._hear)))  # type: ignore[no-untyped-call]

    def _make_reducer(self, stock: StockBuckets) -> Reducer:
        """See the notes THE REDUCER REBUILDS and ONE LIST OF SIZES."""
        tensors: list[torch.Tensor] = [*self._parameters]
        limits = list(stock.limits_bytes)
        in_order = list(range(len(tensors)))
        made, _ = _compute_bucket_assignment_by_size(tensors, limits, tensor_indices=in_order)
        assert made == self._buckets, "the limits are made for the buckets"
        reducer = Reducer(
            tensors,
            self._buckets,
            [limits[0]] * len(self._buckets),
            self._process_group,
            gradient_as_bucket_view=True,
            param_to_name_mapping=dict(enumerate(self._names)),
            bucket_bytes_cap_list=limits,
        )
        reducer._push_all_rebuilt_params()  # noqa: SLF001 - DDP does so
        rebuilt = reducer._rebuild_buckets()  # noqa: SLF001 - DDP does so
        assert rebuilt, "a new Reducer rebuilds"
        return reducer

    def close(self) -> None:
        """Leave the model as it was: no hooks, no communication, and the buckets' memory given back."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._reducer is not None:
            self._reducer._remove_autograd_hooks()  # noqa: SLF001 - what its destructor does, whoever may still hold it
            self._reducer = None

    def check(self) -> None:
        """Raise an `OperationError` that names the parameters that got no gradient in a synchronised backward pass."""
        try:
            self._reducer._check_reducer_finalized()  # noqa: SLF001 - DDP's own way to ask
        except RuntimeError as error:
            raise _no_gradient(self._without_gradient(str(error))) from error
        self._end_if_done()

    def _without_gradient(self, words: str) -> str:
        """The parameters that the Reducer's complaint is about: it gives their numbers."""
        found = re.search(r"did not receive grad for rank \d+:((?: \d+)+)", words)
        return ", ".join(self._names[int(number)] for number in found[1].split()) if found else "a parameter"

    def _prepare(self) -> None:
        """A forward pass has ended."""
        if self.syncs and torch.is_grad_enabled():
            self.check()
            self._reducer.prepare_for_backward([])
            self._is_prepared = True

    def _hear(self) -> None:
        """A gradient came: one of two that tell of every backward pass."""
        self._gradients_came = True
        backward_pass = torch._C._current_graph_task_id()  # noqa: SLF001 - a pass that failed must not be taken for this one
        if backward_pass != self._backward_pass:
            self._backward_pass = backward_pass
            _at_the_end_of_backward(self._backward_ends)

    def _backward_ends(self) -> None:
        # The Reducer waits for its buckets in a callback like this one, which may have been queued later.
        _at_the_end_of_backward(self._gradients_are_final)

    def _gradients_are_final(self) -> None:
        if self._is_prepared:
            self._end_if_done()
            return
        if not self._gradients_came:
            return  # told already, by a backward pass within this one
        self._gradients_came = False
        if self.syncs:
            self._average_now()
        self._backward_ended(synchronised=self.syncs)

    def _end_if_done(self) -> None:
        """End a prepared backward pass. Within reentrant checkpoints the first end that is heard is not the last."""
        if not (self._is_prepared and self._gradients_came):
            return
        try:
            self._reducer._check_reducer_finalized()  # noqa: SLF001 - DDP does so
        except RuntimeError:
            return
        self._is_prepared = self._gradients_came = False
        self._backward_ended(synchronised=True)

    def _backward_ended(self, *, synchronised: bool) -> None:
        if self._tell is not None:
            self._tell(synchronised=synchronised)

    @torch.no_grad()
    def _average_now(self) -> None:
        """Average gradients for which the Reducer was not prepared, in its buckets."""
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.grad is None:
                raise _no_gradient(name)
        for bucket in self._buckets:
            gradients: list[Any] = [self._parameters[number].grad for number in bucket]
            flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
            self._process_group.allreduce([flat]).wait()
            flat /= self._process_group.size()
            averages = _unflatten_dense_tensors(flat, gradients)  # type: ignore[no-untyped-call]
            for gradient, values in zip(gradients, averages, strict=True):
                gradient.copy_(values)


def _no_gradient(names: str) -> OperationError:
    return OperationError(f"{names} got no gradient in this step (a variable of the bundle gets one in each)")


class _Tell:
    """A hook that calls a method as long as its object lives. A copy of it calls nothing."""

    __slots__ = ("_method",)

    def __init__(self, method: Callable[[], None] | None = None) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, *_: Any) -> None:
        method = None if self._method is None else self._method()
        if method is not None:
            method()

    def __reduce__(self) -> tuple[type[_Tell], tuple[()]]:
        return _Tell, ()


def _consecutive(buckets: Sequence[Sequence[int]]) -> list[list[int]]:
    """Buckets of the same lengths, numbered through."""
    numbers = iter(range(sum(map(len, buckets))))
    return [[next(numbers) for _ in bucket] for bucket in buckets]


def _at_the_end_of_backward(function: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)  # noqa: SLF001 - DDP's own way to hear of the end of backward


# THE REDUCER REBUILDS. Until its buckets were rebuilt once, the Reducer notes every gradient of every step for the
# rebuilding: whoever never has it done loses 16 bytes a parameter and step. So it is done at once, before the first
# step: told that gradients came in the order of the buckets, with limits that end each bucket where the plan does, it
# comes to the same buckets, and notes nothing from there on.

# ONE LIST OF SIZES. The Reducer fills buckets of each dtype apart and closes the k-th of a dtype when it reaches the
# k-th limit of one list for all. With one dtype the sizes of the buckets themselves are that list. With several, the
# smallest of the k-th buckets is the one limit that can do, and it does if the larger ones reach it with their last
# gradient only.

# ROWS STAY HERE. torch 2.13's all-reduce of sparse tensors on gloo now and then corrupts the heap, in the Reducer as
# under DDP: of 17 trainings by two ranks, 700 to 1,000 steps each, 5 ended with "malloc(): unaligned tcache chunk
# detected". Our engine gathers rows as dense tensors and merges them itself: none did in 21,000 steps. NCCL has no
# all-reduce of sparse tensors.
