"""Changes the strategy of a running script between two of its steps.

The script keeps its `DistributedDataParallel` with torch's own Reducer in it. `Switch` puts a `BundleReducer` in the
Reducer's place, another one in its place later, or the Reducer back. A change is made where a step begins: all updates
of the last one are finished, the session ends, and the next session begins with the parameters and the optimizer's
state as they are. All of that state lies on every rank under every strategy that is taken (`refuse_state_kept_apart`),
so nothing has to be moved. All ranks must make the same change at the same step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import OperationError
from autosync.runtime.parallelize import bare_of
from autosync.script.bundles import refuse_shares, refuse_state_kept_apart
from autosync.script.optimizers import Optimizers
from autosync.script.stand_in import BundleReducer, PlainOutputs, QuietLogger, close_orphans
from autosync.strategy.bundle import Bundle

Method = Callable[..., Any]


class Switch:
    """What synchronises one `DistributedDataParallel`: torch's Reducer, or a session of a bundle."""

    def __init__(self, ddp: DistributedDataParallel, optimizers: Optimizers, *, renew: Callable[[Any], None]) -> None:
        """`ddp` has torch's Reducer; `renew` gives it a new one."""
        self._ddp = weakref.ref(ddp)
        self._optimizers = optimizers
        self._renew = renew
        self._stock = _parts(ddp)
        self._reduced = {name: one for name, one in bare_of(ddp.module).named_parameters() if one.requires_grad}
        self._frozen: dict[str, torch.nn.Parameter] = {}
        # Whether torch's Reducer knows a static graph, if it is to know one.
        self._has_begun = True
        self.bundle: Bundle | None = None
        """The bundle that trains now; None: stock DDP."""

    @property
    def ddp(self) -> Any:
        """The `DistributedDataParallel`; None if the script has thrown it away."""
        return self._ddp()

    def settle(self) -> None:
        """Finish what the last step has left under way."""
        reducer = self._ddp_in_use().reducer
        if isinstance(reducer, BundleReducer):
            reducer.settle("a change of the strategy")

    def put(self, bundle: Bundle | None) -> None:
        """Train by a bundle from the step that begins now, or by stock DDP. A refused bundle leaves stock DDP there."""
        ddp = self._ddp_in_use()
        self._back_to_stock(ddp)
        if bundle is None:
            return
        refuse_shares(bundle)
        refuse_state_kept_apart(bundle)
        self._has_begun = not ddp.static_graph or ddp._static_graph_delay_allreduce_enqueued  # noqa: SLF001 - DDP has it there
        ddp.reducer, ddp.logger = BundleReducer(ddp, bundle, self._optimizers), QuietLogger()
        try:
            ddp.reducer.start()
        except BaseException:
            self._back_to_stock(ddp)
            raise
        self.bundle = bundle
        names = {one.name for one in bundle.model.untrained if one.reason == "frozen"}
        self._frozen = {name: one for name, one in self._reduced.items() if name in names}

    def thawed(self) -> str | None:
        """Return a parameter that is trained now, and that torch's Reducer synchronises and the bundle does not."""
        return next((name for name, one in self._frozen.items() if one.requires_grad), None)

    def leave(self) -> None:
        """End a session that trains the model: the script wraps it anew."""
        ddp = self._ddp()
        if ddp is None:
            close_orphans()
        else:
            self._back_to_stock(ddp)

    def _back_to_stock(self, ddp: Any) -> None:
        self.bundle = None
        self._frozen = {}
        if not isinstance(ddp.reducer, BundleReducer):
            return
        try:
            ddp.reducer.settle("a change of the strategy")
        finally:
            ddp.reducer.close()
            ddp.reducer, ddp.logger = self._stock
            # The Reducer has noted the parameters that were used meanwhile, and would think that this step used them.
            # With a static graph, it notes them until it has synchronised a step.
            if not self._has_begun or (ddp.find_unused_parameters and not ddp.static_graph):
                self._put_another_reducer(ddp)

    def _put_another_reducer(self, ddp: Any) -> None:
        ddp.reducer._remove_autograd_hooks()  # noqa: SLF001 - DDP does so
        # A Reducer takes no frozen parameters. They may be thawed again.
        frozen = [one for one in self._reduced.values() if not one.requires_grad]
        for one in frozen:
            one.requires_grad = True
        try:
            self._renew(ddp)
        finally:
            for one in frozen:
                one.requires_grad = False
        if ddp.static_graph:
            ddp.reducer._set_static_graph()  # noqa: SLF001 - as DDP does where it makes another Reducer
            ddp.logger._set_static_graph()  # noqa: SLF001 - the same
            ddp._static_graph_delay_allreduce_enqueued = False  # noqa: SLF001 - the same
        self._stock = _parts(ddp)

    def _ddp_in_use(self) -> Any:
        ddp = self._ddp()
        if ddp is None:
            raise OperationError("the script has thrown its DistributedDataParallel away")
        return ddp


def _parts(ddp: Any) -> tuple[Any, Any]:
    return ddp.reducer, ddp.logger


def chosen_outputs(stock: Any) -> Any:
    """Return what stands for torch's `_DDPSink`, around outputs: it is torch's own where torch's Reducer is."""

    class ChosenOutputs:
        """Handles the outputs of a forward pass as the present Reducer needs them."""

        @staticmethod
        def apply(wrapper: weakref.ref[Any], *outputs: Any) -> Sequence[torch.Tensor]:
            ddp: Any = wrapper()
            sink = PlainOutputs if isinstance(ddp.reducer, BundleReducer) else stock
            found: Sequence[torch.Tensor] = sink.apply(wrapper, *outputs)
            return found

    return ChosenOutputs
