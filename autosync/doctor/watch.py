"""Watches stock DDP in this process: notes when passes, messages and updates begin and end.

`Watch.open` patches methods of DDP and adds hooks. Training is unchanged: the same all-reduces send the gradients, but
a hook of DDP's own interface (`register_comm_hook`) starts them. If the script has such a hook, it is called as usual.
The patches are undone when the block ends, unless the process has ended with the last step.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autosync.doctor.evidence import WatchedSettings, WatchedVariable
from autosync.doctor.notes import StepNotes
from autosync.errors import OperationError

Method = Callable[..., Any]
WARMUP_STEPS = 3
"""The number of first steps that do not count, because DDP rebuilds its buckets in them."""


class Watch:
    """Watches the model that the script wraps in DDP, and calls `stepped` at the end of each step.

    A step ends with the update of its last optimizer. A forward pass without gradients belongs to the next backward
    pass.
    """

    def __init__(self, stepped: Callable[[Watch], None], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.notes = StepNotes(clock)
        self._stepped = stepped
        self._clock = clock
        self._ddp: Any = None
        self._is_hooked = False
        self._own_hook = ""
        self._parameters: set[int] = set()
        self._trained: set[str] = set()
        self._num_factor_rows: dict[str, int] = {}
        self._is_in_forward = False
        self._optimizer_depth = 0
        self._num_updates = 0
        # The updates since the last forward pass, and the most that were seen between two of them.
        self._num_since_forward = 0
        self._most_updates = 0
        self._num_workers: int | None = None

    @property
    def ddp(self) -> Any:
        """The model's DistributedDataParallel; None if the script has not trained one."""
        return self._ddp

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Patch DDP, and undo the patches at the end."""
        patches = {"forward": self._forward, "_sync_buffers": self._sync_buffers, "_post_forward": self._post_forward}
        hooked = {"register_comm_hook": self._register, "_register_builtin_comm_hook": self._refuse_builtin}
        before = {name: vars(DistributedDataParallel)[name] for name in {**patches, **hooked}}
        stock_backward, stock_next = torch.autograd.backward, vars(_BaseDataLoaderIter)["__next__"]
        stock_scaled = vars(torch.amp.GradScaler)["step"]
        handles = [
            register_optimizer_step_pre_hook(self._update_begins),
            register_optimizer_step_post_hook(self._update_ends),
        ]
        try:
            for name, make in {**patches, **hooked}.items():
                setattr(DistributedDataParallel, name, make(before[name]))
            setattr(torch.autograd, "backward", self._backward(stock_backward))  # noqa: B010 - mypy knows it as a function
            setattr(_BaseDataLoaderIter, "__next__", self._next_batch(stock_next))  # noqa: B010 - the same
            setattr(torch.amp.GradScaler, "step", self._scaled_step(stock_scaled))  # noqa: B010 - the same
            yield
        finally:
            setattr(torch.amp.GradScaler, "step", stock_scaled)  # noqa: B010 - the same
            setattr(_BaseDataLoaderIter, "__next__", stock_next)  # noqa: B010 - the same
            setattr(torch.autograd, "backward", stock_backward)  # noqa: B010 - the same
            for name, method in before.items():
                setattr(DistributedDataParallel, name, method)
            for handle in handles:
                handle.remove()

    # Additions to DDP's methods.

    def _forward(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
            if torch.is_grad_enabled():
                self._take(ddp)
            elif self._ddp is None or self._is_in_forward:
                return stock(ddp, *inputs, **options)
            self._forward_begins()
            self._is_in_forward = True
            try:
                output = stock(ddp, *inputs, **options)
            finally:
                self._is_in_forward = False
            self.notes.forward_ends()
            return output

        return forward

    def _forward_begins(self) -> None:
        self._most_updates = max(self._most_updates, self._num_since_forward)
        self._num_since_forward = 0
        if self.notes.has_update:
            self._end_step()
        self.notes.pass_begins()

    def _backward(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def backward(*tensors: Any, **options: Any) -> Any:
            # Lightning's manual optimization makes the whole step inside the forward pass.
            self.notes.forward_ends()
            return stock(*tensors, **options)

        return backward

    def _next_batch(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def next_batch(batches: Any) -> Any:
            begun, is_first = self._clock(), getattr(batches, "_num_yielded", None) == 0
            try:
                return stock(batches)
            finally:
                if torch.is_grad_enabled():
                    self.notes.loader_took(self._clock() - begun, is_first=is_first)
                    self._num_workers = batches._num_workers  # noqa: SLF001 - an iterator does not tell it otherwise

        return next_batch

    def _sync_buffers(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def sync_buffers(ddp: Any) -> None:
            begun = self._clock()
            stock(ddp)
            self.notes.buffers_took(self._clock() - begun)

        return sync_buffers

    def _post_forward(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def post_forward(ddp: Any, output: Any) -> Any:
            begun, buffers = self._clock(), self.notes.buffer_seconds
            output = stock(ddp, output)
            if ddp.find_unused_parameters and not ddp.static_graph:
                # Buffers may be broadcast here too.
                self.notes.search_took(self._clock() - begun - (self.notes.buffer_seconds - buffers))
            return output

        return post_forward

    def _register(self, stock: Method) -> Method:
        def register_comm_hook(ddp: Any, state: object, hook: Method) -> None:
            self._own_hook = getattr(hook, "__qualname__", type(hook).__name__)
            stock(ddp, state, self._noting(hook))
            self._is_hooked = True

        self._register_stock = stock
        return register_comm_hook

    def _refuse_builtin(self, _: Method) -> Method:
        def register(*_: object) -> None:
            raise OperationError(
                "doctor cannot watch a built-in communication hook: it says nothing of its messages "
                "(register a hook of torch.distributed.algorithms.ddp_comm_hooks in its place)"
            )

        return register

    def _noting(self, hook: Method) -> Method:
        """Return a hook that also notes when each message is ready and done."""

        # torch reads the annotations of the hook, and `wraps` copies them.
        @functools.wraps(hook)
        def noting(state: object, bucket: Any) -> Any:
            note = self.notes.message_ready(_num_bytes(bucket.buffer()))
            future = hook(state, bucket)
            future.add_done_callback(lambda _: note())
            return future

        return noting

    # The model.

    def _take(self, ddp: Any) -> None:
        """Begin to watch a model at its first forward pass. Refuse a model that cannot be watched."""
        if self._ddp is ddp:
            return
        if self._ddp is not None:
            raise OperationError(
                "the script trains a second model in DistributedDataParallel, and doctor reads the steps of one"
            )
        _refuse_unseen(ddp)
        self._ddp = ddp
        self._parameters = {id(one) for one in ddp.module.parameters() if one.requires_grad}
        if not self._is_hooked:
            self._register_stock(ddp, ddp.process_group, self._noting(allreduce_hook))
            self._own_hook = ""
        for name, parameter in ddp.module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._gradient_noted(name))
        for name, module in ddp.module.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(self._rows_noted(name))

    def _gradient_noted(self, name: str) -> Callable[[torch.Tensor], None]:
        def noted(parameter: torch.Tensor) -> None:
            if self.notes.gradient_ready(name, parameter.numel() * parameter.element_size()):
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # noqa: SLF001 - torch's own wrappers do so
            self._trained.add(name)

        return noted

    def _backward_ends(self) -> None:
        """Note the end of a backward pass's computation. DDP's own callback follows, and waits for messages."""
        self.notes.backward_ends()
        torch.autograd.Variable._execution_engine.queue_callback(self.notes.pass_ends)  # noqa: SLF001 - the same

    def _rows_noted(self, name: str) -> Callable[..., None]:
        def noted(module: torch.nn.Linear, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], torch.Tensor):
                rows = inputs[0].numel() // max(module.in_features, 1)
                key = f"{name}.weight" if name else "weight"
                self._num_factor_rows[key] = min(self._num_factor_rows.get(key, rows), rows)

        return noted

    # The optimizer.

    def _update_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._trains(optimizer):
            self._optimizer_depth += 1
            self.notes.update_begins()

    def _update_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # If a class calls its parent's step, torch calls the hooks twice.
        if self._trains(optimizer):
            self._optimizer_depth = max(self._optimizer_depth - 1, 0)
            self._num_updates += 1
            if self._optimizer_depth == 0:
                self.notes.update_ends()
                self._num_since_forward += 1
                # Until the number of optimizers is known, the next forward pass ends the step.
                if self._num_since_forward >= self._most_updates > 0:
                    self._end_step()

    def _end_step(self) -> None:
        """Take the step as ended with its last update."""
        if self.notes.step_ends():
            self._stepped(self)
            self.notes.step_begins()
        if self._optimizer_depth:
            # A closure's forward pass has ended the step before.
            self.notes.update_begins()

    def _scaled_step(self, stock: Method) -> Method:
        @functools.wraps(stock)
        def step(scaler: Any, optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> Any:
            before = self._num_updates
            result = stock(scaler, optimizer, *arguments, **options)
            if self._num_updates == before and self._trains(optimizer) and not self.notes.has_update:
                # After an overflow, the scaler skips the update: these passes belong to no step.
                self.notes.step_begins()
            return result

        return step

    def _trains(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(one) in self._parameters for group in optimizer.param_groups for one in group["params"])

    # Facts about the model.

    def settings(self) -> WatchedSettings:
        """Return the settings of DDP that cost time."""
        ddp = self._ddp
        names = [name for name, one in ddp.module.named_parameters() if one.requires_grad]
        cap = getattr(ddp, "bucket_bytes_cap", None)
        is_default = getattr(ddp, "bucket_bytes_cap_default", False)
        return WatchedSettings(
            find_unused_parameters=bool(ddp.find_unused_parameters),
            static_graph=bool(ddp.static_graph),
            broadcast_buffers=bool(getattr(ddp, "forward_sync_buffers", ddp.broadcast_buffers)),
            buffer_bytes=sum(one.numel() * one.element_size() for one in ddp.module.buffers()),
            bucket_cap_mb=None if is_default or cap is None else cap / 2**20,
            num_unused=sum(name not in self._trained for name in names),
            own_hook=self._own_hook,
            num_workers=self._num_workers,
        )

    def variables(self) -> tuple[WatchedVariable, ...]:
        """Return the model's trained parameters, each with the fewest bytes that can carry one rank's gradient."""
        tables = {
            id(one.weight)
            for one in self._ddp.module.modules()
            if isinstance(one, torch.nn.Embedding | torch.nn.EmbeddingBag)
        }
        found = []
        for name, one in self._ddp.module.named_parameters():
            if name in self._trained:
                size = one.numel() * one.element_size()
                least = size
                if id(one) in tables:
                    # Only the rows in use need to travel, and nothing counts them here.
                    least = 0
                elif name in self._num_factor_rows and one.dim() == 2:
                    least = min(size, self._num_factor_rows[name] * sum(one.shape) * one.element_size())
                found.append(WatchedVariable(name=name, num_bytes=size, least_bytes=least))
        return tuple(found)


def _num_bytes(buffer: torch.Tensor) -> int:
    if buffer.is_sparse:
        buffer = buffer._values()  # noqa: SLF001 - values() wants a coalesced tensor
    return buffer.numel() * buffer.element_size()


def _refuse_unseen(ddp: Any) -> None:
    """Refuse training for which the notes would be wrong."""
    if ddp.device_type != "cpu":
        raise OperationError(
            "doctor watches models on the CPU: on a GPU, the time at which the host starts work is not that of the work"
        )
    if ddp.process_group.size() != dist.get_world_size():
        raise OperationError("doctor watches models that all ranks train: this model has a group of its own")
    if getattr(ddp, "mixed_precision", None) is not None:
        raise OperationError(
            "doctor cannot watch DistributedDataParallel(mixed_precision=...) (autocast can be watched)"
        )
