"""What a strategy that is not exact does to training: the error of its gradients, and the loss after a short run.

Both are measured on the ranks beside exact training (stock DDP) from the same parameters on the same batches. The
gradient error is that of one step: how far the averaged gradients are from the exact ones, as a share of their norm; a
codec that feeds errors back makes up for some of it later, which the losses show. A stale strategy has exact gradients
of old parameters, so for it the losses alone speak. A short run is a warning, not a proof: how a model ends up after
days of training nobody can tell from it. But whose loss is no number any more does not train at all, and wins nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.trial_runner import ComparingService, TrialRunner
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialFailed

NUM_STEPS = 60
NUM_LAST = 10
"""How many of the last steps make the loss that is compared. Ranks are asked for so many at a time, for each request
has its own deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLosses:
    """Of a short run: the loss of its first step, and the mean over its last ones."""

    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFidelity:
    """How a strategy trains beside exact training; figures that do not exist are None, and `note` says why.

    `loss` and `exact_loss` are means over the last steps of `num_steps` and over all ranks, `first_loss` that of the
    first step.
    """

    gradient_error: float | None = None
    num_steps: int = 0
    first_loss: float | None = None
    loss: float | None = None
    exact_loss: float | None = None
    note: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the loss is no number any more, where that of exact training is one."""
        if self.loss is None or self.exact_loss is None:
            return False
        return math.isfinite(self.exact_loss) and not math.isfinite(self.loss)

    def to_plain(self) -> dict[str, object]:
        """As fields for programs; a figure that is no finite number is None, and the words say so."""
        figures = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in asdict(self).items()
        }
        return {**figures, "in_words": str(self)}

    def __str__(self) -> str:
        if self.note:
            return self.note
        words = []
        if self.gradient_error is not None:
            words.append(f"its averaged gradients are off by {self.gradient_error:.2g} of their norm")
        if self.loss is not None and self.exact_loss is not None:
            what = f"is {self.loss:.4g}" if math.isfinite(self.loss) else "is no number any more"
            words.append(f"after {self.num_steps} steps its loss {what}, that of exact training {self.exact_loss:.4g}")
        if self.diverged:
            words.append("so it cannot win")
        return "; ".join(words)


def measure_fidelities(
    trials: TrialRunner, candidates: Iterable[Candidate], progress: ProgressListener = SILENT
) -> dict[str, TrainingFidelity]:
    """What those that are not exact do to training, by the ids of their strategies."""
    inexact = {one.strategy_id: one for one in candidates if one.strategy is not None and not one.strategy.is_exact}
    if not inexact:
        return {}
    if trials.is_replayed or trials.is_recorded:
        unknown = TrainingFidelity(
            note="what it does to training is not known: replayed compute has no gradients of its own"
        )
        return dict.fromkeys(inexact, unknown)
    exact = replace(trials.contestant(STOCK_DDP), name=f"{STOCK_DDP.name}, training")
    progress.now("training exactly, to hold the others against it")
    try:
        exact_losses = _losses(trials.service, exact)
    except (TrialFailed, OperationError) as failure:
        return dict.fromkeys(inexact, _unmeasured(failure))
    found = {}
    for key, one in inexact.items():
        progress.now(f"training by {one.name}")
        found[key] = _fidelity(trials, one, exact, exact_losses)
    return found


def _fidelity(
    trials: TrialRunner, candidate: Candidate, exact: Contestant, exact_losses: RunLosses
) -> TrainingFidelity:
    contestant = replace(trials.contestant(candidate), name=f"{candidate.name}, training")
    try:
        error = _gradient_error(trials, candidate, exact)
        loss = _losses(trials.service, contestant).last
    except (TrialFailed, OperationError) as failure:
        return _unmeasured(failure)
    return TrainingFidelity(
        gradient_error=error,
        num_steps=NUM_STEPS,
        first_loss=exact_losses.first,
        loss=loss,
        exact_loss=exact_losses.last,
    )


def _unmeasured(failure: TrialFailed | OperationError) -> TrainingFidelity:
    """The proof is over by then: whatever fails now is told and costs no verdict."""
    why = f"{failure.kind}: {failure.message}" if isinstance(failure, TrialFailed) else str(failure)
    return TrainingFidelity(note=f"what it does to training could not be measured ({why})")


def _gradient_error(trials: TrialRunner, candidate: Candidate, exact: Contestant) -> float | None:
    assert candidate.strategy is not None, "stock DDP is exact"
    if "stale" in candidate.strategy.classes:
        return None
    service = trials.service
    # Under our engine whatever the target: torch's PowerSGD leaves the first steps alone.
    pair = (exact, Contestant(name=candidate.name, bundle=trials.bundle(candidate)))
    first, second = (replace(one, name=f"{one.name}, gradients", plain_sgd=True) for one in pair)
    try:
        for contestant in (first, second):
            service.prepare(contestant)
            service.run(contestant.name, 1, settle=True)
        return service.difference(first.name, second.name)
    finally:
        service.release(second.name)
        service.release(first.name)


def _losses(service: ComparingService, contestant: Contestant) -> RunLosses:
    """Train for so many steps, and read the losses of all ranks."""
    service.prepare(contestant)
    by_step: list[float] = []
    try:
        while len(by_step) < NUM_STEPS:
            losses = service.run(contestant.name, NUM_LAST, settle=True).losses
            by_step += [sum(step) / len(step) for step in zip(*losses, strict=True)]
    finally:
        service.release(contestant.name)
    return RunLosses(first=by_step[0], last=sum(by_step[-NUM_LAST:]) / NUM_LAST)
