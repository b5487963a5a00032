"""The baselines that a winner must beat: besides stock DDP, DDP with its best single bucket, and the best preset.

Both are found without trying every strategy. A simulator ranks each family, the most promising members that were not
tried are measured once, and the fastest goes into the proof. The study keeps these measurements, so a proof that starts
again does not repeat them. If no trials are wanted, the member with the fastest prediction is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Measures a candidate: returns the seconds of a step, or None if the candidate failed."""

CAPS_MIB = (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50, 100, 200, 400)
"""Values of `bucket_cap_mb` that a user would try by hand. Values that give the same buckets count once."""

NUM_CONFIRMED = 2
"""The number of members of each family that are measured, the most promising first, before the fastest is taken.
Members that fail do not count."""


@dataclass(frozen=True, slots=True)
class BaselineFamilies:
    """The two families of baselines, each with its strategies by id."""

    buckets: Mapping[str, Candidate]
    presets: Mapping[str, Candidate]

    def of(self, family: Family) -> Mapping[str, Candidate]:
        return self.buckets if family == "bucket" else self.presets

    def best(
        self, family: Family, records: Sequence[Record], simulator: Simulator, *, measure: Measure | None
    ) -> Candidate | None:
        """Return the fastest member of a family; None if no member can be measured.

        `measure` is called for the most promising members without a record and returns None if one fails. Without
        `measure` the prediction decides. The caller has taught the simulator the records.
        """
        members = self.of(family)
        seconds = _seconds(record for record in records if record.strategy_id in members)
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
    """Return the baselines that finalists have to beat besides stock DDP as it ships.

    With `spares_trials` nothing is measured to find them.
    """
    baselines = baseline_families(ground.model, ground.cluster, ground.domain.contains)
    records = study.history()
    # The simulator learns from the records of the search alone. The proof's records would make other members look
    # promising when the study is resumed.
    ground.simulator.learn(study.searched())
    outages = Outages()
    medians = [record.measurement.median_seconds for record in records if record.measurement is not None]

    def measure(one: Candidate) -> float | None:
        progress.now(f"measuring {one.name} for the proof")
        while True:
            begun, is_repeated = study.begin_for_proof(one), study.is_repeated(one)
            fastest = min(medians, default=None)
            ended = trials.attempt(one, begun.number, best_seconds=fastest, is_repeated=is_repeated)
            record = ended.record
            study.tell(record, blame=ended.blame)
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
    """Return the members of both families that may be tried. The presets are exact ones only.

    A task that weighs its batches has no buckets: stock DDP, which runs them, would train it otherwise.
    """
    default = candidate("preset:ddp", build_preset("ddp", model, cluster), model, cluster)
    buckets: dict[str, Candidate] = {}
    for cap in () if model.weighs else CAPS_MIB:
        strategy = build_preset("ddp_cap", model, cluster, cap_bytes=int(cap * MIB))
        one = candidate(f"preset:ddp_cap({cap:g} MiB)", strategy, model, cluster)
        assert one.strategy is not None, "a preset is a strategy"
        if one.strategy_id != default.strategy_id and contains(one.strategy):
            buckets.setdefault(one.strategy_id, one)
    presets = {
        one.strategy_id: one
        for one in known_candidates(model, cluster, contains)
        # Stock DDP's own buckets and single caps are baselines of their own.
        if one.strategy is not None
        and one.strategy.is_exact
        and one.strategy_id != default.strategy_id
        and one.strategy_id not in buckets
    }
    return BaselineFamilies(buckets, presets)


def _seconds(records: Iterable[Record]) -> dict[str | None, float | None]:
    """Return each strategy's last measured step time; None for a strategy that has only failed."""
    seconds: dict[str | None, float | None] = {}
    for record in records:
        if record.measurement is not None:
            seconds[record.strategy_id] = record.measurement.median_seconds
        else:
            seconds.setdefault(record.strategy_id, None)
    return seconds
