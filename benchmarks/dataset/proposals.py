"""The strategies that a campaign measures for one combination; each is new, and depends on the earlier ones.

First come stock DDP and the presets, then strategies by the mix of the plan. The next strategy depends on the seed, the
combination and its measurements, so an interrupted campaign continues as if it had not been interrupted.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosync import jsonio
from autosync.datasets.facts import plan_facts
from autosync.datasets.machine_drift import AGAIN_ORIGIN, REFERENCE_ORIGIN
from autosync.datasets.schema import PlanFacts, Record
from autosync.documents import without_file
from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.runtime.session.support import unsupported
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import parse_strategy
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from benchmarks.dataset.campaign_plan import Campaign, Combination, Source

MAX_DRAWS = 300
REFERENCE_PRESET = "ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A strategy to measure and the facts of its plan; torch's own DDP has neither."""

    candidate: Candidate
    facts: PlanFacts | None


def has_trees(strategy: Strategy) -> bool:
    """Return whether some message travels over `levels`, or over trees that are written out."""
    return any(getattr(message.synchroniser, "topology", None) in ("levels", "trees") for message in strategy.messages)


class Proposals:
    """The strategies of one combination."""

    def __init__(self, campaign: Campaign, combination: Combination) -> None:
        self._campaign = campaign
        self._combination = combination
        self._model, self._cluster = combination.model, combination.cluster
        self._space = Space(model=self._model, cluster=self._cluster, limits=campaign.limits)
        self.reference = self._proposal(REFERENCE_ORIGIN, self._preset(REFERENCE_PRESET))
        assert self.reference.facts is not None, "the reference is a strategy of ours"
        self._slowest_seconds = campaign.screen.slowest * (self._model.step_seconds + self.reference.facts.wire_seconds)
        self._beginning = [Proposal(candidate=STOCK_DDP, facts=None), *self._presets()]
        self._strategies: dict[str, Strategy] = {}

    def next(self, records: Sequence[Record]) -> Proposal | None:
        """Return the strategy after these records of the combination; None if nothing new is left.

        The records exclude references.
        """
        number = len(records)
        if number < len(self._beginning):
            return self._beginning[number]
        seen = {record.strategy_id for record in records} | {self.reference.candidate.strategy_id}
        rng = random.Random(self._seed(number))
        first = self._source(number - len(self._beginning))
        for source in dict.fromkeys((first, "sampled")):
            for strategy in self._drawn(source, records, rng):
                if strategy_id(strategy, self._model, self._cluster) in seen:
                    continue
                proposal = self._admitted(source, strategy)
                if proposal is not None:
                    return proposal
        return None

    def again(self, record: Record) -> Proposal:
        """Return the strategy of a record once more."""
        return self._proposal(AGAIN_ORIGIN, self._strategy(record))

    def mended(self, record: Record) -> Proposal:
        """Return the strategy of a record once more, so that a better trial can replace the record."""
        if record.strategy_id is None:
            return Proposal(candidate=STOCK_DDP, facts=None)
        return self._proposal(record.origin, self._strategy(record))

    def _seed(self, number: int) -> str:
        return jsonio.content_hash([self._campaign.seed, *self._combination.key, number])

    def _source(self, number: int) -> Source:
        """Return the source of strategy `number`. Each cycle has all shares of the mix, in a random order."""
        cycle = [source for source, share in sorted(self._combination.mix.items()) for _ in range(share)]
        rng = random.Random(jsonio.content_hash([self._campaign.seed, *self._combination.key, "mix"]))
        return rng.sample(cycle, len(cycle))[number % len(cycle)]

    def _preset(self, name: str) -> Strategy:
        return build_preset(name, self._model, self._cluster)

    def _presets(self) -> Iterator[Proposal]:
        seen = {self.reference.candidate.strategy_id}
        for name in preset_names():
            with contextlib.suppress(DoesNotApplyError):
                proposal = self._admitted(f"preset:{name}", self._preset(name))
                if proposal is not None and proposal.candidate.strategy_id not in seen:
                    seen.add(proposal.candidate.strategy_id)
                    yield proposal

    def _drawn(self, source: str, records: Sequence[Record], rng: random.Random) -> Iterator[Strategy]:
        """Yield a limited number of strategies from a source; an unsuitable source falls back to the space."""
        good = self._good(records) or [self._preset(REFERENCE_PRESET)]
        space = self._space
        for _ in range(MAX_DRAWS):
            if source == "mutated":
                yield space.mutate(rng.choice(good), rng)
            elif source == "crossed" and len(good) > 1:
                first, second = rng.sample(good, 2)
                yield space.crossover(first, second, rng)
            elif source == "neighbour":
                near = space.mutate(good[0], rng)
                yield near if rng.random() < 0.5 else space.mutate(near, rng)
            elif source == "divided" and space.stages is not None:
                yield space.stages.sample(rng) or space.sample(rng)
            elif source == "treed":
                drawn = (space.sample(rng) for _ in range(MAX_DRAWS))
                yield next(filter(has_trees, drawn), None) or space.sample(rng)
            else:
                yield space.sample(rng)

    def _good(self, records: Sequence[Record]) -> list[Strategy]:
        """Return the fastest quarter of the measured strategies, at least three, the fastest first."""
        measured = sorted(
            (record.measurement.median_seconds, position)
            for position, record in enumerate(records)
            if record.measurement is not None and record.strategy is not None
        )
        return [self._strategy(records[position]) for _, position in measured[: max(3, len(measured) // 4)]]

    def _strategy(self, record: Record) -> Strategy:
        assert record.strategy_id is not None, "asked of strategies of ours"
        found = self._strategies.get(record.strategy_id)
        if found is None:
            found = parse_strategy(without_file(_plain(record.strategy)))
            self._strategies[record.strategy_id] = found
        return found

    def _admitted(self, origin: str, strategy: Strategy) -> Proposal | None:
        """Return the strategy as a proposal, unless the engine cannot run it or the plan's screen keeps it out."""
        if not set(strategy.classes) <= {"exact", *self._campaign.limits.allow}:
            return None
        plan = lower(strategy, self._model, self._cluster)
        if unsupported(plan):
            return None
        facts = plan_facts(plan, self._cluster)
        kept_out = self._campaign.screen.keeps_out(
            facts, compute_seconds=self._model.step_seconds, slowest_seconds=self._slowest_seconds
        )
        return None if kept_out else self._proposal(origin, strategy, facts)

    def _proposal(self, origin: str, strategy: Strategy, facts: PlanFacts | None = None) -> Proposal:
        candidate = Candidate(
            origin=origin, strategy=strategy, strategy_id=strategy_id(strategy, self._model, self._cluster)
        )
        known = facts or plan_facts(lower(strategy, self._model, self._cluster), self._cluster)
        return Proposal(candidate=candidate, facts=known)


def _plain(fields: Mapping[str, object] | None) -> object:
    return dict(fields or {})
