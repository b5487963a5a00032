"""The class `Space`: the strategies of one model on one cluster (with its backend) within limits."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, field, replace

from autosync.errors import DoesNotApplyError, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Overlap, Strategy
from autosync.strategy.space.batching_choice import batching_choice
from autosync.strategy.space.choices import Choices, find_choices
from autosync.strategy.space.counting import log10_size
from autosync.strategy.space.crossover import cross
from autosync.strategy.space.division import division_of
from autosync.strategy.space.editing import make_room
from autosync.strategy.space.input_choice import input_choice
from autosync.strategy.space.limits import Limits
from autosync.strategy.space.mutation import Mutator
from autosync.strategy.space.placement import bandwidths_of
from autosync.strategy.space.sampling import Sampler
from autosync.strategy.space.stage_space import StageSpace
from autosync.strategy.stage_rules import STAGE_ROUTES, why_undivided
from autosync.strategy.synchronisers.all_reduce import PLAIN

P_STAGES = 0.15
"""The share of samples with stages, where the space has such strategies."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """All strategies that are legal for a model on a cluster, within limits.

    All draws use the random generator that they are given: the same seed makes the same strategy, in any process. Drawn
    strategies are always legal and within the limits. `mutate` and `crossover` accept any legal strategy, also one
    outside the limits (such as a preset), and add nothing that is outside the limits.
    """

    model: ModelSpec
    cluster: ClusterSpec
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        # Raises an error now if the space has no strategy.
        _ = self.choices

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """The overlaps within the limits that are legal for the model's optimizer."""
        legal = tuple(one for one in self.limits.overlaps if one == "backward" or self.model.optimizer.updates_apart)
        if not legal:
            what = f"overlap forward with {self.model.optimizer.name}"
            rule = "it needs an optimizer that updates each variable by itself"
            raise DoesNotApplyError([Problem(what=what, rule=rule, path=("limits", "overlaps"))])
        return legal

    @functools.cached_property
    def _legal_limits(self) -> Limits:
        """The limits without slice sizes and overlaps that are legal for no strategy of the model."""
        smallest = legality.smallest_slice_bytes(self.model)
        sizes = tuple(size for size in self.limits.slice_bytes if size >= smallest)
        return replace(self.limits, slice_bytes=sizes, overlaps=self.overlaps)

    @functools.cached_property
    def choices(self) -> Choices:
        """Every synchroniser, with every codec, that messages may have."""
        return find_choices(self.model, self.cluster, self._legal_limits)

    @functools.cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.model, self.cluster, self._legal_limits, self.choices)

    @functools.cached_property
    def _mutator(self) -> Mutator:
        return Mutator(self.model, self.cluster, self._legal_limits, self.choices)

    @property
    def why_undivided(self) -> str:
        """Why the space has no strategies with stages; empty if it may have some."""
        if not self.limits.stages:
            return "the limits leave out stages"
        if PLAIN.kind not in self.limits.synchronisers:
            return "the limits leave out all_reduce, by which the ranks of a stage add up their gradients"
        if "backward" not in self.limits.overlaps:
            return "the limits leave out overlap backward, the only one of strategies with stages"
        if not set(STAGE_ROUTES).intersection(self.limits.topologies):
            return f"the limits leave out all topologies of strategies with stages: {', '.join(STAGE_ROUTES)}"
        return why_undivided(self.model, self.cluster)

    @functools.cached_property
    def stages(self) -> StageSpace | None:
        """The strategies with stages; None if the space has none."""
        if self.why_undivided:
            return None
        room = make_room(self.model, bandwidths_of(self.cluster), self._legal_limits, self.choices)
        return StageSpace(self.model, self.cluster, room)

    @functools.cached_property
    def _log10_size(self) -> float:
        division = division_of(self.model, self.cluster, self._legal_limits)
        more = 0.0 if division is None else division.log10_size()
        batching = batching_choice(self.model, self.cluster, self._legal_limits)
        more += 0.0 if batching is None else batching.log10_size()
        reads = input_choice(self.model, self._legal_limits, self.cluster.backend)
        more += 0.0 if reads is None else reads.log10_size()
        whole = log10_size(self.model, self._legal_limits, self.choices) + more
        if self.stages is None:
            return whole
        divided = self.stages.log10_size()
        return max(whole, divided) + math.log10(1 + 10 ** -abs(whole - divided))

    def problems(self, strategy: Strategy) -> list[Problem]:
        """Return why a strategy is not in the space: the rules that it breaks, or else the limits that it exceeds."""
        found = legality.problems(strategy, self.model, self.cluster)
        if found:
            return found
        shapes = {variable.name: variable.shape for variable in self.model.variables}
        return list(self.limits.problems(strategy, shapes))

    def contains(self, strategy: Strategy) -> bool:
        """Whether a strategy is legal and within the limits."""
        return not self.problems(strategy)

    def sample(self, rng: random.Random) -> Strategy:
        """Draw a strategy, aspect by aspect (docs/space.md has the probabilities)."""
        if self.stages is not None and rng.random() < P_STAGES:
            drawn = self.stages.sample(rng)
            if drawn is not None:
                return drawn
        return self._sampler.sample(rng)

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """Return a strategy that differs in one aspect of one message, of one variable or of the whole step.

        Its `strategy_id` differs too, unless many tries found no such change, as in a space of one strategy.
        """
        if strategy.stages:
            return strategy if self.stages is None else self.stages.mutate(strategy, rng)
        return self._mutator.mutate(strategy, rng)

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        """Return a strategy that synchronises each variable as one of two parents does.

        If a parent has stages, the child has the stages of a parent.
        """
        if first.stages or second.stages:
            if self.stages is None:
                return first if first.stages else second
            return self.stages.cross(first, second, rng)
        return cross(first, second, self.model, rng)

    def log10_size(self) -> float:
        """Return the decimal logarithm of the number of strategies, counted as docs/space.md says."""
        return self._log10_size
