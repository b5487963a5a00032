"""What a winner must beat beside stock DDP as it ships: DDP with its best single bucket, and the best preset.

Both are found without trying everything: a simulator says which of each family are promising, those among them that
were not tried are measured once, and the fastest goes into the proof. What is measured for that the study keeps, so a
proof that is begun again measures none of them again. Where no trials are wanted the fastest that is predicted does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate, by_prediction, candidate, known_candidates
from autosync.search.guarantee import Baseline, ProofRole
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.proposers.interface import Ground
from autosync.search.study import Study
from autosync.search.trial_runner import TrialRunner
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.buckets import MIB
from autosync.strategy.representation import Strategy
from autosync.trials.outages import Outages

Family = Literal["bucket", "preset"]
Measure = Callable[[Candidate], float | None]
"""Seconds of a step, or None if it failed."""

CAPS_MIB = (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50, 100, 200, 400)
"""Values of `bucket_cap_mb` that one would try by hand; buckets that nothing fits into twice come to the same."""

NUM_CONFIRMED = 2
"""So many of each family, the most promising that do not fail, are measured before one is called its best."""


@dataclass(frozen=True, slots=True)
class BaselineFamilies:
    """The two families, by the ids of their strategies."""

    buckets: Mapping[str, Candidate]
    presets: Mapping[str, Candidate]

    def of(self, family: Family) -> Mapping[str, Candidate]:
        return self.buckets if family == "bucket" else self.presets

    def best(
        self, family: Family, records: Sequence[Record], simulator: Simulator, *, measure: Measure | None
    ) -> Candidate | None:
        """The fastest of a family; None if it has no member that can be measured.

        `measure` is asked of the most promising that have no record, and gives None for one that fails; without it the
        prediction decides. The simulator has learned from the records.
        """
        members = self.of(family)
        seconds = {
            record.strategy_id: None if record.measurement is None else record.measurement.median_seconds
            for record in records
            if record.strategy_id in members
        }
        ranked = by_prediction(list(members.values()), simulator)
        if measure is None:
            return next((one for one in ranked if seconds.get(one.strategy_id, 0.0) is not None), None)
        num_measured = 0
        for one in ranked:
            if num_measured == NUM_CONFIRMED:
                break
            if one.strategy_id not in seconds:
                seconds[one.strategy_id] = measure(one)
            num_measured += seconds[one.strategy_id] is not None
        measured = [(found, members[key]) for key, found in seconds.items() if found is not None and key is not None]
        return min(measured, key=lambda pair: pair[0])[1] if measured else None


def proof_baselines(
    study: Study,
    trials: TrialRunner,
    ground: Ground,
    *,
    spares_trials: bool = False,
    progress: ProgressListener = SILENT,
) -> list[Baseline]:
    """What finalists have to beat beside stock DDP as it ships. With `spares_trials` nothing is measured for it."""
    baselines = baseline_families(ground.model, ground.cluster, ground.domain.contains)
    records = study.history()
    # Of what the search measured alone: with what a proof adds others would look promising when the study is resumed.
    ground.simulator.learn(study.searched())
    outages = Outages()
    medians = [record.measurement.median_seconds for record in records if record.measurement is not None]

    def measure(one: Candidate) -> float | None:
        progress.now(f"measuring {one.name} for the proof")
        while True:
            begun, is_repeated = study.begin_for_proof(one), study.is_repeated(one)
            fastest = min(medians, default=None)
            record = trials.run(one, begun.number, best_seconds=fastest, is_repeated=is_repeated)
            study.tell(record)
            if record.failure is None or not record.failure.is_infrastructure:
                outages.over()
                return None if record.measurement is None else record.measurement.median_seconds
            outages.wait(record.failure, progress.now)

    how = None if spares_trials else measure
    bucket = baselines.best("bucket", records, ground.simulator, measure=how)
    preset = baselines.best("preset", records, ground.simulator, measure=how)
    found: list[tuple[ProofRole, Candidate | None]] = [("best bucket", bucket), ("best preset", preset)]
    return [Baseline(role=role, candidate=one) for role, one in found if one is not None]


def baseline_families(model: ModelSpec, cluster: ClusterSpec, contains: Callable[[Strategy], bool]) -> BaselineFamilies:
    """The families of a model on a cluster, as far as they may be tried; presets that are exact alone."""
    default = candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)
    buckets: dict[str, Candidate] = {}
    for cap in CAPS_MIB:
        strategy = build_preset("ddp_cap", model, cluster, cap_bytes=int(cap * MIB))
        one = candidate(f"preset:ddp_cap({cap:g} MiB)", strategy, model, cluster)
        assert one.strategy is not None, "a preset is a strategy"
        if one.strategy_id != default.strategy_id and contains(one.strategy):
            buckets.setdefault(one.strategy_id, one)
    presets = {
        one.strategy_id: one
        for one in known_candidates(model, cluster, contains)
        # Stock DDP's buckets and single caps have contests of their own.
        if one.strategy is not None
        and one.strategy.is_exact
        and one.strategy_id != default.strategy_id
        and one.strategy_id not in buckets
    }
    return BaselineFamilies(buckets, presets)
