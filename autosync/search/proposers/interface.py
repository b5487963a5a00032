"""What a proposer is: it looks at what was tried and says what to try next.

A proposer searches a *domain*: the space of all strategies that may be tried, or the pool of a recorded study where a
search is replayed. Proposers are opened by name (`catalogue`), and whoever writes one holds it against
`autosync.testing.proposers`.
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
    """What may be proposed, and ways to move in it.

    Every draw takes its chance from the generator it is given, and from nothing else.
    """

    def sample(self, rng: random.Random) -> Strategy:
        """A strategy drawn from all of the domain."""

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """A strategy near this one; mostly another."""

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        """A strategy that has something of both."""

    def nearest(self, strategy: Strategy) -> Strategy:
        """What stands for a strategy here: itself in a space, the member most like it in a pool."""

    def contains(self, strategy: Strategy) -> bool:
        """Whether a strategy may be tried: the other methods may return some that may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a proposer is opened on.

    `limits` are those of the space that the domain is of. `known` are the strategies that have a name (presets), all of
    them in the domain. `simulator` predicts; who asks it tells it first what was measured (`learn`). `num_simulated` is
    how many strategies it may be asked about in a round; `screen`, where there is one, is quicker and less precise, and
    may be asked about `num_screened`.
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


class Proposer(Protocol):
    """Proposes strategies of one domain.

    One thread uses it. It may keep what it has computed, but no truth: the same history, count, generator and taken
    strategies give the same proposals, whatever was asked before, so that a study goes on after any interruption.
    """

    @property
    def name(self) -> str:
        """What it is called where proposers are listed."""

    @property
    def round_size(self) -> int:
        """How many it likes to be asked for at a time."""

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        """The next strategies to try, at most `count`, the most promising first; fewer where nothing new is left.

        `history` has all finished trials of the study in their order, failures and stock DDP's among them. `taken` are
        the ids of strategies that are being tried elsewhere. What is proposed is in the domain, in neither of the two,
        and no strategy comes twice.
        """
