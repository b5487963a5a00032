"""`tpe` and `nsga2`: Optuna's samplers over styles of strategies.

Each proposal builds a study in memory from the history, in which every strategy counts as its nearest style. It then
asks Optuna's sampler for the next style. `tpe` minimises time only, `nsga2` time and memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.history import HistoryReader, Sourced, TriedStrategy, new_or_sampled, seen_ids
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.style import Style, Styles
from autosync.strategy.space import Space

NUM_STARTUP = 8
POPULATION = 12
GENERATION_ATTRIBUTE = "NSGAIISampler:generation"
MAX_AWAY = 4
MAX_TRIES = 40
"""The number of styles after which the sampler is not used any more. After each `MAX_AWAY` styles that give only known
strategies, the strategies get one more random change."""

_Outcomes = Sequence[TriedStrategy]


class StyleSampler:
    """Proposes the suggestions of one of Optuna's samplers."""

    def __init__(
        self, ground: Ground, name: str, make_sampler: Callable[[int], BaseSampler], *, minds_memory: bool
    ) -> None:
        self._ground = ground
        self._name = name
        self._make_sampler = make_sampler
        self._minds_memory = minds_memory
        self._reader = HistoryReader()
        self._styles = Styles(Space(model=ground.model, cluster=ground.cluster, limits=ground.limits))
        self._distributions = _distributions(self._styles)

    @property
    def name(self) -> str:
        return self._name

    @property
    def round_size(self) -> int:
        return 1

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        return new_or_sampled(self._ground, self._suggested(outcomes, rng), count, seen, rng)

    def _suggested(self, outcomes: _Outcomes, rng: random.Random) -> Iterator[Sourced]:
        study = self._study(outcomes, rng.randrange(2**32))
        domain = self._ground.domain
        for tries in range(MAX_TRIES):
            trial = study.ask(self._distributions)
            strategy = domain.nearest(self._styles.strategy(_style(trial.params)))
            for _ in range(tries // MAX_AWAY):
                strategy = domain.mutate(strategy, rng)
            yield self._name, strategy

    def _study(self, outcomes: _Outcomes, seed: int) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = [StudyDirection.MINIMIZE] * (2 if self._minds_memory else 1)
        study = optuna.create_study(directions=directions, sampler=self._make_sampler(seed))
        num_complete = 0
        for one in outcomes:
            if one.strategy.stages:
                # No style has stages.
                continue
            values = self._values(one)
            generation = num_complete // POPULATION
            num_complete += values is not None
            study.add_trial(
                create_trial(
                    state=TrialState.FAIL if values is None else TrialState.COMPLETE,
                    values=values,
                    params=asdict(self._styles.style(one.strategy)),
                    distributions=self._distributions,
                    system_attrs={GENERATION_ATTRIBUTE: generation},
                )
            )
        return study

    def _values(self, outcome: TriedStrategy) -> list[float] | None:
        if outcome.seconds is None or outcome.memory_bytes is None:
            return None
        return [outcome.seconds, float(outcome.memory_bytes)] if self._minds_memory else [outcome.seconds]


def tpe(ground: Ground) -> StyleSampler:
    """Return the proposer with tree-structured Parzen estimators over styles, which minimises time."""

    def make(seed: int) -> BaseSampler:
        return TPESampler(seed=seed, n_startup_trials=NUM_STARTUP)

    return StyleSampler(ground, "tpe", make, minds_memory=False)


def nsga2(ground: Ground) -> StyleSampler:
    """Return the proposer with NSGA-II over styles, which minimises time and the largest rank's peak memory."""

    def make(seed: int) -> BaseSampler:
        return NSGAIISampler(seed=seed, population_size=POPULATION)

    return StyleSampler(ground, "nsga2", make, minds_memory=True)


def _distributions(styles: Styles) -> dict[str, BaseDistribution]:
    low, high = styles.message_bounds
    return {
        "overlap": CategoricalDistribution(styles.overlaps),
        "way": CategoricalDistribution(styles.ways),
        "rows_way": CategoricalDistribution(styles.rows_ways),
        "message_bytes": FloatDistribution(low, high, log=True),
        "part_bytes": FloatDistribution(low, high, log=True),
        "slice_bytes": CategoricalDistribution(styles.slices),
        "num_lanes": IntDistribution(1, styles.num_lanes),
        "by_use": CategoricalDistribution((False, True)),
    }


def _style(parameters: dict[str, object]) -> Style:
    return Style(**parameters)  # type: ignore[arg-type]
