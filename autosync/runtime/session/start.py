"""Starts training under a bundle: compares what must agree, makes connections, and begins a session."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import AutosyncError, OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.engine.device import DevicePlacement
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.rank_script import script_of
from autosync.runtime.engine.trace import ComputeSpan, Trace, open_trace
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.joint_optimizer import members_of
from autosync.runtime.memory.travelling import Travelling
from autosync.runtime.serving.first_worker import (
    FirstWorkersEngine,
    Servers,
    admit_servers,
    hand_over,
    refuse_unsendable,
)
from autosync.runtime.serving.invitations import servers_of
from autosync.runtime.session.agreement import (
    agree,
    check_optimizers,
    facts_of_rank,
    layouts_of,
    parameters_of,
    refusal_told,
    send_state,
)
from autosync.runtime.session.batch_weight import BatchWeight
from autosync.runtime.session.model_buffers import Buffers
from autosync.runtime.session.session import Session
from autosync.runtime.session.settings import Settings
from autosync.runtime.session.support import refuse_placement, refuse_unsupported
from autosync.runtime.session.synchronisation import Synchronisation
from autosync.runtime.stock.buckets import StockBuckets, stock_buckets
from autosync.runtime.stock.stock_session import StockSession
from autosync.runtime.varying.may_stay import MayStay, may_stay
from autosync.runtime.wire.links import Links, base_store, session_name
from autosync.runtime.wire.native_collectives import native_groups
from autosync.strategy.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A model that passed this rank's checks: the user's objects, the plan and the settings."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    bundle: Bundle
    settings: Settings
    plan: Plan
    parameters: Mapping[str, torch.nn.Parameter]
    placement: DevicePlacement
    stock: StockBuckets | None
    """The buckets of torch's own reducer, if it carries out the plan."""
    may_stay: MayStay | None
    """The variables that need not travel in each step, if there are any and the settings ask for it."""


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    group: dist.ProcessGroup,
    settings: Settings,
    *,
    others: Iterable[Synchronisation] = (),
) -> Synchronisation:
    """Start synchronising a model by a bundle's plan, together with all ranks of a process group.

    `others` are the sessions of models that are parallelized already.
    """
    rank, num_ranks, base = dist.get_rank(group), dist.get_world_size(group), base_store(group)
    name, store = next_session(group)
    with refusal_told(store, rank=rank):
        begun = _checked(model, optimizer, bundle, settings, num_ranks=num_ranks, others=list(others))
        BatchWeight.check(begun.plan, rank, settings.batch_size)
    patience = dt.timedelta(seconds=settings.timeout_seconds)
    facts = {**facts_of_rank(bundle), **(layouts_of(begun.parameters) if begun.stock is not None else {})}
    facts["find_unused_parameters"] = str(settings.find_unused_parameters)
    agree(store, rank=rank, num_ranks=num_ranks, facts=facts, patience=patience)
    admitted = admit_servers(base, store, session=name, rank=rank, plan=begun.plan, bundle=bundle, settings=settings)
    links = _connect(begun, store, rank=rank)
    with contextlib.ExitStack() as undo:
        undo.callback(links.close)
        if settings.init_sync:
            send_state(model, links, num_workers=num_ranks)
        hand_over(links, begun.plan, optimizer, begun.parameters, admitted)
        trace = open_trace(settings.trace, bundle.cluster, rank)
        compute = None
        if trace is not None:
            compute = ComputeSpan(trace, model, optimizer)
            undo.callback(compute.close)
        session: Synchronisation
        if begun.stock is not None:
            session = _stock_session(begun, begun.stock, links, store, compute=compute)
        else:
            session = _engine_session(begun, links, undo, trace=trace, compute=compute)
        undo.pop_all()
        return session


@contextlib.contextmanager
def refusing_before_start(group: dist.ProcessGroup) -> Iterator[None]:
    """Pass on an error of this rank to the others of the group, which raise it when they start their next session."""
    try:
        yield
    except AutosyncError:
        with refusal_told(next_session(group)[1], rank=dist.get_rank(group)):
            raise


def next_session(group: dist.ProcessGroup) -> tuple[str, Any]:
    """Return the name of the group's next session, which is the same on all ranks, and the store of its facts."""
    name = session_name(dist.get_process_group_ranks(group))
    return name, dist.PrefixStore(name + "/", base_store(group))  # type: ignore[attr-defined]


def _checked(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    settings: Settings,
    *,
    num_ranks: int,
    others: Sequence[Synchronisation],
) -> _Start:
    """Refuse what this rank alone can see to be wrong, before any other rank is asked."""
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    if num_ranks != plan.num_workers:
        raise OperationError(
            f"the process group has {num_ranks} ranks; the bundle was made for {plan.num_workers} workers"
        )
    refuse_unsupported(plan)
    parameters = parameters_of(model, bundle)
    placement = DevicePlacement.of(plan, parameters)
    refuse_placement(placement, parameters, checks=settings.checks)
    are_engines = bool(engine_updates(plan).variables)
    if are_engines:
        _refuse_optimizer_of(others, optimizer)
    check_optimizers(optimizer, bundle.model, plan, parameters)
    refuse_unsendable(plan, optimizer)
    refuse_shared_with(others, model, parameters, are_engines=are_engines)
    stays = None
    if settings.find_unused_parameters and placement.device.type == "cpu":
        stays = may_stay(plan)
        stays = stays if stays.names else None
    return _Start(
        model=model,
        optimizer=optimizer,
        bundle=bundle,
        settings=settings,
        plan=plan,
        parameters=parameters,
        placement=placement,
        # torch's reducer sends every gradient in every step.
        stock=stock_buckets(plan) if settings.hand_off and stays is None else None,
        may_stay=stays,
    )


def _refuse_optimizer_of(others: Iterable[Synchronisation], optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose state another model's engine keeps. Called if the engine is to update this model."""
    for other in others:
        taken = members_of(other.training.optimizer) if other.updates else ()
        for member in members_of(optimizer):
            if any(member is one for one in taken):
                raise OperationError(
                    f"this {type(member).__name__} holds parameters of another parallelized model too, which its "
                    "engine already updates: where engines update, each model has optimizers of its own (make one for "
                    "each model; strategies in which the user's optimizer updates, as preset ddp, share one)"
                )


def refuse_shared_with(
    others: Iterable[Synchronisation],
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    *,
    are_engines: bool,
) -> None:
    """Refuse parameters that belong to other parallelized models too, if two sessions would disturb each other."""
    for other in others:
        theirs = other.training.model
        if any(one is theirs for one in model.modules()):
            raise OperationError("a module within the model is parallelized already: release(module) comes first")
        if any(one is model for one in theirs.modules()):
            raise OperationError("the model is part of one that is parallelized already: release that one first")
        held = {id(parameter) for parameter in theirs.parameters()}
        shared = next((name for name, parameter in parameters.items() if id(parameter) in held), None)
        if shared is not None and (are_engines or other.updates):
            raise OperationError(
                f"{shared} belongs to another parallelized model too: where the engine updates, only one of them can "
                "(strategies in which the user's optimizers update, as preset ddp, train both)"
            )


def _connect(begun: _Start, store: Any, *, rank: int) -> Links:
    """Make the connections of a session: to all workers, and to the servers that the plan needs."""
    plan, cluster = begun.plan, begun.bundle.cluster
    return Links(
        store,
        rank=rank,
        num_ranks=plan.num_workers + len(servers_of(plan)),
        timeout=dt.timedelta(seconds=begun.settings.timeout_seconds),
        hosts=[cluster.nodes[place.node].name for place in plan.ranks],
        nccl_device=begun.placement.device if begun.placement.natives == "nccl" else None,
    )


def _buffers(begun: _Start, links: Links) -> Buffers | None:
    """Make the object that keeps the model's buffers equal to the first worker's, if the settings ask for it."""
    if not begun.settings.broadcast_buffers:
        return None
    return Buffers(begun.model, links, num_workers=begun.plan.num_workers)


def _stock_session(
    begun: _Start, stock: StockBuckets, links: Links, store: Any, *, compute: ComputeSpan | None
) -> StockSession:
    """Make a session in which torch's own reducer carries out the plan."""
    return StockSession(
        begun.model,
        begun.optimizer,
        begun.bundle,
        stock,
        plan=begun.plan,
        links=links,
        store=store,
        patience=dt.timedelta(seconds=begun.settings.timeout_seconds),
        buffers=_buffers(begun, links),
        compute=compute,
    )


def _engine_session(
    begun: _Start, links: Links, undo: contextlib.ExitStack, *, trace: Trace | None, compute: ComputeSpan | None
) -> Session:
    """Make a session in which our engine carries out the plan. `undo` ends what was begun if a later step fails."""
    plan, model, optimizer = begun.plan, begun.model, begun.optimizer
    links.make_native(native_groups(plan))
    execution = _execution(begun, links)
    undo.callback(execution.factors.close)
    execution.factors.attach(model)
    servers = None
    if links.rank == 0 and servers_of(plan):
        servers = Servers(plan, links, model=model, optimizer=optimizer, source=execution.optimizer)
    engine = _engine(begun, execution, trace=trace, servers=servers)
    undo.callback(engine.close)
    return Session(
        model,
        optimizer,
        begun.bundle,
        plan=plan,
        execution=execution,
        engine=engine,
        buffers=_buffers(begun, links),
        compute=compute,
        servers=servers,
        batch_size=begun.settings.batch_size,
        may_stay=begun.may_stay,
        makes_zeros=not begun.settings.find_unused_parameters,
    )


def _execution(begun: _Start, links: Links) -> Execution:
    updates = engine_updates(begun.plan)
    users = EngineOptimizer.of_user(begun.optimizer, begun.parameters) if updates.operations else None
    travelling = None
    if begun.may_stay is not None:
        seconds = begun.settings.timeout_seconds
        travelling = Travelling(begun.plan, begun.may_stay.names, timeout_seconds=seconds)
    return Execution(
        begun.plan,
        begun.parameters,
        links=links,
        updates=updates,
        optimizer=users,
        checks=begun.settings.checks,
        placement=begun.placement,
        travelling=travelling,
    )


def _engine(begun: _Start, execution: Execution, *, trace: Trace | None, servers: Servers | None) -> Engine:
    """Make this rank's engine. On the first worker, the engine also tells the servers about iterations and steps."""
    plan, placement, rank = begun.plan, begun.placement, execution.links.rank
    in_one_order = placement.in_one_order
    script = script_of(plan, rank, len(begun.parameters), engine_updates(plan), in_one_order=in_one_order)
    streams, timeout_seconds = placement.streams(script), begun.settings.timeout_seconds
    if servers is None:
        return Engine(plan, script, execution, rank=rank, timeout_seconds=timeout_seconds, trace=trace, streams=streams)
    return FirstWorkersEngine(
        plan, script, execution, timeout_seconds=timeout_seconds, trace=trace, streams=streams, servers=servers
    )
