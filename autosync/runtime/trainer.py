"""`autosync.trainer`: trains a task with any bundle, also with one that divides the model into stages.

A pipeline cannot live behind `loss.backward()`, so the trainer makes whole steps. Every rank gives `step` the same
global batch, whatever the strategy is: the trainer takes from it what this rank computes. So a script need not know
how its bundle divides the work, and trains to the same weights with all of them.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.data_parallel_steps import DataParallelSteps
from autosync.runtime.parallelize import hold_for_good, note_begun
from autosync.runtime.session.agreement import agree, facts_of_rank, parameters_of, refusal_told
from autosync.runtime.session.start import next_session, refusing_before_start
from autosync.runtime.stages.double_buffered_session import DoubleBufferedSession
from autosync.runtime.stages.recorded_model import record_stages
from autosync.runtime.stages.refused_hooks import refuse_hooks, refuse_step_hooks
from autosync.runtime.stages.staged_session import MakeStages, StagedSession
from autosync.runtime.stages.stashing_session import StashingSession
from autosync.runtime.unchanged_task import refuse_changed_task
from autosync.runtime.wire.links import Links
from autosync.specs.profile.optimizer import optimizer_spec
from autosync.specs.task import Task
from autosync.specs.task_run import build_model, build_optimizer, needs_closure
from autosync.strategy.bundle import Bundle, bundle_at_hand, load_bundle


class _Steps(Protocol):
    """Makes whole steps under one kind of strategy."""

    @property
    def global_batch(self) -> int: ...
    def step(self, batch: Any) -> float: ...
    def gather(self) -> None: ...
    def gather_optimizer(self) -> None: ...
    def describe(self) -> str: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Trainer:
    """Trains one task with a bundle. All ranks call each method together, and give `step` the same batches.

    `model` and `optimizer` are the task's. On a rank that computes a stage, only the parameters of this stage are
    trained; `state_dict` brings all of them together.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: _Steps) -> None:
        self.model = model
        self.optimizer = optimizer
        self._steps = steps
        _OPEN.add(self)

    @property
    def global_batch(self) -> int:
        """The examples of the batch that `step` takes."""
        return self._steps.global_batch

    def step(self, batch: Any) -> float:
        """Take one optimizer step on a global batch; return the loss of this batch, which is the same on all ranks.

        Without a flush (schedules `2bw` and `stashing`) it is the loss of the batch before, or of an earlier one if
        passes are later than that, because no rank waits for this one's.
        The first axis of every tensor of the batch counts its examples. If the task accumulates, `batch` is a sequence
        of as many global batches as it has microsteps.
        """
        return self._steps.step(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole model's state, on every rank. It loads into the model under any other strategy."""
        self._steps.gather()
        return dict(self.model.state_dict())

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state of the whole model, on every rank.

        Both states load into the model and the optimizer on every rank, under any strategy, before a step.
        """
        self._steps.gather_optimizer()
        return dict(self.optimizer.state_dict())

    def describe(self) -> str:
        """Describe in words what this rank does."""
        return self._steps.describe()

    def close(self) -> None:
        """End the training, and leave the model with the parameters that this rank has trained."""
        try:
            self._steps.finish()
        finally:
            self._end()

    def _end(self) -> None:
        _OPEN.discard(self)
        self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The other ranks may not come here.
            self._end()


def trainer(
    task: Task,
    bundle: Bundle | Path | str | None = None,
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout_seconds: float = 300.0,
    init_sync: bool = True,
) -> Trainer:
    """Build a task's model and optimizer, and train them with a bundle's strategy: data-parallel, or in stages.

    Call it after `init_process_group`, on all ranks. Without a bundle, the file that AUTOSYNC_BUNDLE names in the
    environment is used; `autosync launch` sets it.

        with autosync.trainer(task, "best.yaml") as trainer:
            for batch in batches:  # the same global batches on every rank
                loss = trainer.step(batch)
            state = trainer.state_dict()

    All ranks start from rank 0's parameters and buffers (with `init_sync=False` from their own, which must be equal).
    A task that cannot be trained exactly is refused, and no wait for another rank is longer than `timeout_seconds`.
    """
    return begin_trainer(
        task,
        bundle,
        process_group,
        timeout_seconds=timeout_seconds,
        init_sync=init_sync,
        make_stages=record_stages,
        repeats_checks=True,
    )


def begin_trainer(
    task: Task,
    bundle: Bundle | Path | str | None,
    process_group: dist.ProcessGroup | None,
    *,
    timeout_seconds: float,
    init_sync: bool,
    make_stages: MakeStages,
    repeats_checks: bool = False,
) -> Trainer:
    """Return a trainer, see `trainer`. `make_stages` makes the passes of stages.

    Trials leave out repeated checks: most of these come in the first steps, which would seem longer than others.
    """
    group = process_group or (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise OperationError("there is no process group: call torch.distributed.init_process_group first")
    if not isinstance(bundle, Bundle):
        bundle = load_bundle(bundle or bundle_at_hand())
    if task.loss_scaling:
        raise OperationError("the task scales its loss, and the trainer has no scaler (autosync.parallelize takes it)")
    model = build_model(task)
    optimizer = build_optimizer(task, model.parameters())
    steps: _Steps
    if bundle.strategy.stages:
        note_begun(model)
        how: dict[str, Any] = {"timeout_seconds": timeout_seconds, "init_sync": init_sync, "make_stages": make_stages}
        steps = _staged(task, model, optimizer, bundle, group, repeats_checks=repeats_checks, **how)
    else:
        with refusing_before_start(group):
            refuse_changed_task(task, optimizer, bundle)
        steps = DataParallelSteps(
            task, model, optimizer, bundle, group, timeout_seconds=timeout_seconds, init_sync=init_sync
        )
    return Trainer(model, optimizer, steps)


def _staged(
    task: Task,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    group: dist.ProcessGroup,
    *,
    timeout_seconds: float,
    init_sync: bool,
    make_stages: MakeStages,
    repeats_checks: bool,
) -> StagedSession:
    """Compare what must agree on all ranks, connect them, and begin a session with stages."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    patience = dt.timedelta(seconds=timeout_seconds)
    _, store = next_session(group)
    with refusal_told(store, rank=rank):
        plan = lower(bundle.strategy, bundle.model, bundle.cluster)
        refuse_stages(task, model, optimizer, bundle, plan, num_ranks=num_ranks)
    agree(store, rank=rank, num_ranks=num_ranks, facts=facts_of_rank(bundle), patience=patience)
    links = Links(
        store,
        rank=rank,
        num_ranks=num_ranks,
        timeout=patience,
        hosts=[bundle.cluster.nodes[place.node].name for place in plan.ranks],
    )
    with contextlib.ExitStack() as undo:
        undo.callback(links.close)
        session = _session_of(plan)(
            task,
            model,
            optimizer,
            bundle,
            plan=plan,
            links=links,
            store=store,
            timeout_seconds=timeout_seconds,
            init_sync=init_sync,
            make_stages=make_stages,
            repeats_checks=repeats_checks,
        )
        undo.pop_all()
    return session


def _session_of(plan: Plan) -> type[StagedSession]:
    if plan.flushes:
        return StagedSession
    return StashingSession if plan.stashes else DoubleBufferedSession


def refuse_stages(
    task: Task,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    plan: Plan,
    *,
    num_ranks: int,
) -> None:
    """Refuse what this rank alone can see to be wrong."""
    if num_ranks != plan.num_workers:
        raise OperationError(
            f"the process group has {num_ranks} ranks; the bundle was made for {plan.num_workers} workers"
        )
    parameters = parameters_of(model, bundle)
    for name, parameter in parameters.items():
        if parameter.device.type != "cpu":
            raise OperationError(f"{name} is on {parameter.device}: stages train on the CPU only")
    refuse_hooks(parameters)
    refuse_step_hooks(optimizer)
    refuse_changed_task(task, optimizer, bundle)
    if needs_closure(optimizer):
        raise OperationError(
            f"{type(optimizer).__name__} computes the loss several times in a step, and stages pass once"
        )
    # Its options may have changed since the bundle was made.
    given = optimizer_spec(optimizer, parameters.values())
    if bundle.model.optimizer.per_variable is False or given.per_variable is False:
        raise OperationError(
            f"{type(optimizer).__name__} updates all variables together, and with stages no rank has all of them"
        )


_OPEN: weakref.WeakSet[Trainer] = weakref.WeakSet()


@atexit.register
def _end_what_is_left() -> None:
    """End trainers that the script has left open: threads of the engine must not outlive the interpreter."""
    for one in list(_OPEN):
        # The script is over, and an error now is not the script's.
        with contextlib.suppress(Exception):
            one._end()  # noqa: SLF001 - the other ranks may not end now


def _in_forked_process() -> None:
    """Leave open trainers to the parent: their connections are the parent's, and their threads are not here."""
    for one in list(_OPEN):
        hold_for_good(one)
    _OPEN.clear()


os.register_at_fork(after_in_child=_in_forked_process)
