"""Draws strategies aspect by aspect, with the probabilities in these modules and in docs/space.md.

A uniform draw from all strategies would nearly always cut variables into the most parts and merge them without any
pattern. So the whole step first gets a style (mostly one kind of synchroniser, a size for parts, a number of
messages, a codec), and variables and messages follow it with exceptions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import DType, ModelSpec, Variable
from autosync.strategy.codecs import Codec, PowerSGD
from autosync.strategy.parts import Partition, parts_of
from autosync.strategy.representation import Strategy
from autosync.strategy.space.batching_choice import batched, batching_choice
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.choices import Choices, KindTable, Variant
from autosync.strategy.space.cutting import axes_to_cut, draw_partition
from autosync.strategy.space.division import divided, division_of
from autosync.strategy.space.drafts import DraftPiece, StrategyDraft, pieces_of
from autosync.strategy.space.following import draw_following
from autosync.strategy.space.input_choice import input_choice, with_input
from autosync.strategy.space.limits import Limits
from autosync.strategy.space.merging import Merging
from autosync.strategy.space.placement import Placement, bandwidths_of
from autosync.strategy.space.scheduling import draw_lanes, draw_priorities, draw_slices
from autosync.strategy.synchronisers import synchroniser_kinds

P_MIXED = 0.2
"""The share of steps in which each variable draws its own kind of synchroniser."""

P_ALONE_EMBEDDING = 0.85
P_ALONE_LINEAR_STEPS = 0.25
P_ALONE_LINEAR = 0.5
"""Embeddings mostly travel as rows; in a quarter of the steps half of the linear variables travel as factors."""

P_NEVER_CUT = 0.3
P_COUNT_BY_SIZE = 0.8
UNEVEN_WEIGHTS = {0.0: 0.6, 0.3: 0.2, 1.0: 0.2}
SMALLEST_PART = 1 / 256
"""The wanted size of parts is drawn log-uniformly between this share of the model and its largest variable."""

P_CODEC = 0.5
P_CODEC_EVERYWHERE = 0.6
P_SYNCHRONOUS = 0.5
P_ONE_VARIANT = 0.7
"""The share of steps in which messages of one kind share topology, update place, proxy and lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """The settings of a whole step; each probability says what share of the variables or messages follows a setting."""

    main_kind: Mapping[DType, str]
    is_mixed: bool
    p_alone: Mapping[str, float]
    target_part_bytes: float
    p_cut: float
    p_uneven: float
    codec: Codec | None
    p_codec: float
    merging: Merging


_Pool = tuple[DType, str, Codec | None]
"""The dtype, kind of synchroniser and codec of parts that may share messages."""


class Sampler:
    """Draws strategies of one space."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, limits: Limits, choices: Choices) -> None:
        self._limits = limits
        self._choices = choices
        self._division = division_of(model, cluster, limits)
        self._batching = batching_choice(model, cluster, limits)
        self._input = input_choice(model, limits, cluster.backend)
        self._bandwidths = bandwidths_of(cluster)
        self._variables = sorted(model.variables, key=lambda variable: variable.ready)
        self._num_bytes = [variable.num_bytes for variable in self._variables]
        # The weight of each kind as a step's main kind, out of the kinds that the space has for the dtype.
        weights = {kind: synchroniser.weight for kind, synchroniser in synchroniser_kinds().items()}
        self._kind_weights = {
            dtype: {kind: weight for kind, weight in weights.items() if weight and None in table.get(kind, ())}
            for dtype, table in choices.dense_table.items()
        }

    def sample(self, rng: random.Random) -> Strategy:
        """Draw one strategy."""
        style = self._style(rng)
        variants = _Variants(rng)
        placement = Placement(rng, self._bandwidths, sum(self._num_bytes))
        partitions: dict[str, Partition] = {}
        pools: dict[_Pool, list[DraftPiece]] = {}
        drafts: list[StrategyDraft] = []
        for variable, num_bytes in zip(self._variables, self._num_bytes, strict=True):
            partition = self._partition(rng, variable, num_bytes, style)
            if partition is not None:
                partitions[variable.name] = partition
            if self._travels_alone(rng, variable, style):
                table = self._choices.alone_table[variable.kind]
                for piece in pieces_of(variable, partition, _touched_bytes(variable, num_bytes)):
                    setting = placement.place(variants.draw_alone(variable.kind, table), piece.num_bytes)
                    drafts.append(StrategyDraft([piece], setting, variable.dtype))
            else:
                pool = self._pool(rng, variable, partition, style)
                pools.setdefault(pool, []).extend(pieces_of(variable, partition, num_bytes))
        for pool, pieces in pools.items():
            dtype, kind, codec = pool
            found = self._choices.dense_table[dtype][kind][codec]
            for group in style.merging.merge(rng, pieces):
                group_bytes = sum([piece.num_bytes for piece in group])
                drafts.append(StrategyDraft(group, placement.place(variants.draw(pool, found), group_bytes), dtype))
        return self._scheduled(rng, drafts, partitions)

    def _style(self, rng: random.Random) -> _Style:
        total, largest = sum(self._num_bytes), max(self._num_bytes)
        smallest = min(total * SMALLEST_PART, largest)
        is_cut = self._choices.can_cut and rng.random() >= P_NEVER_CUT
        lossy = [codec for codec in self._choices.codecs if codec is not None]
        return _Style(
            main_kind={dtype: draw_weighted(rng, weights) for dtype, weights in self._kind_weights.items() if weights},
            is_mixed=rng.random() < P_MIXED,
            p_alone={
                "embedding": P_ALONE_EMBEDDING,
                "linear": P_ALONE_LINEAR if rng.random() < P_ALONE_LINEAR_STEPS else 0.0,
            },
            target_part_bytes=math.exp(rng.uniform(math.log(smallest), math.log(largest))),
            p_cut=rng.choice((0.5, 1.0)) if is_cut else 0.0,
            p_uneven=draw_weighted(rng, UNEVEN_WEIGHTS),
            codec=rng.choice(lossy) if lossy and rng.random() < P_CODEC else None,
            p_codec=1.0 if rng.random() < P_CODEC_EVERYWHERE else 0.5,
            merging=Merging.draw(rng),
        )

    def _partition(self, rng: random.Random, variable: Variable, num_bytes: int, style: _Style) -> Partition | None:
        share = num_bytes / style.target_part_bytes
        # The larger a variable, the likelier it is cut; with `p_cut` 1, variables above the target size are always cut.
        if not style.p_cut or rng.random() >= style.p_cut * min(1.0, share) or not axes_to_cut(variable):
            return None
        by_size = rng.random() < P_COUNT_BY_SIZE
        return draw_partition(
            rng,
            variable,
            wanted_parts=math.ceil(share) if by_size else _log_uniform_count(rng, self._limits.max_parts),
            p_uneven=style.p_uneven,
            bandwidths=list(self._bandwidths.values()),
            limits=self._limits,
        )

    def _travels_alone(self, rng: random.Random, variable: Variable, style: _Style) -> bool:
        if not self._choices.alone[variable.kind]:
            return False
        return variable.dtype not in style.main_kind or rng.random() < style.p_alone[variable.kind]

    def _pool(self, rng: random.Random, variable: Variable, partition: Partition | None, style: _Style) -> _Pool:
        dtype = variable.dtype
        kind = draw_weighted(rng, self._kind_weights[dtype]) if style.is_mixed else style.main_kind[dtype]
        codec = style.codec
        if codec is not None:
            is_offered = codec in self._choices.dense_table[dtype][kind] and rng.random() < style.p_codec
            if not (is_offered and _fits(codec, variable, partition)):
                codec = None
        return dtype, kind, codec

    def _scheduled(self, rng: random.Random, drafts: list[StrategyDraft], partitions: dict[str, Partition]) -> Strategy:
        drafts.sort(key=lambda draft: draft.pieces[0].ready)
        draw_slices(rng, drafts, self._limits)
        draw_lanes(rng, drafts, self._choices.num_lanes)
        draw_priorities(rng, drafts, self._choices.num_priorities)
        overlap = rng.choice(self._limits.overlaps)
        shares = () if self._division is None else self._division.draw(rng)
        # Last, so that seeds draw on other clusters what they always did.
        draw_following(rng, drafts, self._choices)
        messages = tuple([draft.message() for draft in drafts])
        drawn = divided(Strategy(overlap=overlap, partitions=partitions, messages=messages), shares)
        if self._batching is not None:
            drawn = batched(drawn, self._batching.draw(rng))
        return drawn if self._input is None else with_input(drawn, self._input.draw(rng))


class _Variants:
    """Draws the variants of one step: mostly one for all messages of a pool, sometimes one for each message."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._is_pinned = rng.random() < P_ONE_VARIANT
        self._is_synchronous = rng.random() < P_SYNCHRONOUS
        self._pinned: dict[object, Variant] = {}

    def draw(self, key: object, found: Sequence[Variant]) -> Variant:
        """Draw one of the variants; if the step shares variants, return the one drawn before for this key."""
        variant = self._pinned.get(key)
        if variant is None:
            timely = [v for v in found if not v[0].synchroniser.is_stale] if self._is_synchronous else []
            variant = self._rng.choice(timely or found)
            if self._is_pinned:
                self._pinned[key] = variant
        return variant

    def draw_alone(self, key: str, table: KindTable) -> Variant:
        """Draw a variant for a message of rows or factors: first its kind, then the variant."""
        if key in self._pinned:
            return self._pinned[key]
        kind = self._rng.choice(list(table))
        return self.draw(key, table[kind][None])


def _log_uniform_count(rng: random.Random, most: int) -> int:
    """Draw a number from 2 to `most`, log-uniformly, so that few and many are equally likely."""
    return round(2 * math.exp(rng.random() * math.log(max(most, 2) / 2)))


def _touched_bytes(variable: Variable, num_bytes: int) -> float:
    """Return the bytes of an embedding's touched rows; for other variables the dense size.

    (Factors have no server, so their size is not needed.)
    """
    if variable.kind != "embedding" or variable.touched_rows is None:
        return num_bytes
    return num_bytes * variable.touched_rows / variable.shape[0]


def _fits(codec: Codec, variable: Variable, partition: Partition | None) -> bool:
    return not isinstance(codec, PowerSGD) or all(
        part.smaller_side > codec.rank for part in parts_of(variable, partition)
    )
