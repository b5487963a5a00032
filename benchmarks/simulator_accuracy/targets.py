"""The targets for judging simulators: combinations of model and cluster with enough measured strategies.

The module also has the combinations whose bounds are checked.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.datasets.dataset import Dataset
from autosync.datasets.facts import Spec, cluster_of_spec, model_of_spec
from autosync.datasets.machine_drift import AGAIN_ORIGIN, Combination, combination_of, flag_drift
from autosync.datasets.schema import Measurement, Record
from autosync.documents import without_file
from autosync.errors import InputError
from autosync.plan.bound import bound
from autosync.plan.bound_terms import rates_of
from autosync.simulators.evaluation import (
    Accuracy,
    Measured,
    accuracy_of,
    mean_accuracy,
    measured_of,
    measured_of_trials,
    noise_of,
)
from autosync.simulators.interface import Simulator
from autosync.simulators.learned.priors import Lot, lots_of_records
from autosync.simulators.learned.trials import teaching
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]
SAMPLED = "sampled"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """One combination with its undisturbed, randomly sampled strategies, each once.

    `noise` is the difference between repeated trials of the same strategy. `again` has repeated trials of some
    strategies. The fastest of many short trials is partly the luckiest, so if a strategy has repeated trials, its first
    one does not count.
    """

    lot: Lot
    records: tuple[Record, ...]
    noise: float
    again: Mapping[str | None, Sequence[Record]]

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.lot.model.name} on {self.lot.cluster.name}"

    @property
    def measured(self) -> Measured:
        """The measurements, with no interval narrower than the noise."""
        trials = [_measurements(self.again.get(one.strategy_id) or [one]) for one in self.records]
        return measured_of_trials(trials, noise=self.noise)

    def rows(self, chosen: Positions) -> Measured:
        """Return the measurements of some strategies."""
        return Measured(*(column[chosen] for column in self.measured))

    def num_told(self, count: int) -> int:
        """Return how many of `count` trials simulators may learn from: at most half of all."""
        return min(count, len(self.records) // 2)

    def draws(self, count: int, draws: int) -> Iterator[tuple[Positions, Positions]]:
        """Yield the strategies to learn from, drawn at random, and all others."""
        told = self.num_told(count)
        for draw in range(draws):
            order = np.random.default_rng([draw, count]).permutation(len(self.records))
            yield order[:told], order[told:]

    def predicted(self, simulator: Simulator, chosen: Positions | None = None) -> Floats:
        """Return a simulator's predictions."""
        records = self.records if chosen is None else [self.records[row] for row in chosen.tolist()]
        return np.array([one.seconds for one in simulator.predict([strategy_of(record) for record in records])])

    def after_trials(self, simulator: Simulator, *, trials: int, draws: int) -> Accuracy:
        """Return a simulator's accuracy after this many trials."""
        found = []
        for told, others in self.draws(trials, draws):
            simulator.learn([self.records[row] for row in told.tolist()])
            found.append(accuracy_of(self.rows(others), self.predicted(simulator, others)))
        return dataclasses.replace(mean_accuracy(found), num_strategies=len(others), num_pairs=found[-1].num_pairs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aside:
    """All measurements of a combination, to check its bound."""

    model: ModelSpec
    cluster: ClusterSpec
    records: tuple[Record, ...]

    def bound(self) -> dict[str, Any] | None:
        """Return whether an exact strategy's whole interval is below the bound, and how far above it the others are.

        All measurements count, including presets, stock DDP and disturbed records, but not those of strategies with
        stages, which have a bound of their own. None if there are no exact ones.
        """
        exact = [
            record
            for record in self.records
            if record.classes == ("exact",) and not (record.strategy or {}).get("stages")
        ]
        measured = measured_of(_measurements(exact))
        if not len(measured.seconds):
            return None
        # Records of specs are replays, which draw rows evenly.
        even_rows = all(record.compute == "replayed" for record in exact)
        found = bound(self.model, self.cluster, rates=rates_of(self.cluster), even_rows=even_rows)
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "seconds": round(found.seconds, 6),
            "term": str(found.largest),
            "num_exact": len(measured.seconds),
            "num_faster": int(np.count_nonzero(measured.high < found.seconds)),
            "fastest_over_bound": round(float(measured.seconds.min() / found.seconds), 4),
            "median_over_bound": round(float(np.median(measured.seconds) / found.seconds), 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Material:
    """A dataset, prepared for judging simulators.

    `lots` are all records to learn from, `targets` those lots with enough random strategies, and `counts` the number of
    random strategies in each lot, by its name. `asides` are all combinations with all their measurements. `noise` is
    the difference between trials of a strategy.
    """

    lots: tuple[Lot, ...]
    targets: tuple[Target, ...]
    counts: Mapping[str, int]
    asides: tuple[Aside, ...]
    noise: float


def material_of(path: Path, *, least: int) -> Material:
    """Return a dataset whose targets are the combinations with at least this many random strategies."""
    source = Dataset(path)
    unreadable: list[object] = []
    records = flag_drift(source.records(unreadable.append), keep=True)
    if unreadable:
        raise InputError(f"{path}: {unreadable[0]}", rule="records that can be read")
    specs = list(source.specs())
    lots, again = lots_of_records(records, specs), _again(records)
    noise = noise_of(records)
    targets, counts = [], {}
    for lot in lots:
        sampled = [record for record in lot.records if record.origin == SAMPLED]
        counts[f"{lot.model.name} on {lot.cluster.name}"] = len(sampled)
        if len(sampled) >= least:
            others = again[combination_of(lot.records[0])]
            targets.append(Target(lot=lot, records=tuple(sampled), noise=noise, again=others))
    if not targets:
        raise InputError(
            f"{path}: no model on a cluster has {least} random strategies that nothing disturbed",
            rule="--least",
            hint=f"the most is {max(counts.values(), default=0)}",
        )
    asides = tuple(_asides(records, specs))
    return Material(lots=tuple(lots), targets=tuple(targets), counts=counts, asides=asides, noise=noise)


def _again(records: Sequence[Record]) -> Mapping[Combination, Mapping[str | None, Sequence[Record]]]:
    """Return by combination and strategy the undisturbed trials that were repeated for a better figure."""
    found: dict[Combination, dict[str | None, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in teaching(records):
        if record.origin == AGAIN_ORIGIN:
            found[combination_of(record)][record.strategy_id].append(record)
    return found


def _asides(records: Sequence[Record], specs: Sequence[Spec]) -> Iterator[Aside]:
    known = {spec.spec_id: spec for spec in specs}
    found: dict[Combination, list[Record]] = defaultdict(list)
    for record in records:
        if record.measurement is not None:
            found[combination_of(record)].append(record)
    for (model, cluster), chosen in sorted(found.items()):
        if model in known and cluster in known:
            yield Aside(
                model=model_of_spec(known[model]),
                cluster=cluster_of_spec(known[cluster]),
                records=tuple(chosen),
            )


def strategy_of(record: Record) -> Strategy:
    """Return the strategy of a record that has one."""
    return parse_strategy(without_file(dict(record.strategy or {})))


def rounded(accuracy: Accuracy) -> dict[str, float | int | None]:
    """Return an accuracy as plain rounded values."""
    found = dataclasses.asdict(accuracy)
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def accuracy_from(plain: dict[str, Any]) -> Accuracy:
    """Return the accuracy of plain values."""
    return Accuracy(**plain)


def _measurements(records: Sequence[Record]) -> list[Measurement]:
    return [record.measurement for record in records if record.measurement is not None]
