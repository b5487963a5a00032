"""The likeness of strategies: each strategy becomes a vector, and similar strategies have near vectors.

The vector says how the bytes of each quarter of the backward pass travel (the synchroniser, the sizes of messages and
slices), which nodes serve, how the step is scheduled, the shares of the batch where devices compute at different
speeds, the input settings where a task has a dataset, and the stages where the model can be cut. Two strategies that
treat the same bytes in the same way are near, however they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shares import weights_of
from autosync.strategy.stages import PipelineSchedule
from autosync.strategy.synchronisers import synchroniser_kinds

Floats = npt.NDArray[np.float64]

NUM_QUARTERS = 4
SIZE_UNIT = math.log(8.0)
"""The unit of sizes in vectors. A factor of eight in a message's size counts as much as another way to synchronise
it."""

FAR = 6.0
"""The distance between strategies with and without stages: the errors of their predictions have other causes."""
_NUM_OF_STAGES = 6
_NUM_OF_INPUT = 6
_SCHEDULE_PLACES: Mapping[PipelineSchedule, float] = {
    "gpipe": 0.7,
    "1f1b": 0.0,
    "zero_bubble": -0.35,
    "interleaved": -0.7,
    "2bw": -1.0,
    "stashing": -1.2,
}

_WAYS = tuple(way for kind, synchroniser in synchroniser_kinds().items() for way in synchroniser.ways(kind))
_WAY_INDEX = {way: index for index, way in enumerate(_WAYS)}
_CODECS = ("cast", "int8", "top_k", "power_sgd", "sign")
_SIZE, _SLICE_SIZE = len(_WAYS), len(_WAYS) + 1
_BLOCK = len(_WAYS) + 2


class Likeness:
    """Turns strategies for one model on one cluster into vectors."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._variables = {variable.name: variable for variable in model.variables}
        self._lengths = {variable.name: variable.shape for variable in model.variables}
        self._total = float(sum(variable.num_bytes for variable in model.variables))
        self._nodes = {node.name: index for index, node in enumerate(cluster.nodes)}
        self._whole: dict[str, tuple[int, float]] = {}
        before = 0.0
        for variable in sorted(model.variables, key=lambda variable: variable.ready):
            quarter = min(int(NUM_QUARTERS * (before + variable.num_bytes / 2) / self._total), NUM_QUARTERS - 1)
            self._whole[variable.name] = quarter * _BLOCK, float(variable.num_bytes)
            before += variable.num_bytes
        self._num_workers = cluster.num_workers if cluster.is_uneven else 0
        self._num_divided = cluster.num_workers if model.timeline.cuts else 0
        self._num_segments = len(model.timeline.forward)
        self._graphs = model.graphs
        self._usual_input = None if model.input is None else model.input.usual
        more = self._num_workers + (2 if model.graphs is not None else 0) + (_NUM_OF_INPUT if self._usual_input else 0)
        more += _NUM_OF_STAGES + self._num_divided if self._num_divided else 0
        self._length = NUM_QUARTERS * _BLOCK + len(self._nodes) + len(_CODECS) + 5 + more

    def vectors(self, strategies: Sequence[Strategy]) -> Floats:
        """Return a matrix with one row for each strategy."""
        rows = [self._vector(strategy) for strategy in strategies]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self._length)

    def num_pieces(self, strategy: Strategy) -> int:
        """Return the number of pieces that travel: slices, or whole messages."""
        count = 0
        for message in strategy.messages:
            if message.slice_bytes is None:
                count += 1
            else:
                num_bytes = sum(self._part(part, strategy)[1] for part in message.parts)
                count += math.ceil(num_bytes / message.slice_bytes)
        return count

    def _vector(self, strategy: Strategy) -> list[float]:
        row = [0.0] * self._length
        servers = NUM_QUARTERS * _BLOCK
        codecs = servers + len(self._nodes)
        for message in strategy.messages:
            parts = [self._part(part, strategy) for part in message.parts]
            num_bytes = sum([weight for _, weight in parts])
            synchroniser = message.synchroniser
            way = _WAY_INDEX[synchroniser.way]
            slice_bytes = num_bytes if message.slice_bytes is None else min(message.slice_bytes, num_bytes)
            size, slice_size = _units(num_bytes), _units(slice_bytes)
            for block, weight in parts:
                share = weight / self._total
                row[block + way] += share * (NUM_QUARTERS / 2)
                row[block + _SIZE] += share * size
                row[block + _SLICE_SIZE] += share * slice_size
            if synchroniser.served_by is not None:
                row[servers + self._nodes[synchroniser.served_by]] += num_bytes / self._total
            if message.codec is not None:
                row[codecs + _CODECS.index(message.codec.kind)] += num_bytes / self._total
        divided = self._shares(strategy) + self._batching(strategy) + self._input(strategy)
        divided += self._stages(strategy)
        row[codecs + len(_CODECS) :] = self._schedule(strategy) + divided
        return row

    def _part(self, text: str, strategy: Strategy) -> tuple[int, float]:
        """Return the index where the block of the part's quarter begins, and the part's bytes."""
        whole = self._whole.get(text)
        if whole is not None:
            return whole
        name = PartName.parse(text)
        block, weight = self._whole[name.variable]
        sizes = strategy.partitions[name.variable].sizes
        return block, weight * sizes[name.index] / self._lengths[name.variable][strategy.partitions[name.variable].axis]

    def _schedule(self, strategy: Strategy) -> list[float]:
        """Return the numbers that describe the whole step."""
        messages = strategy.messages
        num_lanes = strategy.num_lanes
        return [
            0.7 if strategy.overlap == "forward" else 0.0,
            math.log(len(messages)) / SIZE_UNIT / 2,
            math.log(1 + sum(len(partition.sizes) for partition in strategy.partitions.values())) / SIZE_UNIT / 2,
            math.log2(num_lanes) / 2,
            0.5 * self._follows_use(messages) if num_lanes > 1 else 0.0,
        ]

    def _shares(self, strategy: Strategy) -> list[float]:
        """Return the logarithm of each rank's share, compared with an even one; nothing if devices are equally fast."""
        if not self._num_workers:
            return []
        weights = weights_of(strategy.shares) if strategy.shares else (1.0,) * self._num_workers
        return [math.log2(weight) / 2 for weight in weights]

    def _batching(self, strategy: Strategy) -> list[float]:
        """Return the logarithm of the policy's time, and how examples are dealt; nothing if no graph changes."""
        if self._graphs is None:
            return []
        batching = strategy.batching or self._graphs.own
        factor = self._graphs.factor(replace(batching, dealing="count"), 1)
        return [math.log2(factor), FAR / 2 if batching.dealing == "cost" else 0.0]

    def _input(self, strategy: Strategy) -> list[float]:
        """Return the input settings, numbers as logarithms; nothing if the task has no dataset."""
        if self._usual_input is None:
            return []
        one = strategy.input or self._usual_input
        return [
            math.log2(1 + one.num_workers) / 2,
            math.log2(one.prefetch_factor) / 4 if one.num_workers else 0.0,
            math.log2(one.read_bytes) / 6,
            math.log2(one.read_concurrency) / 6,
            0.5 if one.right_of_way == "gradients" else 0.0,
            0.5 if one.right_of_way == "reads" else 0.0,
        ]

    def _stages(self, strategy: Strategy) -> list[float]:
        """Return how the work is divided, and where each rank's first stage begins; nothing if no model can be cut."""
        if not self._num_divided:
            return []
        begins = [0.0] * self._num_divided
        if not strategy.stages:
            return [0.0] * _NUM_OF_STAGES + begins
        for stage in reversed(strategy.stages):
            for rank in stage.ranks:
                begins[rank] = stage.before / self._num_segments
        of_step = [
            FAR,
            math.log2(len(strategy.stages)) / 2,
            math.log2(strategy.microbatches) / 3,
            _SCHEDULE_PLACES[strategy.schedule],
            math.log2(1 + strategy.slack) / 4,
            0.7 if strategy.recompute else 0.0,
        ]
        return of_step + begins

    def _follows_use(self, messages: Sequence[Message]) -> float:
        """Return how closely priorities follow the order of use: their correlation, or 0 if all are equal."""
        priorities = [message.priority for message in messages]
        if len(set(priorities)) == 1:
            return 0.0
        uses = [self._variables[PartName.parse(message.parts[0]).variable].use for message in messages]
        if len(set(uses)) == 1:
            return 0.0
        return float(np.corrcoef(priorities, uses)[0, 1])


def _units(num_bytes: float) -> float:
    return math.log(max(num_bytes, 1.0)) / SIZE_UNIT
