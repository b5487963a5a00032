"""The proof: measures the finalists again, in turn with stock DDP, and declares the winner.

The fastest of many noisy trials is partly the luckiest. So the best few run once more, interleaved with stock DDP, with
stock DDP at its best single bucket and with the best preset. The winner is declared from this comparison alone. If
nothing certainly beats the default, the default is the result. If stock DDP with a better bucket certainly beats the
default, and no finalist is certainly faster than it, then it wins, because it needs nothing but an argument. Inexact
strategies also train for a short while. One whose training fails, or whose loss becomes infinite or NaN, cannot win.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from autosync.datasets.schema import Failure, Measurement
from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.progress import SILENT, FinishedTrial, ProgressListener
from autosync.search.proof_capacity import most_at_once
from autosync.search.training_fidelity import TrainingFidelity, measure_fidelities
from autosync.search.trial_runner import TrialRunner
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.trials.compare import Design, compare
from autosync.trials.comparison import Comparison, Ratio, speedup_frame
from autosync.trials.contestant import Contestant
from autosync.trials.outages import Outages
from autosync.trials.policy import measure
from autosync.trials.service import TrialFailed
from autosync.units import format_time

if TYPE_CHECKING:
    import pandas as pd

ProofRole = Literal["default", "best bucket", "best preset", "finalist"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline besides stock DDP as it ships, with which finalists are compared."""

    role: ProofRole
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofContestant:
    """A contestant of the proof and its role."""

    role: ProofRole
    candidate: Candidate
    run_as: Contestant

    @property
    def name(self) -> str:
        return self.run_as.name

    @property
    def settings(self) -> DdpSettings | None:
        """The settings of stock DDP; None if our engine runs the contestant."""
        is_stock = self.run_as.bundle is None or self.role == "best bucket"
        return self.run_as.ddp if is_stock else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """The steps of one contestant and its speedup over stock DDP.

    It is None for stock DDP itself, and for a finalist that was stopped because it was far behind.
    """

    contestant: ProofContestant
    measurement: Measurement
    ratio: Ratio | None

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def candidate(self) -> Candidate:
        return self.contestant.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results, the default's first, and the winner: the default, unless another contestant is certainly faster.

    `against` compares the winner with the other baselines, and the fastest contestant with the winner. `left_out` has
    the contestants that could not be measured again, by name. `fidelities` tells how inexact strategies train, by the
    ids of the strategies. `other_cpu_share` is the share of this machine's processors that other programs used
    meanwhile; None if it is unknown. `loader_seconds` is the time in which a script's loaders make a batch; None if
    they keep up with all contestants.
    """

    results: tuple[ProofResult, ...]
    winner: ProofResult
    against: tuple[Ratio, ...] = ()
    left_out: Mapping[str, Failure]
    fidelities: Mapping[str, TrainingFidelity] = field(default_factory=dict)
    other_cpu_share: float | None = None
    loader_seconds: float | None = None

    @property
    def default(self) -> ProofResult:
        return self.results[0]

    @property
    def beats_default(self) -> bool:
        return self.winner is not self.default and self.winner.contestant.role != "default"

    def fidelity(self, result: ProofResult) -> TrainingFidelity | None:
        """Return how a result's strategy trains; None for an exact strategy."""
        return self.fidelities.get(result.candidate.strategy_id)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each contestant. Speed-ups are over stock DDP; times are milliseconds of a step."""
        speedups = {one.name: one.ratio.speedup for one in self.results if one.ratio is not None}
        frame = speedup_frame({one.name: one.measurement for one in self.results}, speedups)
        frame.insert(1, "role", [one.contestant.role for one in self.results])
        return frame


def choose_finalists(
    tried: Sequence[FinishedTrial],
    num_finalists: int,
    *,
    lost: Collection[str] = (),
    winner_id: str | None = None,
) -> list[Candidate]:
    """Return the fastest strategies of the trials. If all of them are inexact, add the fastest exact one.

    By an earlier proof, `lost` are strategies that cannot win, and `winner_id` is one that won: it takes part again,
    because trials at another time may have made others look faster.
    """
    failures = [one.record.failure for one in tried if one.record.failure is not None]
    if tried and len(failures) == len(tried):
        raise OperationError(f"all {len(tried)} trials failed; the first: {failures[0].message}")
    measured = sorted(
        (one.measurement.median_seconds, position)
        for position, one in enumerate(tried)
        if one.measurement is not None and one.candidate.strategy is not None and one.candidate.strategy_id not in lost
    )
    fastest = [tried[position].candidate for _, position in measured]
    chosen = fastest[:num_finalists]
    if chosen and not any(map(_is_exact, chosen)):
        chosen += [one for one in fastest if _is_exact(one)][:1]
    return chosen + [one for one in fastest if one.strategy_id == winner_id and one not in chosen]


def _is_exact(candidate: Candidate) -> bool:
    return candidate.strategy is None or candidate.strategy.is_exact


def prove(
    trials: TrialRunner,
    finalists: Sequence[Candidate],
    *,
    baselines: Sequence[Baseline] = (),
    design: Design | None = None,
    best_seconds: float | None = None,
    seed: int = 0,
    sustained: Callable[[Contestant], float | None] = lambda _: None,
    progress: ProgressListener = SILENT,
) -> Verdict:
    """Measure stock DDP, the finalists and the baselines in turn and declare the winner.

    `design` is the amount of measurement, if not the usual one. `best_seconds` is the best median of the trials; None
    if there were no trials. `sustained` trains by a contestant alone, and returns how long a step then takes if loaders
    do not keep up: no other contestant's steps are shorter.
    """
    contestants, crowded_out = _as_fit(proof_contestants(trials, finalists, baselines), trials)
    if len(contestants) == 1:
        return _default_alone(trials, contestants[0])
    trials.other_cpu_share()
    comparison = compare(
        trials.service,
        [contestant.run_as for contestant in contestants],
        design=design or trials.effort.proof,
        policy=functools.partial(trials.proof_policy, best_seconds),
        seed=seed,
        compute_seconds={
            one.name: strategy_compute_seconds(one.candidate.strategy, trials.model, trials.cluster)
            for one in contestants
        },
        # An inexact one that is faster by far may still lose, because it does not train.
        may_stop=[one.name for one in contestants if one.role == "finalist" and _is_exact(one.candidate)],
        progress=progress.now,
    )
    other_cpu_share = trials.other_cpu_share()
    fastest = min(comparison.measurements.items(), key=lambda one: one[1].median_seconds)[0]
    loader_seconds = sustained(next(one.run_as for one in contestants if one.name == fastest))
    if loader_seconds is not None:
        progress.note(f"no step is shorter than {format_time(loader_seconds)}: loaders make batches no faster")
        comparison = comparison.limited(loader_seconds)
    measured = [one.candidate for one in contestants if one.name in comparison.measurements]
    verdict = judge(comparison, contestants, measure_fidelities(trials, measured, progress))
    left_out = {**crowded_out, **verdict.left_out}
    return replace(verdict, left_out=left_out, other_cpu_share=other_cpu_share, loader_seconds=loader_seconds)


def _as_fit(
    contestants: Sequence[ProofContestant], trials: TrialRunner
) -> tuple[list[ProofContestant], dict[str, Failure]]:
    """Keep as many contestants as fit into memory, at least two, and return the others as failures.

    The default, the first finalist and the baselines are kept first.
    """
    # A replay trains with an optimizer without state.
    slots = 0 if trials.is_replayed else trials.model.optimizer.state_slots
    room = None if trials.is_recorded else most_at_once(trials.model, trials.cluster, state_slots=slots)
    if room is None or len(contestants) <= max(room, 2):
        return list(contestants), {}
    ours = [one for one in contestants if one.role == "finalist"]
    important = [*contestants[:1], *ours[:1], *(one for one in contestants[1:] if one.role != "finalist"), *ours[1:]]
    kept = {one.name for one in important[: max(room, 2)]}
    reason = Failure(kind="refused", message="there is no room in memory for it beside the others")
    return [one for one in contestants if one.name in kept], {
        one.name: reason for one in contestants if one.name not in kept
    }


def proof_contestants(
    trials: TrialRunner, finalists: Sequence[Candidate], baselines: Sequence[Baseline] = ()
) -> list[ProofContestant]:
    """Return the contestants, the default first and none twice; only the default if there are no finalists.

    The best bucket runs as stock DDP with one more argument. Our engine gives such buckets to the same reducer, so a
    finalist with the same buckets is left out. A finalist that is also the best preset gets the role of the preset.
    """
    found = [ProofContestant(role="default", candidate=STOCK_DDP, run_as=trials.contestant(STOCK_DDP))]
    if not finalists:
        return found
    presets = {baseline.candidate.strategy_id for baseline in baselines if baseline.role == "best preset"}
    for baseline in baselines:
        if baseline.role == "best bucket":
            settings = trials.ddp_settings(baseline.candidate, gradient_as_bucket_view=False)
            # No record has stock DDP with an argument. Our engine's record of the same buckets is the nearest.
            bundle = trials.bundle(baseline.candidate) if trials.is_recorded else None
            contestant = Contestant(name=_bucket_name(settings), ddp=settings, bundle=bundle)
            found.append(ProofContestant(role=baseline.role, candidate=baseline.candidate, run_as=contestant))
    for one in (*finalists, *(baseline.candidate for baseline in baselines if baseline.role == "best preset")):
        role: ProofRole = "best preset" if one.strategy_id in presets else "finalist"
        # With the target `ddp`, a finalist may have the buckets of the best bucket and still differ in its flags.
        ours = [contestant for contestant in found if contestant.role != "best bucket" or trials.target == "autosync"]
        if all(one.strategy_id != contestant.candidate.strategy_id for contestant in ours):
            found.append(ProofContestant(role=role, candidate=one, run_as=trials.contestant(one)))
    if trials.target == "ddp" and not trials.is_recorded:
        found += _other_flags(found)
    return found


def _bucket_name(settings: DdpSettings) -> str:
    return f"stock DDP, bucket_cap_mb={settings.limits_bytes[0] / 2**20:g}"


def _other_flags(contestants: Sequence[ProofContestant]) -> list[ProofContestant]:
    """Return the first finalist once more for each flag of stock DDP. A search for buckets does not vary flags."""
    first = next((one for one in contestants if one.role in ("finalist", "best preset")), None)
    if first is None:
        return []
    plain = first.run_as.ddp
    others = {
        "no views": replace(plain, gradient_as_bucket_view=False),
        "batched copies": replace(plain, gradient_as_bucket_view=False, batched_grad_copy=True),
        "static graph": replace(plain, static_graph=True),
    }
    return [
        replace(first, run_as=Contestant(name=f"{first.name}, {name}", ddp=settings))
        for name, settings in others.items()
    ]


def _default_alone(trials: TrialRunner, default: ProofContestant) -> Verdict:
    result = ProofResult(contestant=default, measurement=_measured(trials, default), ratio=None)
    return Verdict(results=(result,), winner=result, left_out={})


def _measured(trials: TrialRunner, default: ProofContestant) -> Measurement:
    policy = trials.effort.trial
    compute_seconds = strategy_compute_seconds(default.candidate.strategy, trials.model, trials.cluster)
    outages = Outages()
    while True:
        try:
            return measure(trials.service, default.run_as, policy, compute_seconds=compute_seconds)
        except TrialFailed as failure:
            if not outages.excuses(default.name, failure):
                what = f"stock DDP could not be measured ({failure.kind}): {failure.message}"
                raise OperationError(what) from failure
            outages.wait(failure)


def judge(
    comparison: Comparison,
    contestants: Sequence[ProofContestant],
    fidelities: Mapping[str, TrainingFidelity] | None = None,
) -> Verdict:
    """Return the verdict: the fastest contestant that beats stock DDP wins; without one, stock DDP wins.

    The confidence is 95 % for all contestants together. Stock DDP with a better bucket is preferred to contestants that
    are not certainly faster than it. A contestant that does not train cannot win.
    """
    fidelities = fidelities or {}
    default = contestants[0].name
    failure = comparison.failures.get(default)
    if failure is not None:
        what = f"stock DDP could not be measured again ({failure.kind}): {failure.message}"
        raise OperationError(f"{what}; without it nothing is proved")
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    results = tuple(
        ProofResult(contestant=one, measurement=comparison.measurements[one.name], ratio=ratios.get(one.name))
        for one in contestants
        if one.name in comparison.measurements
    )
    lost = {key for key, one in fidelities.items() if one.cannot_win}
    beats_first = comparison.beats_first
    beats = [result for result in results if result.name in beats_first]
    faster = [result for result in beats if result.candidate.strategy_id not in lost]
    fastest = max(faster, key=_speedup, default=results[0])
    simpler = next((one for one in faster if one.contestant.role == "best bucket"), None)
    winner = fastest
    if simpler is not None and comparison.between(fastest.name, simpler.name).verdict != "faster":
        winner = simpler
    others = [one for one in results if one.contestant.role in ("best bucket", "best preset") and one is not winner]
    against = [comparison.between(winner.name, one.name) for one in others] if winner is not results[0] else []
    if winner is not fastest and fastest not in others:
        against.append(comparison.between(fastest.name, winner.name))
    # The winner was chosen by these results, so its interval is wider than one for a contestant that was named before.
    shown = winner if winner is results[0] else replace(winner, ratio=comparison.between(winner.name, default))
    return Verdict(
        results=tuple(shown if one is winner else one for one in results),
        winner=shown,
        against=tuple(against),
        left_out=comparison.failures,
        fidelities=fidelities,
    )


def _speedup(result: ProofResult) -> float:
    assert result.ratio is not None, "only who is compared with stock DDP beats it"
    return result.ratio.speedup.value
