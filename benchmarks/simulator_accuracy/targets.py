"""What simulators are judged by: combinations of model and cluster with enough measured strategies.

Beside these: all that bounds are held against.
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
from autosync.plan.bound import bound, rates_of
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
    """One combination: its randomly sampled strategies, each once, that nothing disturbed. `noise`: between trials.

    `again` has other trials of some of them: the fastest of many short ones is partly the luckiest, so where there are
    such its own trial does not count.
    """

    lot: Lot
    records: tuple[Record, ...]
    noise: float
    again: Mapping[str | None, Sequence[Record]]

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.lot.model.name} on {self.lot.cluster.name}"

    @property
    def measured(self) -> Measured:
        """What was measured, no interval narrower than the noise."""
        trials = [_measurements(self.again.get(one.strategy_id) or [one]) for one in self.records]
        return measured_of_trials(trials, noise=self.noise)

    def rows(self, chosen: Positions) -> Measured:
        """What was measured of some of them."""
        return Measured(*(column[chosen] for column in self.measured))

    def num_told(self, count: int) -> int:
        """How many of so many trials can be told: half of all at the most."""
        return min(count, len(self.records) // 2)

    def draws(self, count: int, draws: int) -> Iterator[tuple[Positions, Positions]]:
        """Strategies that are told, drawn by lot, and all others."""
        told = self.num_told(count)
        for draw in range(draws):
            order = np.random.default_rng([draw, count]).permutation(len(self.records))
            yield order[:told], order[told:]

    def predicted(self, simulator: Simulator, chosen: Positions | None = None) -> Floats:
        """What a simulator says of them."""
        records = self.records if chosen is None else [self.records[row] for row in chosen.tolist()]
        return np.array([one.seconds for one in simulator.predict([strategy_of(record) for record in records])])

    def after_trials(self, simulator: Simulator, *, trials: int, draws: int) -> Accuracy:
        """How good a simulator is when it was told so many trials."""
        found = []
        for told, others in self.draws(trials, draws):
            simulator.learn([self.records[row] for row in told.tolist()])
            found.append(accuracy_of(self.rows(others), self.predicted(simulator, others)))
        return dataclasses.replace(mean_accuracy(found), num_strategies=len(others), num_pairs=found[-1].num_pairs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aside:
    """All that was measured of a combination: bounds are held against it."""

    model: ModelSpec
    cluster: ClusterSpec
    records: tuple[Record, ...]

    def bound(self) -> dict[str, Any] | None:
        """Whether an exact strategy, interval and all, is faster than its bound; how far above it they are.

        All that was measured counts: presets, stock DDP and what was disturbed as well. None: nothing exact was.
        """
        exact = [record for record in self.records if record.classes == ("exact",)]
        measured = measured_of(_measurements(exact))
        if not len(measured.seconds):
            return None
        # Records of specs are of replays, which draw rows evenly.
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
    """A dataset as it is judged by.

    `lots` are all that can be learned from, `targets` those of them with enough random strategies, `counts` how many
    each lot has of these, by its name; `asides` are all combinations with whatever was measured. `noise` is how far off
    one trial is from another.
    """

    lots: tuple[Lot, ...]
    targets: tuple[Target, ...]
    counts: Mapping[str, int]
    asides: tuple[Aside, ...]
    noise: float


def material_of(path: Path, *, least: int) -> Material:
    """A dataset, of which combinations with at least so many random strategies are judged by."""
    source = Dataset(path)
    unreadable: list[object] = []
    records = flag_drift(source.records(unreadable.append))
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
    """By combination and strategy the undisturbed trials that were made for a better figure of it."""
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
    """The strategy of a record that has one."""
    return parse_strategy(without_file(dict(record.strategy or {})))


def rounded(accuracy: Accuracy) -> dict[str, float | int | None]:
    """As plain values, in which nobody looks for a tenth digit."""
    found = dataclasses.asdict(accuracy)
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def accuracy_from(plain: dict[str, Any]) -> Accuracy:
    """The other way round."""
    return Accuracy(**plain)


def _measurements(records: Sequence[Record]) -> list[Measurement]:
    return [record.measurement for record in records if record.measurement is not None]


def _each_once(records: Sequence[Record]) -> list[Record]:
    """Each strategy once: a strategy is no pair with itself."""
    return list({record.strategy_id: record for record in records}.values())
