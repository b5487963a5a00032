"""The base class of synchronisers: a frozen dataclass that a message of a strategy holds.

Each kind has one file in this folder and one template in `autosync.plan.templates`. Legality, canonical forms, the
space, descriptions, simulators and proposers call the methods below and know no kind by name.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from autosync.errors import Path
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shapes.trees import TreeShare
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.rules import Finding, MessageFacts

Topology = Literal["native", "ring", "tree", "halving_doubling"]
ExchangeTopology = Literal["native", "ring", "halving_doubling"]
GatherTopology = Literal["native", "ring"]
Route = Literal["native", "ring", "tree", "halving_doubling", "levels", "trees"]
"""Topologies, and the shapes of an all-reduce that depend on the cluster (see `strategy.shapes`)."""
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
ROUTES: tuple[Route, ...] = get_args(Route)

Outside = tuple[Path, object, Sequence[object]]
"""A field that is outside the limits: its path, its value, and the allowed values."""


class Bounds(Protocol):
    """The limits of a space that synchronisers read (see `space.limits.Limits`)."""

    @property
    def allow(self) -> Sequence[str]: ...
    @property
    def topologies(self) -> Sequence[Route]: ...
    @property
    def hierarchical(self) -> bool: ...
    @property
    def server_updates(self) -> Sequence[Literal["server", "worker"]]: ...
    @property
    def local_proxies(self) -> bool: ...
    @property
    def staleness(self) -> Sequence[int]: ...
    @property
    def periods(self) -> Sequence[int]: ...
    @property
    def outer_optimizers(self) -> Sequence[OuterOptimizer | None]: ...


def plain_topologies(limits: Bounds) -> list[Topology]:
    """Return the topologies within the limits that are the same on every cluster."""
    without_levels = [topology for topology in limits.topologies if topology != "levels"]
    return [topology for topology in without_levels if topology != "trees"]


def gather_topologies(limits: Bounds) -> list[GatherTopology]:
    """Return the topologies within the limits that can gather."""
    exchange = [topology for topology in plain_topologies(limits) if topology != "tree"]
    return [topology for topology in exchange if topology != "halving_doubling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchroniser(abc.ABC):
    """The way in which the gradients of a message become updated parameters on every worker.

    A kind is a frozen, slotted dataclass that derives from this class. Its field `kind` is a `Literal` of the name that
    strategy files and the table use. `template` names the function (`module:function`) that makes its template from a
    site, the synchroniser in its canonical form and a codec. `weight` is the weight with which sampling draws it as the
    main kind of a step. `sums_everywhere` says whether every worker gets sums of all data that is sent, which PowerSGD
    needs. `refuses_shares` is the reason why uneven shares of the batch are not legal with it, if they are not.
    """

    kind: str

    template: ClassVar[str]
    weight: ClassVar[float] = 0.1
    sums_everywhere: ClassVar[bool] = False
    refuses_shares: ClassVar[str] = ""

    # Canonical form, rules and variants.

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:  # noqa: ARG002 - for kinds that have several forms
        """Return the canonical form of this synchroniser: one form for all that do the same on this cluster.

        Equal canonical forms have equal plans. With one worker the caller replaces the result by a plain all-reduce,
        unless workers train apart.
        """
        return self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:  # noqa: ARG002 - for kinds that have rules
        """Yield a finding for every rule that the synchroniser breaks in a message.

        A finding is a path within the message, the mistake, and the rule. The rules on codecs, topologies and slices
        that apply to every kind are in `strategy.legality`.
        """
        yield from ()

    @classmethod
    @abc.abstractmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        """Yield every variant within the limits; the space samples from these and changes messages to them.

        Variants need not be legal for every message, because the space checks the rules. Of variants with equal
        canonical forms the space uses only the first.
        """

    @classmethod
    def link_variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        """Yield the other variants within the limits: those that follow the cluster's links.

        The space changes messages to them too, but draws them last (see `space.following`).
        """
        yield from ()

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        """Yield each field that is outside the limits; the base class checks the topology."""
        if self.route is not None and self.route not in limits.topologies:
            yield ("topology",), self.route, limits.topologies

    # Words.

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        """Return the predicate of a sentence about the variables of these synchronisers, all of this kind."""
        return f"{'are' if is_plural else 'is'} synchronised by {group[0].kind}"

    @property
    def title(self) -> str:
        """The kind, with a word before it where messages of a kind differ in nature: `sparse parameter_server`."""
        return self.kind

    @property
    def label(self) -> str:
        """The kind and settings in a few words, without the server. Proposers learn which labels do well."""
        return self.kind if self.route is None else f"{self.kind}, {self.route}"

    # Facts that other modules read. Most kinds keep the values of the base class.

    @property
    def route(self) -> Route | None:
        """The topology of its transfers; None if the kind has no choice of topologies."""
        return None

    @property
    def shape(self) -> tuple[object, ...] | None:
        """The settings that a search may change in all messages of a step at once; None if there are none."""
        return None

    @property
    def written_trees(self) -> tuple[TreeShare, ...]:
        """The trees that are written out for its transfers, if any."""
        return ()

    def over(self, trees: tuple[TreeShare, ...]) -> Synchroniser:  # noqa: ARG002 - for kinds that go over trees
        """Return the same synchroniser over other written-out trees."""
        return self

    @property
    def served_by(self) -> str | None:
        """The name of the node that serves it; None if the kind has no server."""
        return None

    def at(self, server: str) -> Synchroniser:  # noqa: ARG002 - for kinds that have a server
        """Return the same synchroniser, served by another node."""
        return self

    @property
    def updates_at_server(self) -> bool:
        """Whether the optimizer runs at a server."""
        return False

    @property
    def has_proxies(self) -> bool:
        """Whether one rank of each node exchanges data with the server for all ranks of the node."""
        return False

    @property
    def needs_own_rounds(self) -> bool:
        """Whether its route needs rounds of the engine's own messages, beyond the backend's collectives."""
        return self.route not in (None, "native")

    @property
    def is_hierarchical(self) -> bool:
        """Whether it reduces within nodes first."""
        return False

    @property
    def takes_codecs(self) -> bool:
        """Whether the gradients that it sends may be encoded."""
        return False

    @property
    def passes_sums_on(self) -> bool:
        """Whether ranks send sums on, so that only codecs whose results can be summed are legal."""
        return self.is_hierarchical or self.has_proxies

    @property
    def travels_alone(self) -> bool:
        """Whether a message has only one part and is not sliced."""
        return False

    @property
    def sends_rows(self) -> bool:
        """Whether the touched rows of an embedding travel instead of its gradient."""
        return False

    @property
    def lag(self) -> int:
        """The number of updates that the parameters of a step may miss."""
        return 0

    @property
    def period(self) -> int:
        """The number of steps after which its operations repeat."""
        return 1

    @property
    def outer_optimizer(self) -> OuterOptimizer | None:
        """The optimizer that is applied to an average of parameters, if any."""
        return None

    @property
    def trains_apart(self) -> bool:
        """Whether each worker trains its own copy between averages."""
        return False

    @property
    def is_stale(self) -> bool:
        """Whether it makes a strategy stale."""
        return self.lag > 0 or self.trains_apart

    # Facts for learners.

    @property
    def way(self) -> tuple[object, ...]:
        """The kind and the settings that change its transfers most; learners compare strategies by these."""
        return self.kind, self.route

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        """Return all values that `way` may have."""
        return tuple(itertools.product((kind,), TOPOLOGIES))

    @property
    def shares(self) -> tuple[str, ...]:
        """The names of the features that a message's bytes are added to.

        The shipped learned simulators know the features of the shipped kinds and ignore others.
        """
        return ()

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        """Return all names that `shares` may have, in the order in which learned simulators read them."""
        return ()
