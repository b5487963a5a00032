"""The interface of proposers: a proposer reads the history of a study and suggests the next strategies to try.

A proposer searches a *domain*: the space of all strategies that may be tried or, in a replayed search, the recorded
pool. Proposers are opened by name (`catalogue`). The author of a proposer tests it with `autosync.testing.proposers`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.space.limits import Limits


class Domain(Protocol):
    """The strategies that may be proposed, and the ways to move among them.

    Every draw uses the given generator and no other source of chance.
    """

    def sample(self, rng: random.Random) -> Strategy:
        """Return a random strategy of the domain."""

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """Return a strategy near this one, usually a different one."""

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        """Return a strategy that combines aspects of both."""

    def nearest(self, strategy: Strategy) -> Strategy:
        """Return the strategy itself in a space, or the most similar member of a pool."""

    def contains(self, strategy: Strategy) -> bool:
        """Return whether a strategy may be tried. The other methods may return strategies that may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Everything that a proposer needs to search.

    `limits` are the limits of the domain's space. `known` are the strategies with a name (presets), all in the domain.
    `simulator` predicts; before its predictions are used, its user gives it the measurements (`learn`). `num_simulated`
    is the number of strategies that it may predict in a round. `screen`, if there is one, is faster and less precise,
    and may predict `num_screened`. Before the first measurement, a search may start `num_starts` times, each with these
    numbers. `divided` are divisions of the model into stages: the partitioner's, the fastest by its own estimate first,
    and some into two stages.
    """

    model: ModelSpec
    cluster: ClusterSpec
    domain: Domain
    limits: Limits
    known: tuple[Candidate, ...]
    simulator: Simulator
    num_simulated: int
    screen: Simulator | None = None
    num_screened: int = 0
    num_starts: int = 1
    divided: tuple[Candidate, ...] = ()


class Proposer(Protocol):
    """Proposes strategies of one domain.

    Only one thread uses a proposer. It may cache results but must keep no other state: the same history, count,
    generator and taken strategies give the same proposals, whatever was proposed before. So a study can continue after
    any interruption.
    """

    @property
    def name(self) -> str:
        """The name in lists of proposers."""

    @property
    def round_size(self) -> int:
        """The preferred number of strategies in a call of `propose`."""

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        """Return the next strategies to try, at most `count`, the most promising first; fewer if nothing new is left.

        `history` has all finished trials of the study in their order, also failures and trials of stock DDP. `taken`
        has the ids of strategies that are being tried elsewhere. Every proposal is in the domain, in neither `history`
        nor `taken`, and occurs once.
        """
