"""The session of a model whose plan torch's own reducer carries out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.checkpoints.loading import Loading, put_in_place
from autosync.runtime.engine.trace import ComputeSpan
from autosync.runtime.local.joint_optimizer import members_of
from autosync.runtime.session.agreement import parameters_of, refuse_gradient, unsynchronised
from autosync.runtime.session.description import described
from autosync.runtime.session.model_buffers import Buffers
from autosync.runtime.session.optimizer_guard import refuse_local_gradients
from autosync.runtime.session.optimizer_steps import Steps
from autosync.runtime.session.training import Training
from autosync.runtime.session.unchanged_training import Expected
from autosync.runtime.stock.buckets import StockBuckets
from autosync.runtime.stock.layouts import Layouts
from autosync.runtime.stock.reducer import StockReducer, as_process_group
from autosync.runtime.wire.links import Links
from autosync.strategy.bundle import Bundle


class StockSession:
    """A session in which torch's reducer carries out the plan; see `Session` for its methods."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        stock: StockBuckets,
        *,
        links: Links,
        plan: Plan,
        store: Any,
        patience: dt.timedelta,
        buffers: Buffers | None = None,
        compute: ComputeSpan | None = None,
    ) -> None:
        self.training = Training(model=model, optimizer=optimizer, bundle=bundle, plan=plan, links=links)
        self.kept_apart: frozenset[str] = frozenset()
        self.updates = False
        self.step = self.num_steps = 0
        self._plan = plan
        self._links = links
        self._buffers = buffers
        self._expected = Expected(model, optimizer, bundle, are_engines=False)
        self._compute = compute
        members = tuple(range(links.num_ranks))
        # torch's own groups have two threads, so that a small bucket does not wait for a large one.
        links.make_native([(members, 0)], num_threads=2)
        parameters = parameters_of(model, bundle)
        self._reducer = StockReducer(
            model,
            parameters,
            stock,
            as_process_group(links.native(members, 0), store, next(iter(parameters.values())).device),
            Layouts(
                parameters,
                dist.PrefixStore("layouts/", store),  # type: ignore[attr-defined]
                rank=links.rank,
                num_ranks=links.num_ranks,
                patience=patience,
            ),
            backward_ended=self._backward_ended,
        )
        # Whether accumulated gradients are this rank's own.
        self._is_local = False
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(refuse_gradient(name))  # type: ignore[no-untyped-call]
            for name, parameter in unsynchronised(model, bundle).items()
        ]
        self._counted = members_of(optimizer)[0]
        self._steps = Steps(members_of(optimizer), begins=self._before_step, ends=self._after_step)
        self._hooks.append(self._steps)
        if buffers is not None:
            buffers.begin(lambda: self.syncs)

    @property
    def syncs(self) -> bool:
        return self._reducer.syncs

    @syncs.setter
    def syncs(self, value: bool) -> None:
        self._reducer.syncs = value

    def prepare(self) -> None:
        """Synchronise the next backward pass, as after a forward pass with `syncs`."""
        self._reducer.prepare()

    def _backward_ended(self, *, synchronised: bool) -> None:
        if self._compute is not None:
            self._compute.backward_ends()
        self._is_local = not synchronised

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the step of an optimizer whose closure has returned, if the session was made within the closure."""
        self._steps.closure_has_run(optimizer)

    def _before_step(self, _: torch.optim.Optimizer, given: tuple[Any, ...]) -> None:
        self._expected.check()
        self._reducer.check()
        if not given:
            # A closure computes its own gradients.
            refuse_local_gradients(are_local=self._is_local)

    def _after_step(self, stepping: torch.optim.Optimizer) -> None:
        if stepping is self._counted:
            self.step += 1
            self.num_steps += 1

    def settle(self, what: str) -> None:
        """Do nothing, because nothing is under way between steps."""

    def go_on_from(self, loading: Loading) -> None:
        """Install the state that was read from a checkpoint."""
        put_in_place(self.training, loading)
        self.step, self.num_steps = loading.step, loading.num_steps

    def bring_home(self, entries: Mapping[str, dict[str, Any]], *, alone: bool) -> None:
        """Do nothing, because the user's optimizer has its complete state."""

    def weigh(self, weight: float) -> None:  # noqa: ARG002 - the same for all weights
        """Refuse, because the reducer takes the plain mean of all ranks' gradients."""
        raise OperationError(
            "torch's reducer carries out this bundle, and takes the plain mean of all ranks' gradients "
            "(parallelize(..., hand_off=False) trains with autosync's engine, which weighs them)"
        )

    def drain(self) -> None:
        """Do nothing, because nothing is under way between steps."""

    def where(self) -> str:
        """Return a fixed text, because the reducer does not tell what it is doing."""
        return "in torch's reducer"

    def describe(self) -> str:
        """Describe the reducer and the plan that it carries out."""
        return described(self._plan, "torch's reducer", ["the user's optimizer updates everything"], self._buffers)

    def __repr__(self) -> str:
        return self.describe()

    def leave_to_parent(self) -> None:
        """In a forked process, make its copy of the model an ordinary one."""
        if self._buffers is not None:
            self._buffers.close()
        for hook in self._hooks:
            hook.remove()
        self._reducer.leave_to_parent()

    def close(self, *, patience_seconds: float | None = None) -> None:
        if self._buffers is not None:
            self._buffers.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._reducer.close()
        if patience_seconds is not None:
            # Only an interrupted backward pass leaves anything under way, and its result is not needed.
            self._links.abort()
        self._links.close()
        if self._compute is not None:
            self._compute.close()
