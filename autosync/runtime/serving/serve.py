"""A rank that only serves: executes its share of a plan without a model.

It has its own tensors for the variables that it serves, and an optimizer made from data about the user's, which the
first worker sends. The first worker also tells it when an iteration begins and when its step is called (`invitations`).
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import InputError, OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.rank_script import script_of
from autosync.runtime.engine.trace import Trace, open_trace
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.optimizer_facts import UNSCALED, OptimizerFacts, Step, step_from_plain
from autosync.runtime.serving.invitations import (
    FOREVER,
    SERVERS_VERDICT,
    Invitation,
    await_invitation,
    hear,
    receive_values,
    served_variables,
    servers_of,
)
from autosync.runtime.serving.sealed_letters import Letters, shared_secret
from autosync.runtime.serving.state_exchange import take_state, tell_state
from autosync.runtime.session.agreement import facts_of_rank, hear_verdict, state_facts
from autosync.runtime.session.support import refuse_unsupported
from autosync.runtime.wire.links import Links, said
from autosync.runtime.wire.native_collectives import native_groups
from autosync.strategy.bundle import Bundle

_LOG = logging.getLogger(__name__)


class Server:
    """Serves one training after another for one node of a bundle's cluster.

    `parameters`, by name, are the initial values, if workers and servers have the same already; otherwise the first
    worker sends them. Within a step, no wait for another rank is longer than `timeout_seconds`; between steps and
    trainings the server waits without limit.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        node: str,
        parameters: Mapping[str, torch.Tensor] | None = None,
        timeout_seconds: float = 300.0,
    ) -> None:
        plan = lower(bundle.strategy, bundle.model, bundle.cluster)
        check_node(bundle, plan, node)
        refuse_unsupported(plan)
        self._bundle = bundle
        self._plan = plan
        self._node = node
        self._given = parameters
        self._timeout_seconds = timeout_seconds
        self._rank = next(one.index for one in bundle.cluster.ranks if bundle.cluster.nodes[one.node].name == node)
        self._secret = shared_secret()
        self.num_steps = 0
        """The number of steps done, in all trainings together."""

    @property
    def is_for_known_workers(self) -> bool:
        """Whether the server serves only workers that know the secret."""
        return bool(self._secret)

    def await_workers(self, store: Any, *, patience: dt.timedelta = FOREVER) -> Invitation:
        """Wait until workers need this node. `store` belongs to their process group; RuntimeError if it disappears."""
        return await_invitation(
            store,
            self._node,
            rank=self._rank,
            secret=self._secret,
            has_values=self._given is not None,
            patience=patience,
        )

    def train(self, store: Any, invitation: Invitation, *, begun: Callable[[], None] | None = None) -> None:
        """Serve one training from its beginning to its end; call `begun` when all connections are made."""
        timeout = dt.timedelta(seconds=self._timeout_seconds)
        session = dist.PrefixStore(invitation.session + "/", store)  # type: ignore[attr-defined]
        letters = Letters(session, self._secret, "session", invitation.session, invitation.number)
        state_facts(letters, rank=invitation.rank, facts=facts_of_rank(self._bundle))
        hear_verdict(letters, SERVERS_VERDICT, patience=2 * timeout)
        links = Links(
            session,
            rank=invitation.rank,
            num_ranks=len(self._plan.ranks),
            timeout=timeout,
            hosts=[self._bundle.cluster.nodes[one.node].name for one in self._plan.ranks],
        )
        try:
            self._serve(links, invitation, begun=begun)
        finally:
            links.close()

    def _serve(self, links: Links, invitation: Invitation, *, begun: Callable[[], None] | None) -> None:
        plan, rank = self._plan, links.rank
        word, text = _heard(links)
        if word != "training begins":
            raise OperationError(f"{links.name(0)} said {word!r} before 'training begins'")
        facts = json.loads(text)["optimizer"]
        optimizer = None if facts is None else EngineOptimizer.of_facts(OptimizerFacts.from_json(facts))
        parameters = self._values(links)
        links.make_native(native_groups(plan))
        updates = engine_updates(plan)
        execution = Execution(
            plan, parameters, links=links, updates=updates, optimizer=optimizer, checks=invitation.checks
        )
        script = script_of(plan, rank, len(self._bundle.model.variables), updates)
        trace = open_trace(self._trace_path(invitation), self._bundle.cluster, rank, track="serving")
        engine = _ServersEngine(plan, script, execution, rank=rank, timeout_seconds=self._timeout_seconds, trace=trace)
        if begun is not None:
            begun()
        try:
            self._follow(engine, execution, parameters, links, trace)
        finally:
            # No further message will come, so end the waits of lanes.
            links.abort()
            try:
                engine.close()
            finally:
                execution.close()
                if trace is not None:
                    trace.close()

    def _trace_path(self, invitation: Invitation) -> Path | None:
        """Return the path of the timeline that workers want; only workers that know the secret may choose it."""
        if invitation.trace is not None and not self._secret:
            _LOG.warning("no timeline is written: the workers ask for one, and there is no secret to know them by")
            return None
        return None if invitation.trace is None else Path(invitation.trace)

    def _values(self, links: Links) -> Mapping[str, torch.Tensor]:
        names = served_variables(self._plan, links.rank)
        if self._given is not None:
            return {name: self._given[name].detach() for name in names}
        variables = {variable.name: variable for variable in self._bundle.model.variables}
        made = {name: torch.empty(variables[name].shape, dtype=getattr(torch, variables[name].dtype)) for name in names}
        receive_values(made, names, links)
        return made

    def _follow(
        self,
        engine: _ServersEngine,
        execution: Execution,
        parameters: Mapping[str, torch.Tensor],
        links: Links,
        trace: Trace | None,
    ) -> None:
        """Follow the first worker through iterations until it ends training."""
        optimizer = execution.optimizer
        step = Step(() if optimizer is None else optimizer.groups, UNSCALED)
        is_open = False
        while True:
            word, text = _heard(links, engine)
            if word == "training ends":
                if is_open:
                    raise OperationError(f"{links.name(0)} ended training in the middle of a step")
                engine.wait_done()
                return
            if word == "iteration begins":
                is_open = True
                engine.begin()
                continue
            if word == "tell state":
                tell_state(engine, execution, links)
                continue
            if word == "take state":
                take_state(text, engine, execution, links, parameters=parameters)
                continue
            if word != "step called":
                raise OperationError(f"{links.name(0)} said {word!r} in the middle of training")
            if text:
                step = step_from_plain(json.loads(text))
            if optimizer is not None:
                optimizer.options.put(engine.iteration, step.groups, step.scale)
            engine.step_called()
            # Wait before the workers' next gradients are taken.
            engine.wait_due()
            if trace is not None:
                trace.write()
            is_open = False
            self.num_steps += 1


class _ServersEngine(Engine):
    def check(self) -> None:
        """Raise the error of a failed engine thread, which is the reason why the connections were closed."""
        if self._error is not None:
            self._raise()


def _heard(links: Links, engine: _ServersEngine | None = None) -> tuple[str, str]:
    try:
        return hear(links, patience=FOREVER)
    except RuntimeError as error:
        if engine is not None:
            engine.check()
        raise OperationError(f"rank {links.rank}: no word from {links.name(0)}: {said(error)}") from error


def serve(
    bundle: Bundle,
    store: Any,
    *,
    node: str,
    parameters: Mapping[str, torch.Tensor] | None = None,
    timeout_seconds: float = 300.0,
    patience: dt.timedelta = FOREVER,
) -> None:
    """Serve one training for one node of a bundle's cluster: see `Server`."""
    server = Server(bundle, node=node, parameters=parameters, timeout_seconds=timeout_seconds)
    server.train(store, server.await_workers(store, patience=patience))


def serve_all(server: Server, store: Any, *, once: bool, told: Callable[[str], None]) -> None:
    """Serve one training after another until the store is gone; call `told` with a line about each event."""
    while True:
        try:
            invitation = server.await_workers(store)
        except RuntimeError:
            told("the workers' store is gone: nothing more to serve")
            return
        before, begun = server.num_steps, False

        def tell_begun() -> None:
            nonlocal begun
            begun = True
            told("training has begun")

        try:
            server.train(store, invitation, begun=tell_begun)
        except OperationError as error:
            if once or begun or server.is_for_known_workers:
                raise
            # Without a secret, anybody may have called the server.
            told(f"a training did not come about: {error}; waiting for the next")
            continue
        told(f"training has ended after {server.num_steps - before} steps")
        if once:
            return


def check_node(bundle: Bundle, plan: Plan, node: str) -> None:
    """Refuse a node that is no server, or a plan without work for servers."""
    servers = [one.name for one in bundle.cluster.nodes if one.role == "server"]
    if node not in servers:
        rule = f"the nodes that only serve in the bundle's cluster: {', '.join(servers) or 'none'}"
        raise InputError(f"no node that only serves is named {node}", rule=rule)
    if not servers_of(plan):
        raise InputError("the bundle's strategy has no work for a server", rule="workers train under it by themselves")
