"""The analytical simulator: closed-form prices, scheduled in one pass, for thousands of strategies a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from autosync.datasets.schema import Record
from autosync.plan.measures import measured
from autosync.plan.steps import Site, Template
from autosync.plan.templates import template_of
from autosync.simulators.analytical.input_charges import InputCharges
from autosync.simulators.analytical.kernel import step_seconds
from autosync.simulators.analytical.prices import MAX_RANKS_APART, PriceList
from autosync.simulators.analytical.tables import ELEMENTS, MEASURES, KernelInputs, ModelStep, Prices, Units
from autosync.simulators.analytical.totals import TOTALS, totals_of
from autosync.simulators.analytical.training import training_of, update_seconds
from autosync.simulators.analytical.units import PartFacts, VariableSizes, units_of
from autosync.simulators.calibration import Calibrated, calibrate, trials_of
from autosync.simulators.interface import Prediction
from autosync.simulators.shared.arrays import Floats, Integers
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.shared.drawn_steps import DrawnSteps
from autosync.simulators.shared.reads import reads_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import Pace, at_pace, paces_of
from autosync.specs.costs import Costs
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import canonical_synchroniser
from autosync.strategy.codecs import Codec
from autosync.strategy.columns import Columns, Numbering
from autosync.strategy.parts import Part, PartName
from autosync.strategy.representation import Strategy

_BATCH = 128
"""The number of strategies whose tables fit into the processor's cache together."""

RowsOf = Callable[[KernelInputs, Sequence[Strategy]], Floats]
"""Computes a row for each of some strategies, from the kernel's inputs for them."""

_MAX_ROWS = 100_000
_MAX_PACES = 1000


def open_analytical(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> AnalyticalSimulator:  # noqa: ARG001 - it knows nothing of other models
    """Return the analytical simulator, for the catalogue."""
    return AnalyticalSimulator(model, cluster)


class AnalyticalSimulator:
    """Predicts from the prices of messages. `numbering` gives the numbers in the columns of strategies."""

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
        self._probed = costs or usual_costs(cluster)
        self._calibrated = Calibrated(costs=self._probed)
        self._numbering = numbering or Numbering(model)
        self._site = Site(model, cluster)
        self._drawn = DrawnSteps(model, cluster)
        self._variables = _variables(model)
        self._templates: list[Template] = []
        self._measures: list[tuple[int, ...]] = []
        self._rows: dict[tuple[int, ...], list[float]] = {}
        self._template_of: dict[tuple[int, int], int] = {}
        self._prices: dict[tuple[int, ...], Prices] = {}
        self._trainings: dict[Pace, ModelStep] = {}
        self._even = self._slowest(())
        self._charges = InputCharges(cluster, self._probed, classes_apart=len(cluster.ranks) <= MAX_RANKS_APART)

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        seconds = self._each(strategies, self._seconds, np.empty(0))
        return [Prediction(seconds=one, spread=self._calibrated.spread) for one in seconds.tolist()]

    def learn(self, records: Sequence[Record]) -> None:
        """Fit the costs to trials without stages, starting from those of the probe."""
        trials = [one for one in trials_of(records, self._model, self._cluster) if not one.strategy.stages]
        self._calibrated = calibrate(self._seconds_if, self._probed, trials)
        self._prices, self._trainings = {}, {}

    def _seconds_if(self, costs: Costs, strategies: Sequence[Strategy]) -> Floats:
        """Return the predictions with these costs."""
        other = AnalyticalSimulator(self._model, self._cluster, costs=costs, numbering=self._numbering)
        return other._each(strategies, other._seconds, np.empty(0))

    def _seconds(self, given: KernelInputs, strategies: Sequence[Strategy]) -> Floats:
        """Return the seconds of a step of each strategy, with its reads."""
        reads = [reads_of(one, self._model, self._cluster) for one in strategies]
        return self._charges.charged(step_seconds(given), given, reads)

    def encode(self, strategies: Sequence[Strategy]) -> Columns:
        """Encode strategies as columns; raise for strategies of another model."""
        try:
            return self._numbering.encode(strategies)
        except KeyError:
            for strategy in strategies:
                legality.check(strategy, self._model, self._cluster)
            raise

    def predict_columns(self, columns: Columns) -> Floats:
        """Return the seconds of each strategy with even shares. The columns use this simulator's numbering.

        Columns have no input settings, so reads are charged only if strategies without settings have the loader's.
        """
        if self._model.use_sample is not None or self._model.input is not None:
            return self._each(self._numbering.decode(columns), self._seconds, np.empty(0))
        return np.concatenate([np.empty(0), *[step_seconds(given) for given in self._given(columns, self._even)]])

    def totals(self, strategies: Sequence[Strategy]) -> Floats:
        """Return the totals of strategies: a row for each, with the columns of `totals.TOTALS`."""
        return self._each(strategies, lambda given, _: totals_of(given), np.empty((0, len(TOTALS))))

    def _each(self, strategies: Sequence[Strategy], function: RowsOf, nothing: Floats) -> Floats:
        """Return a function's rows for strategies, in their order; means, if steps use different variables."""
        return self._drawn.mean_of(strategies, lambda some: self._each_alike(some, function, nothing))

    def _each_alike(self, strategies: Sequence[Strategy], function: RowsOf, nothing: Floats) -> Floats:
        """Return rows for strategies whose steps are all alike; those of one pace are computed together."""
        places: dict[Pace, list[int]] = {}
        for place, strategy in enumerate(strategies):
            is_usual = not strategy.shares and strategy.batching is None
            pace = self._even if is_usual else self._slowest(strategy.shares, strategy.batching)
            places.setdefault(pace, []).append(place)
        rows = [nothing]
        for pace, some in places.items():
            ordered, begin = [strategies[place] for place in some], 0
            for given in self._given(self.encode(ordered), pace):
                end = begin + len(given.units.strategies)
                rows.append(function(given, ordered[begin:end]))
                begin = end
        order = np.argsort(np.array([place for some in places.values() for place in some], dtype=np.int64))
        found: Floats = np.concatenate(rows)[order]
        return found

    def _slowest(self, shares: Sequence[int], batching: GraphBatching | None = None) -> Pace:
        """Return the pace of the slowest passes and of the slowest update: gradients wait for the last rank's."""
        paces = paces_of(self._model, self._cluster, shares, batching)
        return Pace(passes=max(pace.passes for pace in paces), update=max(pace.update for pace in paces))

    def _training(self, pace: Pace) -> ModelStep:
        """Return the model's step at a pace and at the current costs."""
        found = self._trainings.get(pace)
        if found is None:
            if len(self._trainings) > _MAX_PACES:
                self._trainings.clear()
            model = at_pace(self._model, pace)
            found = self._trainings[pace] = training_of(model, self._cluster, self._calibrated.costs)
        return found

    def _given(self, columns: Columns, pace: Pace) -> Iterator[KernelInputs]:
        """Yield the kernel's inputs in batches; one strategy at a time if the classes of ranks depend on it."""
        is_large = len(self._cluster.ranks) > MAX_RANKS_APART
        count = 1 if is_large else _BATCH
        for begin in range(0, len(columns.overlap), count):
            some = _some(columns, begin, min(begin + count, len(columns.overlap)))
            template = place = self._template_numbers(some)
            used = tuple(range(len(self._templates)))
            if is_large:
                found, place = np.unique(template, return_inverse=True)
                used = tuple(found.tolist())
            prices = self._priced(used)
            yield KernelInputs(prices, self._units(some, template, place.astype(np.int64)), self._training(pace))

    def _priced(self, templates: tuple[int, ...]) -> Prices:
        """Return the prices of these templates at the current costs."""
        prices = self._prices.get(templates)
        if prices is None:
            seconds = update_seconds(at_pace(self._model, self._even))
            price_list = PriceList(self._cluster, self._calibrated.costs, update_seconds=seconds)
            prices = price_list.prices([self._templates[number] for number in templates])
            self._prices = {templates: prices}
        return prices

    def _template_numbers(self, columns: Columns) -> Integers:
        """Return the template of each message."""
        num_codecs = len(self._numbering.codecs)
        pairs = columns.synchroniser * num_codecs + columns.codec
        counts = np.bincount(pairs)
        numbers = np.full(len(counts), -1, dtype=np.int64)
        for pair in np.flatnonzero(counts).tolist():
            numbers[pair] = self._number(pair // num_codecs, pair % num_codecs)
        found: Integers = numbers[pairs]
        return found

    def _units(self, columns: Columns, template: Integers, place: Integers) -> Units:
        """Return the units of strategies. `place` has each message's template by its position among the priced ones."""
        rows, table = self._measured(columns, template)
        return units_of(columns, self._variables, PartFacts(place, rows, table))

    def _number(self, synchroniser: int, codec: int) -> int:
        """Return the number of a template. A new one is added, to be priced with the others."""
        number = self._template_of.get((synchroniser, codec))
        if number is None:
            number = self._template_of[synchroniser, codec] = len(self._templates)
            form = canonical_synchroniser(self._numbering.synchronisers[synchroniser], self._cluster)
            encoded = self._numbering.codecs[codec] if self._cluster.num_workers > 1 else None
            self._templates.append(template_of(self._site, form, encoded))
            self._measures.append(_measures(self._templates[-1]))
        return number

    def _measured(self, columns: Columns, template: Integers) -> tuple[Integers, Floats]:
        """Return all measures of those parts whose template needs more than the number of elements."""
        asks = np.array([bool(one) for one in self._measures], dtype=np.bool_)
        rows = np.full(len(columns.variable), -1, dtype=np.int64)
        templates = np.repeat(template, np.diff(columns.first_part))
        asking = np.flatnonzero(asks[templates])
        if len(asking) == 0:
            return rows, np.empty((0, len(MEASURES)))
        described = [
            column[asking] for column in (templates, columns.variable, columns.axis, columns.begin, columns.end)
        ]
        first, rows[asking] = _kinds(described)
        kinds = zip(*[column[first].tolist() for column in described], strict=True)
        if len(self._rows) > _MAX_ROWS:
            self._rows.clear()
        table = [self._rows.get(kind) or self._row(kind) for kind in kinds]
        return rows, np.array(table, dtype=np.float64).reshape(len(table), len(MEASURES))

    def _row(self, kind: tuple[int, ...]) -> list[float]:
        template, variable, axis, begin, end = kind
        named = self._model.variables[variable]
        part = Part(PartName(named.name), named, axis, begin, end)
        codec: Codec | None = self._templates[template].codec
        row = [0.0] * len(MEASURES)
        for measure in self._measures[template]:
            row[measure] = measured(MEASURES[measure], part, part.num_elements, codec, self._cluster.num_workers)
        self._rows[kind] = row
        return row


def _kinds(described: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Return the first position of each distinct row of these columns, and each row's kind."""
    found = np.zeros(len(described[0]), dtype=np.int64)
    first = found
    for column in described:
        _, place = np.unique(column, return_inverse=True)
        # Renumbered after each column, so that numbers stay small.
        _, first, found = np.unique(found * (place.max() + 1) + place, return_index=True, return_inverse=True)
    return first, found


def _measures(template: Template) -> tuple[int, ...]:
    """Return the measures besides elements that a template needs."""
    steps = (*template.collect.steps, *template.settle.once, *template.settle.each)
    found = {MEASURES.index(step.amount.measure) for step in steps}
    return tuple(sorted(found - {ELEMENTS}))


def _variables(model: ModelSpec) -> VariableSizes:
    most_axes = max([len(variable.shape) for variable in model.variables] + [1])
    rows = np.ones((len(model.variables), most_axes), dtype=np.int64)
    for position, variable in enumerate(model.variables):
        for axis, size in enumerate(variable.shape):
            rows[position, axis] = variable.num_elements // size
    order = sorted(range(len(model.variables)), key=lambda position: (model.variables[position].ready, position))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    item_bytes = [ITEM_BYTES[variable.dtype] for variable in model.variables]
    return VariableSizes(row_elements=rows, item_bytes=np.array(item_bytes, dtype=np.int64), place=place)


def _some(columns: Columns, start: int, stop: int) -> Columns:
    """Return the columns of the strategies from `start` to `stop`."""
    first, last = columns.first_message[start], columns.first_message[stop]
    begin, end = columns.first_part[first], columns.first_part[last]
    return Columns(
        overlap=columns.overlap[start:stop],
        first_message=columns.first_message[start : stop + 1] - first,
        synchroniser=columns.synchroniser[first:last],
        codec=columns.codec[first:last],
        priority=columns.priority[first:last],
        lane=columns.lane[first:last],
        slice_bytes=columns.slice_bytes[first:last],
        first_part=columns.first_part[first : last + 1] - begin,
        variable=columns.variable[begin:end],
        number=columns.number[begin:end],
        axis=columns.axis[begin:end],
        begin=columns.begin[begin:end],
        end=columns.end[begin:end],
    )
