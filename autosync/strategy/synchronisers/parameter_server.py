"""The synchroniser parameter_server: a node collects gradients and sends back parameters or averaged gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from autosync.documents import STRICT
from autosync.errors import did_you_mean
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.base import Bounds, Outside, Synchroniser
from autosync.strategy.synchronisers.rules import PLACE, Finding, MessageFacts, elementwise, rows
from autosync.strategy.wording import natural, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServer(Synchroniser):
    """A synchroniser by which one node collects the gradients and sends back parameters or averaged gradients.

    `server` is a node's name. If `update` is "server", the optimizer runs there and parameters come back; otherwise the
    averaged gradient comes back and every worker updates. With `local_proxy` one rank of each node exchanges data with
    the server for all ranks of the node. `sparse` sends only touched rows. With `staleness` s a worker computes with
    parameters that miss the last s updates.
    """

    __pydantic_config__ = STRICT

    kind: Literal["parameter_server"] = "parameter_server"
    server: str
    update: Literal["server", "worker"] = "server"
    local_proxy: bool = False
    sparse: bool = False
    staleness: int = 0

    template: ClassVar[str] = "autosync.plan.templates.parameter_server:parameter_server_template"
    weight: ClassVar[float] = 0.3

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"staleness {self.staleness} looks ahead (0 or more steps)")
        if self.staleness and self.update == "worker":
            raise ValueError("a stale server must hold the parameters (staleness needs update: server)")

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Drop `local_proxy` if each node has one rank, or if all workers are on the server's own node."""
        if not self.local_proxy:
            return self
        groups, ranks = cluster.worker_groups(), cluster.ranks
        is_flat = all(len(group) == 1 for group in groups)
        if is_flat or {ranks[group[0]].node for group in groups} == {cluster.node_index(self.server)}:
            return replace(self, local_proxy=False)
        return self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        node = facts.nodes.get(self.server)
        if node is None:
            near = did_you_mean(self.server, list(facts.nodes))
            rule = f"known: {', '.join(facts.nodes)}" + (f"; {near}" if near else "")
            yield (*PLACE, "server"), f"unknown node {self.server!r}", rule
        elif not facts.backend.serves_without_device and node.role == "server":
            yield (*PLACE, "server"), f"{self.server} has no device", f"{facts.backend.name} runs on devices only"
        if self.update == "server":
            yield from elementwise(facts, "updates at a server")
        if self.sparse:
            yield from rows(facts)
            if self.local_proxy:
                rule = "rows of a node's ranks are not merged on the way: each rank sends its own"
                yield (*PLACE, "local_proxy"), "a local proxy for rows", rule
        if self.staleness and (facts.model.clip_norm or facts.model.loss_scaling):
            rule = "clipping and loss scaling need every gradient of the step before the first update"
            yield (*PLACE, "staleness"), "staleness in a task that clips or scales", rule

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        proxies = (False, True) if limits.local_proxies else (False,)
        for node, sparse, update, proxy, lag in itertools.product(
            cluster.nodes, (False, True), limits.server_updates, proxies, _lags(limits)
        ):
            if not (lag and update == "worker"):
                yield cls(server=node.name, update=update, local_proxy=proxy, sparse=sparse, staleness=lag)

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        if self.update not in limits.server_updates:
            yield ("update",), self.update, limits.server_updates
        if self.local_proxy and not limits.local_proxies:
            yield ("local_proxy",), "true", ("false",)
        if self.staleness not in _lags(limits):
            yield ("staleness",), self.staleness, _lags(limits)

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        names = sorted({str(one.served_by) for one in group}, key=natural)
        if group[0].sends_rows:
            go = "send touched rows" if is_plural else "sends touched rows"
        else:
            go = "go" if is_plural else "goes"
        return f"{go} to {'a server' if len(names) == 1 else 'servers'} on {runs(names)}"

    @property
    def title(self) -> str:
        return f"sparse {self.kind}" if self.sparse else self.kind

    @property
    def label(self) -> str:
        words = [self.kind, f"update at {self.update}"]
        words += ["through proxies"] if self.local_proxy else []
        words += ["rows"] if self.sparse else []
        return ", ".join(words)

    @property
    def takes_codecs(self) -> bool:
        return not self.sparse

    @property
    def served_by(self) -> str:
        return self.server

    def at(self, server: str) -> Synchroniser:
        return replace(self, server=server)

    @property
    def updates_at_server(self) -> bool:
        return self.update == "server"

    @property
    def has_proxies(self) -> bool:
        return self.local_proxy

    @property
    def travels_alone(self) -> bool:
        return self.sparse

    @property
    def sends_rows(self) -> bool:
        return self.sparse

    @property
    def lag(self) -> int:
        return self.staleness

    @property
    def way(self) -> tuple[object, ...]:
        return self.kind, self.update, self.sparse

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        return tuple((kind, update, sparse) for update in ("server", "worker") for sparse in (False, True))

    @property
    def shares(self) -> tuple[str, ...]:
        update = "server.updates" if self.update == "server" else "server.adds_up"
        proxy = ["server.proxy"] if self.local_proxy else []
        return (update, *proxy, *(["server.rows"] if self.sparse else []))

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return "server.updates", "server.adds_up", "server.proxy", "server.rows"


def _lags(limits: Bounds) -> tuple[int, ...]:
    return (0, *limits.staleness) if "stale" in limits.allow else (0,)
