"""What simulators are judged by: combinations of model and cluster with enough measured strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.datasets.drift import combination_of, flag_drift
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.sources import Source
from autosync.documents import Document
from autosync.errors import InputError
from autosync.plan.bound import bound, rates_of
from autosync.simulators.evaluation import (
    Accuracy,
    Measured,
    accuracy_of,
    is_disturbed,
    mean_accuracy,
    measured_of,
    noise_of,
)
from autosync.simulators.interface import Simulator
from autosync.simulators.learned.priors import Lot, lots_of_records
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]
SAMPLED = "sampled"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """One combination: its randomly sampled strategies, undisturbed ones and others. `noise`: between trials."""

    lot: Lot
    records: tuple[Record, ...]
    disturbed: tuple[Record, ...]
    noise: float

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.lot.model.name} on {self.lot.cluster.name}"

    @property
    def measured(self) -> Measured:
        """What was measured, no interval narrower than the noise."""
        return measured_of(_measurements(self.records), noise=self.noise)

    def rows(self, chosen: Positions) -> Measured:
        """What was measured of some of them."""
        return Measured(*(column[chosen] for column in self.measured))

    def draws(self, count: int, draws: int) -> Iterator[tuple[Positions, Positions]]:
        """Strategies that are told, drawn by lot, and all others; half of all are told at the most."""
        for draw in range(draws):
            order = np.random.default_rng([draw, count]).permutation(len(self.records))
            told = min(count, len(order) // 2)
            yield order[:told], order[told:]

    def predicted(self, simulator: Simulator, chosen: Positions | None = None) -> Floats:
        """What a simulator says of them."""
        records = self.records if chosen is None else [self.records[row] for row in chosen.tolist()]
        return np.array([one.seconds for one in simulator.predict([strategy_of(record) for record in records])])

    def accuracy_on_disturbed(self, simulator: Simulator) -> Accuracy:
        """How good it is on records that were disturbed."""
        predicted = np.array([one.seconds for one in simulator.predict([strategy_of(one) for one in self.disturbed])])
        return accuracy_of(measured_of(_measurements(self.disturbed), noise=self.noise), predicted)

    def after_trials(self, simulator: Simulator, *, trials: int, draws: int) -> Accuracy:
        """How good a simulator is when it was told so many trials."""
        found = []
        for told, others in self.draws(trials, draws):
            simulator.learn([self.records[row] for row in told.tolist()])
            found.append(accuracy_of(self.rows(others), self.predicted(simulator, others)))
        return dataclasses.replace(mean_accuracy(found), num_strategies=len(others), num_pairs=found[-1].num_pairs)

    def bound(self) -> dict[str, Any]:
        """Whether an exact strategy, interval and all, is faster than its bound; and how far above it they are."""
        model, cluster = self.lot.model, self.lot.cluster
        found = bound(model, cluster, rates=rates_of(cluster))
        exact = [record for record in self.lot.records if record.classes == ("exact",)]
        measured = measured_of(_measurements(exact))
        faster = measured.high < found.seconds
        return {
            "seconds": round(found.seconds, 6),
            "term": str(found.largest),
            "num_exact": len(exact),
            "num_faster": int(np.count_nonzero(faster)),
            "fastest_over_bound": round(float(measured.seconds.min() / found.seconds), 4),
            "median_over_bound": round(float(np.median(measured.seconds) / found.seconds), 4),
        }


def targets_of_lots(path: Path, *, least: int) -> tuple[list[Lot], list[Target], float]:
    """All lots of a dataset, those to be judged by, and how far off one trial is from another."""
    source = Source(path)
    unreadable: list[object] = []
    records = flag_drift(source.records(unreadable.append))
    if unreadable:
        raise InputError(f"{path}: {unreadable[0]}", rule="records that can be read")
    lots = lots_of_records(records, source.specs())
    noise = noise_of(records)
    targets = []
    for lot in lots:
        sampled = _each_once([record for record in lot.records if record.origin == SAMPLED])
        if len(sampled) >= least:
            key = combination_of(lot.records[0])
            others = [one for one in records if combination_of(one) == key and one.origin == SAMPLED]
            disturbed = tuple([one for one in others if one.strategy is not None and is_disturbed(one)])
            targets.append(Target(lot=lot, records=tuple(sampled), disturbed=disturbed, noise=noise))
    if not targets:
        most = max((sum(one.origin == SAMPLED for one in lot.records) for lot in lots), default=0)
        raise InputError(
            f"{path}: no model on a cluster has {least} sampled strategies", rule="--least", hint=f"the most is {most}"
        )
    return lots, targets, noise


def strategy_of(record: Record) -> Strategy:
    """The strategy of a record that has one."""
    return parse_strategy(Document(file="", value=dict(record.strategy or {}), lines={}))


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
