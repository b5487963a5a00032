"""The first worker's side of serving: it invites servers, hands over what they need, and reports progress."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.checkpoints.rank_state import RankState, pack, unpack
from autosync.runtime.engine.device import Streams
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.rank_script import Script
from autosync.runtime.engine.trace import Trace
from autosync.runtime.engine.work import Work
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.optimizer_facts import OptimizerFacts, facts_of, plain_step
from autosync.runtime.local.optimizer_state import entry_of
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.serving.invitations import (
    SERVERS_VERDICT,
    Invitation,
    Word,
    invite,
    receive_content,
    say,
    send_content,
    send_values,
    served_variables,
    servers_of,
    updates_at,
)
from autosync.runtime.serving.known_parameters import KnownParameters
from autosync.runtime.serving.sealed_letters import Letters, shared_secret
from autosync.runtime.session.agreement import facts_of_rank, hear_verdict, verdict_on
from autosync.runtime.session.hooks import when_loaded
from autosync.runtime.session.settings import Settings
from autosync.runtime.wire.exchange import finish
from autosync.runtime.wire.links import Links, said
from autosync.signatures import draw_number
from autosync.strategy.bundle import Bundle

_MARGIN = dt.timedelta(seconds=30)


def admit_servers(
    base: Any,
    store: Any,
    *,
    session: str,
    rank: int,
    plan: Plan,
    bundle: Bundle,
    settings: Settings,
) -> Mapping[int, bool]:
    """Have a plan's servers join; on the first worker, return for each whether it has the initial values already.

    The first worker invites the servers, and all other workers wait for the outcome. `base` is the store in which
    workers and servers meet, `store` the session's own.
    """
    servers = servers_of(plan)
    if not servers:
        return {}
    patience = dt.timedelta(seconds=settings.timeout_seconds)
    nodes = {server: bundle.cluster.nodes[plan.ranks[server].node].name for server in servers}
    found: dict[int, bool] = {}
    if rank == 0:
        trace = None if settings.trace is None else str(settings.trace.resolve())
        secret, number = shared_secret(), draw_number()
        letters = Letters(store, secret, "session", session, number)
        try:
            for server, node in nodes.items():
                invitation = Invitation(
                    session=session, rank=server, checks=settings.checks, trace=trace, number=number
                )
                found[server] = invite(base, node, invitation, secret=secret, patience=patience)
            names = {server: f"the server on {node}" for server, node in nodes.items()}
            verdict = verdict_on(letters, names, facts_of_rank(bundle), patience=patience)
        except OperationError as error:
            verdict = str(error)
        # Servers trust sealed letters only; workers trust the store, as torch's process groups do.
        letters.set(SERVERS_VERDICT, verdict)
        store.set("servers/verdict", verdict)
    hear_verdict(store, "servers/verdict", patience=2 * len(servers) * patience + _MARGIN)
    return found


def refuse_unsendable(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that a server of the plan is to run and that cannot be sent to it as data."""
    facts = optimizer_of(plan, servers_of(plan), optimizer, {})
    if facts is not None:
        facts.to_json()


def optimizer_of(
    plan: Plan, servers: Iterable[int], optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> OptimizerFacts | None:
    """Return the optimizer's facts for some servers; None if none of them updates. `parameters` are by name."""
    if not any(updates_at(plan, server) for server in servers):
        return None
    return facts_of(optimizer, {id(parameter): name for name, parameter in parameters.items()})


def hand_over(
    links: Links,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    have_values: Mapping[int, bool],
) -> None:
    """Send each server its optimizer, and the initial values unless it has them."""
    for server, has_values in have_values.items():
        facts = optimizer_of(plan, (server,), optimizer, parameters)
        text = json.dumps({"optimizer": None if facts is None else facts.to_json()})
        for work in say(links, server, "training begins", text):
            finish(work, links, "to", server)
        if not has_values:
            send_values(parameters, served_variables(plan, server), links, server)


class Servers:
    """Tells the servers of a session about the progress of training, and about new parameters and states.

    `source` has the options noted for each iteration.
    """

    def __init__(
        self,
        plan: Plan,
        links: Links,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        source: EngineOptimizer | None,
    ) -> None:
        self._links = links
        self._source = source
        self._all = servers_of(plan)
        self._updating = {server for server in self._all if updates_at(plan, server)}
        self._step = ""
        self._works: list[tuple[int, Any]] = []
        self._plan = plan
        self._optimizer = optimizer
        self._parameters = dict(model.named_parameters())
        updated = {name for server in self._updating for name in served_variables(plan, server)}
        self._known = KnownParameters({name: one for name, one in self._parameters.items() if name in updated})
        self._reloaded: set[str] = set()
        # A state that exists already is from earlier steps or was loaded, and the servers do not know it.
        self._has_new_state = bool(optimizer.state)
        self._hooks = when_loaded(model, updated, self._reloaded.add)
        self._hooks.append(optimizer.register_load_state_dict_post_hook(self._optimizer_loaded))

    def parameters_came(self, names: Iterable[str]) -> None:
        """Note that these parameters have the values that servers have given them."""
        self._known.note(names)

    def refuse_changes(self) -> None:
        """Refuse a step if the script has changed parameters since the servers got them for it."""
        changed = self._known.changed()
        if changed:
            raise OperationError(
                f"{changed[0]} was changed after the first gradient of this step had come, when the server that "
                "updates it had taken its value for the step: the change would be lost (change parameters before "
                "backward, or after the step)"
            )

    @property
    def update(self) -> bool:
        """Whether any of the servers updates variables."""
        return bool(self._updating)

    def close(self) -> None:
        """Remove the hooks from the user's objects."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def tell(self, word: Word, iteration: int) -> None:
        """Send a word to all servers; with "step called", send the step's options too if they have changed."""
        if word == "iteration begins":
            self._catch_up()
        self.wait()
        text = ""
        if word == "step called" and self._updating:
            assert self._source is not None, "what servers update with, the first worker has too"
            step = json.dumps(plain_step(self._source.options.of(iteration)))
            if step != self._step:
                text = self._step = step
            self._known.forget()
        for server in self._all:
            try:
                works = say(self._links, server, word, text if server in self._updating else "")
            except RuntimeError as error:
                raise self._gone(server, error) from error
            self._works += [(server, work) for work in works]

    def _optimizer_loaded(self, _: torch.optim.Optimizer) -> None:
        self._has_new_state = True

    def hand_over_state(self) -> None:
        """Send the servers the state of the user's optimizer, between two steps."""
        self._has_new_state = True
        self._catch_up()

    def states(self) -> Iterator[RankState]:
        """Yield the state of each server, between two steps."""
        self._catch_up()
        for server in self._all:
            self._say(server, "tell state")
            yield unpack(receive_content(self._links, server))

    def go_on_from(self, step: int, masters: Mapping[str, torch.Tensor]) -> None:
        """Have all servers resume after `step` steps, with these parameter copies and the user's current state."""
        self._has_new_state = True
        self._send(step=step, masters=masters)

    def _catch_up(self) -> None:
        """Send the servers what the script has changed or loaded, if anything."""
        self._reloaded.update(self._known.changed())
        if self._updating and (self._reloaded or self._has_new_state):
            self._send()

    def _send(self, *, step: int | None = None, masters: Mapping[str, torch.Tensor] | None = None) -> None:
        for server in self._all:
            state = RankState()
            served = served_variables(self._plan, server) if server in self._updating else ()
            for name in served:
                parameter = self._parameters[name].detach()
                place = Place.whole(name, parameter.shape)
                if name in self._reloaded or step is not None:
                    state.elements.append(Held("param", place, parameter.reshape(-1)))
                if masters is not None and name in masters:
                    state.elements.append(Held("master", place, masters[name].reshape(-1)))
                entry = entry_of(self._optimizer, self._parameters[name])
                if self._has_new_state and entry:
                    state.add_optimizer(name, place, parameter.shape, entry)
            self._say(server, "take state", json.dumps({"step": step, "has_optimizer": self._has_new_state}))
            send_content(pack(state), self._links, server)
            self._known.note(name for name in served if name in self._reloaded or step is not None)
        self._reloaded.clear()
        self._has_new_state = False

    def _say(self, server: int, word: Word, text: str = "") -> None:
        self.wait()
        try:
            self._works += [(server, work) for work in say(self._links, server, word, text)]
        except RuntimeError as error:
            raise self._gone(server, error) from error
        self.wait()

    def wait(self) -> None:
        """Wait until the last words have arrived, which takes no time unless a server is gone."""
        works, self._works = self._works, []
        for server, work in works:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._gone(server, error) from error

    def _gone(self, server: int, error: RuntimeError) -> OperationError:
        return OperationError(f"no word reaches {self._links.name(server)}: {said(error)}")


class FirstWorkersEngine(Engine):
    """The first worker's engine in a session with servers, which it tells about iterations and steps."""

    def __init__(
        self,
        plan: Plan,
        script: Script,
        work: Work,
        *,
        timeout_seconds: float,
        trace: Trace | None,
        streams: Streams | None,
        servers: Servers,
    ) -> None:
        super().__init__(plan, script, work, rank=0, timeout_seconds=timeout_seconds, trace=trace, streams=streams)
        self._servers = servers
        self._begun = -1

    def restart(self, iteration: int) -> None:
        super().restart(iteration)
        self._begun = -1

    def gradient_ready(self, variable: int) -> None:
        if self._begun != self.iteration:
            self._begun = self.iteration
            self._tell("iteration begins")
        super().gradient_ready(variable)

    def step_called(self) -> None:
        self._tell("step called")
        super().step_called()

    def close(self) -> None:
        """Close the engine, and tell the servers that training has ended; after a failure they have failed as well."""
        self._servers.close()
        super().close()
        self._say_end()

    def _say_end(self) -> None:
        if self._error is None:
            # A server that is gone need not be told.
            with contextlib.suppress(OperationError):
                self._servers.tell("training ends", self.iteration)
                self._servers.wait()

    def _tell(self, word: Word) -> None:
        try:
            self._servers.tell(word, self.iteration)
        except OperationError:
            if self._error is not None:
                # The engine's own error is the reason why the connections are closed.
                self._raise()
            raise
