"""What every synchroniser is: a frozen dataclass that a message of a strategy holds, and all there is to say of it.

Each kind has one file in this folder and one template in `autosync.plan.templates`. Legality, canonical forms, the
space, descriptions, simulators and proposers ask the methods below and know no kind by name.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from autosync.errors import Path
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.rules import Finding, MessageFacts

Topology = Literal["native", "ring", "tree", "halving_doubling"]
ExchangeTopology = Literal["native", "ring", "halving_doubling"]
GatherTopology = Literal["native", "ring"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)

Outside = tuple[Path, object, Sequence[object]]
"""A field that leaves the limits: where it is, its value, and the values within the limits."""


class Bounds(Protocol):
    """The limits of a space as far as synchronisers ask for them (see `space.limits.Limits`)."""

    @property
    def allow(self) -> Sequence[str]: ...
    @property
    def topologies(self) -> Sequence[Topology]: ...
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


def gather_topologies(limits: Bounds) -> list[GatherTopology]:
    """The topologies within the limits that gather."""
    exchange = [topology for topology in limits.topologies if topology != "tree"]
    return [topology for topology in exchange if topology != "halving_doubling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchroniser(abc.ABC):
    """How the gradients of a message become updated parameters on every worker.

    A kind is a frozen, slotted dataclass that derives from this class. Its field `kind` is a `Literal` of the name that
    strategy files and the table use. `template` names the function (`module:function`) that makes its template from a
    site, the synchroniser in its canonical form and a codec. `weight` is how often sampling makes it the main kind of a
    step, beside the weights of the other kinds. `sums_everywhere` says whether every worker gets sums of what travels,
    as PowerSGD needs it.
    """

    kind: str

    template: ClassVar[str]
    weight: ClassVar[float] = 0.1
    sums_everywhere: ClassVar[bool] = False

    # Canonical form, rules and variants.

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:  # noqa: ARG002 - for kinds that have several forms
        """The synchroniser that does the same on this cluster and is written first.

        Equal canonical forms have equal plans. With one worker the answer is replaced by a plain all-reduce, unless
        workers train apart.
        """
        return self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:  # noqa: ARG002 - for kinds that have rules
        """Every rule that the synchroniser breaks in a message.

        A finding is a path within the message, what is wrong there, and the rule. Rules of codecs, topologies and
        slices that hold for every kind are in `strategy.legality`.
        """
        yield from ()

    @classmethod
    @abc.abstractmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        """Every variant within the limits, for the space to sample from and to change messages to.

        Variants need not be legal for every message: the space asks the rules. Variants with equal canonical forms are
        one choice, the first of them.
        """

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        """Each field that leaves the limits; the base class looks at the topology."""
        if self.route is not None and self.route not in limits.topologies:
            yield ("topology",), self.route, limits.topologies

    # Words.

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        """The verb of a sentence whose subject is the variables of these synchronisers, all of this kind."""
        return f"{'are' if is_plural else 'is'} synchronised by {group[0].kind}"

    @property
    def title(self) -> str:
        """Its kind, with what makes messages of the kind differ in nature: `sparse parameter_server`."""
        return self.kind

    @property
    def label(self) -> str:
        """Its kind and settings in a few words, its server aside. Proposers learn which labels do well."""
        return self.kind if self.route is None else f"{self.kind}, {self.route}"

    # Facts that everything else asks for. Most kinds keep the answers of the base class.

    @property
    def route(self) -> Topology | None:
        """The topology that its transfers take; None where it has none to choose."""
        return None

    @property
    def shape(self) -> tuple[object, ...] | None:
        """Settings that a search may change in all messages of a step at once; None where there are none."""
        return None

    @property
    def served_by(self) -> str | None:
        """The name of the node that serves it."""
        return None

    def at(self, server: str) -> Synchroniser:  # noqa: ARG002 - for kinds that have a server
        """The same synchroniser, served by another node."""
        return self

    @property
    def updates_at_server(self) -> bool:
        """Whether the optimizer runs at a server."""
        return False

    @property
    def has_proxies(self) -> bool:
        """Whether the ranks of a node speak to a server through one of them."""
        return False

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
        """Whether sums travel further, so that only codecs whose results can be summed are legal."""
        return self.is_hierarchical or self.has_proxies

    @property
    def travels_alone(self) -> bool:
        """Whether a message holds one part only, and is not sliced."""
        return False

    @property
    def sends_rows(self) -> bool:
        """Whether the touched rows of an embedding travel instead of its gradient."""
        return False

    @property
    def lag(self) -> int:
        """How many updates the parameters of a step may miss."""
        return 0

    @property
    def period(self) -> int:
        """After how many steps it has done all that it ever does."""
        return 1

    @property
    def outer_optimizer(self) -> OuterOptimizer | None:
        """What steps with an average of parameters."""
        return None

    @property
    def trains_apart(self) -> bool:
        """Whether each worker trains a copy of its own for a while."""
        return False

    @property
    def is_stale(self) -> bool:
        """Whether it makes a strategy stale."""
        return self.lag > 0 or self.trains_apart

    # Facts for learners.

    @property
    def way(self) -> tuple[object, ...]:
        """What decides between near and far strategies: the kind, and the settings that change its transfers most."""
        return self.kind, self.route

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        """All values of `way`."""
        return tuple(itertools.product((kind,), TOPOLOGIES))

    @property
    def shares(self) -> tuple[str, ...]:
        """The features that a message's bytes count for, by name.

        Learned simulators that ship know the features of the kinds that ship, and leave out others.
        """
        return ()

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        """All names that `shares` may have, in the order in which learned simulators read them."""
        return ()
