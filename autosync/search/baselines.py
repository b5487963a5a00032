"""What a winner must beat beside stock DDP as it ships: DDP with its best single bucket, and the best preset.

Both are found without trying everything: a simulator says which of each family are promising, these are tried like
any other strategy, and the fastest that was measured goes into the proof. Where nothing was measured (no trials were
wanted) the fastest that was predicted does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate, candidate, known_candidates
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.buckets import MIB
from autosync.strategy.representation import Strategy

Family = Literal["bucket", "preset"]

CAPS_MIB = (1, 2, 4, 8, 16, 25, 50, 100, 200, 400)
"""Values of `bucket_cap_mb` that one would try by hand; buckets that nothing fits into twice come to the same."""

NUM_CONFIRMED = 2
"""How many of each family are tried before one is called its best."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """The two families, by the ids of their strategies."""

    buckets: Mapping[str, Candidate]
    presets: Mapping[str, Candidate]

    def of(self, family: Family) -> Mapping[str, Candidate]:
        return self.buckets if family == "bucket" else self.presets

    def promising(self, records: Sequence[Record], simulator: Simulator) -> list[Candidate]:
        """What has to be tried before the best of each family is known: what is predicted fastest, if it was not."""
        tried = {record.strategy_id for record in records}
        found: dict[str, Candidate] = {}
        for members in (self.buckets, self.presets):
            best = _by_prediction(list(members.values()), simulator)[:NUM_CONFIRMED]
            found |= {one.strategy_id: one for one in best if one.strategy_id not in tried}
        return list(found.values())

    def best(self, family: Family, records: Sequence[Record], simulator: Simulator | None) -> Candidate | None:
        """The fastest of a family by its trials; where there were none by prediction; None if nobody can tell."""
        members = self.of(family)
        measured = [
            (record.measurement.median_seconds, record.strategy_id)
            for record in records
            if record.measurement is not None and record.strategy_id in members
        ]
        if measured:
            _, strategy_id = min(measured, key=lambda one: one[0])
            assert strategy_id is not None, "members of a family have ids"
            return members[strategy_id]
        failed = {record.strategy_id for record in records}
        left = [one for one in members.values() if one.strategy_id not in failed]
        return _by_prediction(left, simulator)[0] if left and simulator is not None else None


def find_baselines(
    model: ModelSpec,
    cluster: ClusterSpec,
    contains: Callable[[Strategy], bool],
    *,
    classes: Collection[str] = ("exact",),
) -> Baselines:
    """The families of a model on a cluster, as far as they may be tried; presets of these classes alone."""
    default = candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)
    buckets: dict[str, Candidate] = {}
    for cap in CAPS_MIB:
        one = candidate(
            f"preset:ddp_cap({cap} MiB)", build_preset("ddp_cap", model, cluster, cap_bytes=cap * MIB), model, cluster
        )
        assert one.strategy is not None, "a preset is a strategy"
        if one.strategy_id != default.strategy_id and contains(one.strategy):
            buckets.setdefault(one.strategy_id, one)
    presets = {
        one.strategy_id: one
        for one in known_candidates(model, cluster, contains)
        # Stock DDP's buckets and single caps have contests of their own.
        if one.strategy is not None
        and one.strategy.classes <= set(classes)
        and one.strategy_id != default.strategy_id
        and one.strategy_id not in buckets
    }
    return Baselines(buckets, presets)


def _by_prediction(candidates: Sequence[Candidate], simulator: Simulator) -> list[Candidate]:
    """Candidates, the fastest first."""
    strategies = [one.strategy for one in candidates if one.strategy is not None]
    predictions = simulator.predict(strategies) if strategies else []
    order = sorted(range(len(candidates)), key=lambda position: predictions[position].seconds)
    return [candidates[position] for position in order]
