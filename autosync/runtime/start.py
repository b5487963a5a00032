"""How training under a bundle starts: what must agree is compared, connections are made, and a session begins."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan, Transfer
from autosync.runtime.agreement import (
    agree,
    check_optimizer,
    facts_of_rank,
    parameters_of,
    refusal_told,
    send_state,
)
from autosync.runtime.buffers import Buffers
from autosync.runtime.checkpoints.loading import Loading
from autosync.runtime.checkpoints.workers import Training
from autosync.runtime.collectives import is_native
from autosync.runtime.device import Placement
from autosync.runtime.engine import Engine
from autosync.runtime.engine_optimizer import EngineOptimizer
from autosync.runtime.execution import Execution
from autosync.runtime.first_worker import FirstWorkersEngine, Servers, admit_servers, hand_over
from autosync.runtime.invitations import servers_of
from autosync.runtime.links import Links, NativeKey, base_store, session_name
from autosync.runtime.script import script_of
from autosync.runtime.session import Session
from autosync.runtime.stock import stock_buckets
from autosync.runtime.stock_session import StockSession
from autosync.runtime.support import refuse_placement, refuse_unsupported
from autosync.runtime.trace import Compute, open_trace
from autosync.runtime.updates import engine_updates
from autosync.strategy.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train under a bundle; see `parallelize`."""

    timeout_seconds: float
    init_sync: bool
    broadcast_buffers: bool
    hand_off: bool
    checks: bool
    trace: Path | None


class Synchronisation(Protocol):
    """What keeps a model synchronised. `syncs` is false while gradients only accumulate."""

    syncs: bool
    training: Training
    kept_apart: frozenset[str]
    """The variables of which the optimizer's state is not whole on any worker."""

    @property
    def step(self) -> int:
        """How many steps were made, those before a checkpoint among them."""

    def settle(self, what: str) -> None:
        """Between two steps: have nothing under way. `what` is called, and refused where gradients are."""

    def go_on_from(self, loading: Loading) -> None:
        """Put in place what was read from a checkpoint. Nothing is under way."""

    def bring_home(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Give the user's optimizer the state of what is kept apart."""

    def drain(self) -> None:
        """Wait for all updates under way."""

    def where(self) -> str:
        """What is under way, in words."""

    def describe(self) -> str:
        """What carries out the plan, in words."""

    def close(self, *, patience_seconds: float | None = None) -> None:
        """End it: the model is an ordinary one again.

        Other ranks are waited for as long as in training, or no longer than `patience_seconds`.
        """


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    group: dist.ProcessGroup,
    settings: Settings,
) -> Synchronisation:
    """Start synchronising a model by a bundle's plan, together with all ranks of a process group."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    base = base_store(group)
    name = session_name(dist.get_process_group_ranks(group))
    store = dist.PrefixStore(name + "/", base)  # type: ignore[attr-defined]
    with refusal_told(store, rank=rank):
        plan = lower(bundle.strategy, bundle.model, bundle.cluster)
        if num_ranks != plan.num_workers:
            raise OperationError(
                f"the process group has {num_ranks} ranks; the bundle was made for {plan.num_workers} workers"
            )
        refuse_unsupported(plan)
        parameters = parameters_of(model, bundle)
        placement = Placement.of(plan, parameters)
        refuse_placement(placement, parameters, checks=settings.checks)
        if engine_updates(plan).variables:
            check_optimizer(optimizer, bundle.model)
    patience = dt.timedelta(seconds=settings.timeout_seconds)
    agree(store, rank=rank, num_ranks=num_ranks, facts=facts_of_rank(bundle), patience=patience)
    admitted = admit_servers(
        base, store, session=name, rank=rank, plan=plan, bundle=bundle, optimizer=optimizer, settings=settings
    )
    servers = servers_of(plan)
    links = Links(
        store,
        rank=rank,
        num_ranks=num_ranks + len(servers),
        timeout=patience,
        hosts=[bundle.cluster.nodes[one.node].name for one in plan.ranks],
        nccl_device=placement.device if placement.natives == "nccl" else None,
    )
    with contextlib.ExitStack() as undo:
        undo.callback(links.close)
        if settings.init_sync:
            send_state(model, links, num_workers=num_ranks)
        hand_over(links, plan, optimizer, parameters, admitted)
        trace = open_trace(settings.trace, bundle.cluster, rank)
        compute = None
        if trace is not None:
            compute = Compute(trace, model, optimizer)
            undo.callback(compute.close)
        buffers = Buffers(model, links, num_workers=num_ranks) if settings.broadcast_buffers else None
        session: Synchronisation
        stock = stock_buckets(plan) if settings.hand_off else None
        if stock is not None:
            session = StockSession(
                model,
                optimizer,
                bundle,
                stock,
                plan=plan,
                links=links,
                store=store,
                buffers=buffers,
                compute=compute,
            )
            undo.pop_all()
            return session
        links.make_native(native_groups(plan))
        execution = _execution(plan, parameters, optimizer, links, placement, checks=settings.checks)
        undo.callback(execution.factors.close)
        execution.factors.attach(model)
        updates = engine_updates(plan)
        script = script_of(plan, rank, len(parameters), updates, in_one_order=placement.in_one_order)
        streams = placement.streams(script)
        told = None
        if rank == 0 and servers:
            told = Servers(plan, links, model=model, optimizer=optimizer, source=execution.optimizer)
        engine = _engine(
            execution,
            plan=plan,
            script=script,
            rank=rank,
            timeout_seconds=settings.timeout_seconds,
            trace=trace,
            streams=streams,
            servers=told,
        )
        undo.callback(engine.close)
        session = Session(
            model,
            optimizer,
            bundle,
            plan=plan,
            execution=execution,
            engine=engine,
            buffers=buffers,
            compute=compute,
            servers=told,
        )
        undo.pop_all()
        return session


def _engine(execution: Execution, *, rank: int, servers: Servers | None, **options: Any) -> Engine:
    """The engine of a rank. What the first worker's is told, those that only serve hear of."""
    if servers is None:
        return Engine(work=execution, rank=rank, **options)
    return FirstWorkersEngine(work=execution, servers=servers, **options)


def _execution(
    plan: Plan,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    links: Links,
    placement: Placement,
    *,
    checks: bool,
) -> Execution:
    updates = engine_updates(plan)
    users = EngineOptimizer.of_user(optimizer, parameters) if updates.operations else None
    return Execution(
        plan, parameters, links=links, updates=updates, optimizer=users, checks=checks, placement=placement
    )


def native_groups(plan: Plan) -> list[NativeKey]:
    """The groups of a plan's native collectives, in an order that is the same on all ranks.

    On NCCL every transfer is one, and a set of members has one group whatever the lane.
    """
    keys: dict[NativeKey, Any] = {}
    for operation in plan.operations:
        if isinstance(operation, Transfer) and (plan.backend == "nccl" or is_native(operation)):
            lane = 0 if plan.backend == "nccl" else operation.lane
            keys.update(dict.fromkeys((group, lane) for group in operation.groups if len(group) > 1))
    return list(keys)
