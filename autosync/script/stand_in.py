"""The stand-in, which replaces torch's Reducer in a `DistributedDataParallel`.

All other code of DDP stays torch's own. Its constructor checks the arguments and broadcasts the parameters of rank 0,
its forward pass moves inputs and broadcasts buffers, and `no_sync` sets the same flag. DDP asks its reducer for one
thing: to synchronise the next backward pass. `BundleReducer` does so with a session of the bundle. The session begins
with the first forward pass that wants gradients of the model, because by then the script has made its optimizers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from autosync.errors import AutosyncError, OperationError
from autosync.plan.lowering import lower
from autosync.runtime.local.engine_updates import engine_updates, follows_users_updates
from autosync.runtime.parallelize import bare_of, is_parallelized, parallelize, release, session_of
from autosync.runtime.session.agreement import parameters_of
from autosync.runtime.session.synchronisation import Synchronisation
from autosync.script.optimizers import Optimizers, idle_optimizer, refuse_where_engine_updates
from autosync.script.refusals import RefusedAttributeError
from autosync.strategy.bundle import Bundle

_OWNERS: weakref.WeakKeyDictionary[torch.nn.Module, BundleReducer] = weakref.WeakKeyDictionary()
"""The stand-in of each model that trains."""


def refuse_earlier(model: torch.nn.Module) -> NoReturn:
    """Refuse a pass of an earlier `DistributedDataParallel` of a model that has a later one."""
    raise OperationError(
        f"another DistributedDataParallel was put around the same {type(model).__name__} and trains it now: use that "
        "one, or make one for each phase of the training"
    )


def is_trained(model: torch.nn.Module) -> bool:
    """Whether any parameter of a model is not frozen."""
    return any(one.requires_grad for one in model.parameters())


def closure_has_run(optimizer: torch.optim.Optimizer) -> None:
    """Tell the stand-ins of all models that an optimizer's step goes on behind its closure."""
    for one in list(_OWNERS.values()):
        one.closure_has_run(optimizer)


class BundleReducer:
    """Synchronises the model of one `DistributedDataParallel` with a bundle. DDP calls it in place of its Reducer."""

    def __init__(self, ddp: torch.nn.parallel.DistributedDataParallel, bundle: Bundle, optimizers: Optimizers) -> None:
        self._ddp = weakref.ref(ddp)
        self._model = bare_of(ddp.module)
        self._bundle = bundle
        self._optimizers = optimizers
        self._session: Synchronisation | None = None
        self.was_replaced = False
        # Whether the engine updates, or averages parameters after updates.
        self._follows_steps = False
        self._given: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._num_made = 0
        self._held: list[torch.nn.Parameter] = []

    @property
    def is_orphaned(self) -> bool:
        """Whether the script has dropped the `DistributedDataParallel`."""
        return self._ddp() is None

    # Called by the door.

    def begin(self) -> None:
        """Prepare for a forward pass that wants gradients. The first of them starts the session.

        A model that is frozen as a whole gets none: a GAN's critic, for example, in the turn of the generator.
        """
        if self.was_replaced:
            refuse_earlier(self._model)
        if self._session is not None and self._has_other_optimizers():
            self.close()
        if self._session is None and is_trained(self._model):
            self.start()

    def start(self) -> None:
        """Start the session."""
        self._take_over()
        with _unnoticed(next(self._model.parameters()).device):
            self._session = self._start()
        # Only backward passes that DDP prepares are synchronised, as with torch's Reducer.
        self._session.syncs = False

    def _has_other_optimizers(self) -> bool:
        """Whether the script has made another optimizer for this model, and the engine must know of its steps."""
        if not self._follows_steps or self._num_made == self._optimizers.num_made:
            return False
        self._num_made = self._optimizers.num_made
        return any(one not in self._given for one in self._optimizers.holding(self._held))

    def _take_over(self) -> None:
        """Take the model over from an earlier wrapper: a script may wrap it again for another phase of its training."""
        owner = _OWNERS.get(self._model)
        if owner is not None:
            owner.close()
            owner.was_replaced = True
        if is_parallelized(self._model):
            raise OperationError(
                f"this {type(self._model).__name__} was given to autosync.parallelize and to DistributedDataParallel: "
                "its gradients would be synchronised twice (leave one of them out)"
            )
        _OWNERS[self._model] = self

    def _start(self) -> Synchronisation:
        ddp: Any = self._ddp()
        parameters = self._held = list(parameters_of(self._model, self._bundle).values())
        found = self._optimizers.holding(parameters)
        self._given = weakref.WeakSet(found)
        self._num_made = self._optimizers.num_made
        plan = lower(self._bundle.strategy, self._bundle.model, self._bundle.cluster)
        are_engines = bool(engine_updates(plan).variables)
        self._follows_steps = are_engines or follows_users_updates(plan)
        if are_engines:
            refuse_where_engine_updates(self._model, found)
        parallelize(
            self._model,
            found or [idle_optimizer(parameters)],
            self._bundle,
            ddp.process_group,
            timeout_seconds=_timeout_of(ddp.process_group).total_seconds(),
            # DDP's constructor has already synchronised the parameters, and its forward pass broadcasts the buffers.
            init_sync=False,
            broadcast_buffers=False,
            # torch's Reducer takes each gradient once in a pass; with a static graph it may take several.
            hand_off=not ddp.static_graph,
            find_unused_parameters=ddp.find_unused_parameters and not ddp.static_graph,
        )
        return session_of(self._model)

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step goes on behind its closure, within which the session may have begun."""
        if self._session is not None and optimizer in self._given:
            self._session.closure_has_run(optimizer)

    def settle(self, what: str) -> None:
        """Finish all that is under way, between two steps; refuse the call `what` while gradients are on their way."""
        if self._session is not None:
            self._session.settle(what)

    def close(self) -> None:
        """End the session. The model is an ordinary one again."""
        self._session = None
        if _OWNERS.get(self._model) is self:
            del _OWNERS[self._model]
            if is_parallelized(self._model):
                # Other ranks may already have ended.
                with contextlib.suppress(AutosyncError):
                    release(self._model)

    # Called by DDP.

    def prepare_for_forward(self) -> None:
        """Do nothing: a session needs no preparation before a forward pass."""

    def prepare_for_backward(self, _: list[torch.Tensor]) -> None:
        """Synchronise the next backward pass. Unused parameters need no search."""
        if self._session is not None:
            self._session.prepare()

    def _rebuild_buckets(self) -> bool:
        return False

    def _push_all_rebuilt_params(self) -> None:
        pass

    def _set_static_graph(self) -> None:
        if self._session is not None:
            raise OperationError("DistributedDataParallel._set_static_graph: training has begun (set it before)")

    def _delay_all_reduce(self) -> None:
        pass

    def _check_reducer_finalized(self) -> None:
        pass

    def _remove_autograd_hooks(self) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        raise RefusedAttributeError(
            f"DistributedDataParallel.reducer has no {name}: gradients are synchronised by a bundle, not by torch's "
            "Reducer (see docs/script.md)"
        )


class PlainOutputs:
    """Replaces the function that DDP puts around outputs to find unused parameters. A session does not need it.

    Outputs are copied, as DDP does, so that a script may change them in place.
    """

    @staticmethod
    def apply(wrapper: weakref.ref[Any], *outputs: Any) -> tuple[Any, ...]:
        """Return the outputs of a forward pass. An output that the loss does not use gets no gradient at all."""
        ddp: Any = wrapper()
        if ddp.static_graph:
            # DDP's own function sets this flag, once.
            ddp._static_graph_delay_allreduce_enqueued = True  # noqa: SLF001 - DDP sets it so
        if not getattr(ddp, "_ddp_sink_clone", True):
            return outputs
        return tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in outputs)


class _NothingLogged:
    """The empty record of DDP's logger. Frameworks check whether it contains a fact."""

    def __init__(self) -> None:
        self.strs_map: dict[str, str] = {}
        self.ints_map: dict[str, int] = {}


class QuietLogger:
    """Replaces DDP's logger, which reports on the Reducer."""

    def set_runtime_stats_and_log(self) -> None:
        """Do nothing: there are no statistics to log."""

    def set_error_and_log(self, _: str) -> None:
        """Do nothing: the error itself is raised."""

    def _get_ddp_logging_data(self) -> _NothingLogged:
        return _NothingLogged()

    def _set_static_graph(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise RefusedAttributeError(
            f"DistributedDataParallel.logger has no {name}: there is no Reducer of which it could tell (see "
            "docs/script.md)"
        )


def close_orphans(wrapped: torch.nn.Module | None = None) -> None:
    """Close each stand-in whose `DistributedDataParallel` the script has dropped.

    Also close that of another model with parameters of the model that is `wrapped` now: the script trains them in that
    one from now on, for example an encoder in a classifier.
    """
    taken = set() if wrapped is None else {id(one) for one in wrapped.parameters()}
    for model, reducer in list(_OWNERS.items()):
        is_taken = model is not wrapped and any(id(one) in taken for one in model.parameters())
        if reducer.is_orphaned or is_taken:
            reducer.close()


def _timeout_of(group: dist.ProcessGroup) -> dt.timedelta:
    """Return how long collectives of the script's group wait for other ranks; training waits as long."""
    # The group's name for its backend may be "cpu:gloo", or "undefined" where the script has named none.
    backend: Any = group._get_backend(group._device_types[0])  # noqa: SLF001 - torch has no other way to ask
    timeout: dt.timedelta = backend.options._timeout  # noqa: SLF001 - the same
    return timeout


@contextlib.contextmanager
def _unnoticed(device: torch.device) -> Iterator[None]:
    """Keep the start of the session from changing the script's random numbers and its autocast state."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.autocast(device.type, enabled=False), torch.enable_grad():
        yield
