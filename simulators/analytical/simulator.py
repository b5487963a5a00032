"""The analytical simulator: closed-form prices, scheduled in one pass, for thousands of strategies a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autosync.datasets.schema import Record
from autosync.plan.measures import measured
from autosync.plan.steps import Site, Template
from autosync.plan.templates import template_of
from autosync.simulators.analytical.kernel import step_seconds
from autosync.simulators.analytical.prices import PriceList
from autosync.simulators.analytical.tables import ELEMENTS, MEASURES, Floats, Given, Integers, Prices, Units
from autosync.simulators.analytical.training import training_of, update_seconds
from autosync.simulators.analytical.units import Variables, Wanted, units_of
from autosync.simulators.costs import Costs, costs_of, local_processors
from autosync.simulators.interface import Prediction
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import canonical_synchroniser
from autosync.strategy.columns import Columns, Numbering
from autosync.strategy.parts import Part
from autosync.strategy.representation import Codec, PartName, Strategy


def open_analytical(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> AnalyticalSimulator:  # noqa: ARG001 - it knows nothing of other models
    """The analytical simulator as the catalogue opens it."""
    return AnalyticalSimulator(model, cluster, costs=costs_of(cluster, num_processors=local_processors(cluster)))


class AnalyticalSimulator:
    """Predicts by prices of messages. `numbering` is that of the columns it is asked about."""

    name = "analytical"

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        *,
        costs: Costs | None = None,
        numbering: Numbering | None = None,
    ) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs or costs_of(cluster)
        self._numbering = numbering or Numbering(model)
        self._site = Site(model, cluster)
        self._list = PriceList(cluster, self._costs, update_seconds=update_seconds(model))
        self._training = training_of(model, self._costs)
        self._variables = _variables(model)
        self._templates: list[Template] = []
        self._template_of: dict[tuple[int, int], int] = {}
        self._prices: Prices | None = None

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """One prediction a strategy, in their order."""
        seconds = self.predict_columns(self.encode(strategies))
        return [Prediction(seconds=one) for one in seconds.tolist()]

    def learn(self, records: Sequence[Record]) -> None:
        """What it knows is what the probe found."""

    def encode(self, strategies: Sequence[Strategy]) -> Columns:
        """Strategies as columns; those of another model are refused."""
        try:
            return self._numbering.encode(strategies)
        except KeyError:
            for strategy in strategies:
                legality.check(strategy, self._model, self._cluster)
            raise

    def predict_columns(self, columns: Columns) -> Floats:
        """The seconds of each strategy; the columns' numbers are those of the simulator's numbering."""
        return step_seconds(self.given(columns))

    def given(self, columns: Columns) -> Given:
        """What the kernel is given."""
        units = self._units(columns)
        assert self._prices is not None
        return Given(self._prices, units, self._training)

    def _units(self, columns: Columns) -> Units:
        num_codecs = len(self._numbering.codecs)
        pairs = columns.synchroniser * num_codecs + columns.codec
        found = np.flatnonzero(np.bincount(pairs, minlength=1))
        numbers = np.full(int(found.max(initial=0)) + 1, -1, dtype=np.int64)
        for pair in found.tolist():
            numbers[pair] = self._number(pair // num_codecs, pair % num_codecs)
        if self._prices is None or len(self._prices.by_slice) < len(self._templates):
            self._prices = self._list.prices(self._templates)
        template = numbers[pairs]
        rows, table = self._measured(columns, template)
        return units_of(columns, self._variables, Wanted(template, rows, table))

    def _number(self, synchroniser: int, codec: int) -> int:
        """The number of a template, which is priced with the others when it is new."""
        number = self._template_of.get((synchroniser, codec))
        if number is None:
            number = self._template_of[synchroniser, codec] = len(self._templates)
            form = canonical_synchroniser(self._numbering.synchronisers[synchroniser], self._cluster)
            encoded = self._numbering.codecs[codec] if self._cluster.num_workers > 1 else None
            self._templates.append(template_of(self._site, form, encoded))
        return number

    def _measured(self, columns: Columns, template: Integers) -> tuple[Integers, Floats]:
        """What parts are in all measures, where their message's template asks for more than their elements."""
        measures = [_measures(one) for one in self._templates]
        asks = np.array([bool(one) for one in measures], dtype=np.bool_)
        num_parts = np.diff(columns.first_part)
        rows = np.full(len(columns.variable), -1, dtype=np.int64)
        table: list[list[float]] = []
        known: dict[tuple[int, ...], int] = {}
        templates = np.repeat(template, num_parts)
        for part in np.flatnonzero(asks[templates]).tolist():
            key = (
                int(templates[part]),
                *[int(column[part]) for column in (columns.variable, columns.axis, columns.begin, columns.end)],
            )
            row = known.get(key)
            if row is None:
                row = known[key] = len(table)
                table.append(self._row(key, measures[key[0]]))
            rows[part] = row
        return rows, np.array(table, dtype=np.float64).reshape(len(table), len(MEASURES))

    def _row(self, key: tuple[int, ...], measures: Sequence[int]) -> list[float]:
        template, variable, axis, begin, end = key
        named = self._model.variables[variable]
        part = Part(PartName(named.name), named, axis, begin, end)
        codec: Codec | None = self._templates[template].codec
        row = [0.0] * len(MEASURES)
        for measure in measures:
            row[measure] = measured(MEASURES[measure], part, part.num_elements, codec, self._cluster.num_workers)
        return row


def _measures(template: Template) -> tuple[int, ...]:
    """The measures that a template asks for, beside elements."""
    steps = (*template.collect.steps, *template.settle.once, *template.settle.each)
    found = {MEASURES.index(step.amount.measure) for step in steps}
    return tuple(sorted(found - {ELEMENTS}))


def _variables(model: ModelSpec) -> Variables:
    most_axes = max([len(variable.shape) for variable in model.variables] + [1])
    rows = np.ones((len(model.variables), most_axes), dtype=np.int64)
    for position, variable in enumerate(model.variables):
        for axis, size in enumerate(variable.shape):
            rows[position, axis] = variable.num_elements // size
    order = sorted(range(len(model.variables)), key=lambda position: (model.variables[position].ready, position))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    item_bytes = [ITEM_BYTES[variable.dtype] for variable in model.variables]
    return Variables(row_elements=rows, item_bytes=np.array(item_bytes, dtype=np.int64), place=place)
