"""Finds the choices of a space: every synchroniser with every codec that is legal and within the limits.

This module repeats no rules of legality: it puts each candidate into a message and checks the message. Synchronisers
that are equal on this cluster (such as a ring and halving-doubling between two ranks) are one choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autosync.errors import DoesNotApplyError, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import DType, ModelSpec, Variable
from autosync.strategy.backends import BACKENDS
from autosync.strategy.canonical import canonical_synchroniser
from autosync.strategy.codecs import Codec, PowerSGD
from autosync.strategy.legality import message_problems
from autosync.strategy.parts import parts_of
from autosync.strategy.representation import Message
from autosync.strategy.space.limits import Limits
from autosync.strategy.synchronisers import synchroniser_kinds
from autosync.strategy.synchronisers.base import Synchroniser


@dataclass(frozen=True, slots=True)
class Setting:
    """A synchroniser with a codec.

    `slices` says whether messages with it may be sliced. Both sides of each part must be larger than `rank`.
    """

    synchroniser: Synchroniser
    codec: Codec | None
    slices: bool
    rank: int = 0

    @property
    def kind(self) -> str:
        """The synchroniser's kind."""
        return self.synchroniser.kind


Variant = tuple[Setting, ...]
"""Settings that differ only in the server, one for each node that can serve; one setting if there is no server."""

KindTable = Mapping[str, Mapping[Codec | None, tuple[Variant, ...]]]
"""Kind of synchroniser -> codec -> variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """All settings of a space.

    `dense` has the settings for messages of any parts of a dtype, `alone` those for messages of one part, by the kind
    of its variable (embedding or linear). The tables have the same settings by kind of synchroniser and codec: those of
    `dense` that follow the cluster's links in `following_table`, the others in `dense_table`.
    """

    dense: Mapping[DType, tuple[Setting, ...]]
    alone: Mapping[str, tuple[Setting, ...]]
    dense_table: Mapping[DType, KindTable]
    following_table: Mapping[DType, KindTable]
    alone_table: Mapping[str, KindTable]
    num_lanes: int
    num_priorities: int
    can_cut: bool
    codecs: tuple[Codec | None, ...]


def find_choices(model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> Choices:
    """Return the choices of a space; raise DoesNotApplyError if a variable has none."""
    found = [_variants(kind, cluster, limits) for kind in synchroniser_kinds() if kind in limits.synchronisers]
    synchronisers = _unique([one for plain, _ in found for one in plain], cluster)
    following = _unique([one for _, links in found for one in links], cluster, but=synchronisers)
    codecs: tuple[Codec | None, ...] = (None,)
    if "lossy" in limits.allow and cluster.num_workers > 1:
        codecs += limits.codecs
    plain: dict[DType, tuple[Setting, ...]] = {}
    linked: dict[DType, tuple[Setting, ...]] = {}
    for dtype in dict.fromkeys(variable.dtype for variable in model.variables):
        # Rules of dense messages depend on a part's dtype, and those of PowerSGD on its sides, which are long here.
        probe = Variable(name="probe", shape=(2**40, 2**40), dtype=dtype, use=0, ready=0)
        plain[dtype] = tuple(_legal_settings(probe, synchronisers, codecs, model, cluster))
        linked[dtype] = tuple(_legal_settings(probe, following, codecs, model, cluster))
    dense = {dtype: (*plain[dtype], *linked[dtype]) for dtype in plain}
    alone: dict[str, tuple[Setting, ...]] = {"dense": ()}
    for kind in ("embedding", "linear"):
        sample = next((variable for variable in model.variables if variable.kind == kind), None)
        travels_alone = [synchroniser for synchroniser in synchronisers if synchroniser.travels_alone]
        alone[kind] = tuple(_legal_settings(sample, travels_alone, (None,), model, cluster)) if sample else ()
    _refuse_hopeless(model, dense, alone)
    backend = BACKENDS[cluster.backend]
    return Choices(
        dense=dense,
        alone=alone,
        dense_table={dtype: _table(settings) for dtype, settings in plain.items()},
        following_table={dtype: _table(settings) for dtype, settings in linked.items()},
        alone_table={kind: _table(settings) for kind, settings in alone.items()},
        num_lanes=min(limits.max_lanes, backend.max_lanes),
        num_priorities=limits.max_priorities if backend.overtakes else 1,
        can_cut=model.optimizer.elementwise and limits.max_parts > 1,
        codecs=codecs,
    )


def _refuse_hopeless(
    model: ModelSpec, dense: Mapping[DType, Sequence[Setting]], alone: Mapping[str, Sequence[Setting]]
) -> None:
    for variable in model.variables:
        # A setting with a rank does not fit every shape, so it does not count.
        if not any(setting.rank == 0 for setting in dense[variable.dtype]) and not alone[variable.kind]:
            what = f"no synchroniser within the limits can carry {variable.name}"
            rule = "each variable needs one; all_reduce over native carries any"
            raise DoesNotApplyError([Problem(what=what, rule=rule, path=("limits",))])


def _variants(kind: str, cluster: ClusterSpec, limits: Limits) -> tuple[Sequence[Synchroniser], Sequence[Synchroniser]]:
    """Return the variants of a kind and those that follow the links. If it has only the latter, they are the former."""
    synchroniser = synchroniser_kinds()[kind]
    plain, links = list(synchroniser.variants(cluster, limits)), list(synchroniser.link_variants(cluster, limits))
    return (plain, links) if plain else (links, [])


def _unique(
    candidates: Iterable[Synchroniser], cluster: ClusterSpec, *, but: Sequence[Synchroniser] = ()
) -> list[Synchroniser]:
    """Return the first candidate of each canonical form, without the forms of the synchronisers `but`."""
    known = {canonical_synchroniser(one, cluster) for one in but}
    found: dict[Synchroniser, Synchroniser] = {}
    for candidate in candidates:
        found.setdefault(canonical_synchroniser(candidate, cluster), candidate)
    return [candidate for form, candidate in found.items() if form not in known]


def _legal_settings(
    variable: Variable,
    synchronisers: Iterable[Synchroniser],
    codecs: Sequence[Codec | None],
    model: ModelSpec,
    cluster: ClusterSpec,
) -> Iterator[Setting]:
    parts = parts_of(variable, None)
    for synchroniser, codec in itertools.product(synchronisers, codecs):
        message = Message(parts=(variable.name,), synchroniser=synchroniser, codec=codec)
        if not message_problems(message, parts, model, cluster):
            # Slices of this size are large enough for any model, so only the setting decides whether they are legal.
            sliced = replace(message, slice_bytes=max(1024, model.num_bytes))
            slices = not message_problems(sliced, parts, model, cluster)
            yield Setting(synchroniser, codec, slices, codec.rank if isinstance(codec, PowerSGD) else 0)


def _table(settings: Iterable[Setting]) -> KindTable:
    """Return the settings by kind, codec and variant; settings that differ only in the server are one variant."""
    variants: dict[str, dict[Codec | None, dict[Synchroniser, list[Setting]]]] = {}
    for setting in settings:
        anywhere = setting.synchroniser.at("")
        by_codec = variants.setdefault(setting.kind, {})
        by_codec.setdefault(setting.codec, {}).setdefault(anywhere, []).append(setting)
    return {
        kind: {codec: tuple(map(tuple, found.values())) for codec, found in by_codec.items()}
        for kind, by_codec in variants.items()
    }
