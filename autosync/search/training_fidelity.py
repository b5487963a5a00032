"""Measures how an inexact strategy trains: the error of its gradients, and the loss after a short run.

Both are measured on the ranks beside exact training (stock DDP), from the same parameters on the same batches. The
gradient error is that of one step: the distance of the averaged gradients from the exact ones, as a share of their
norm. A codec with error feedback corrects some of it later, which the losses show. A stale strategy has exact gradients
of old parameters, so only its losses count. A short run is a warning, not a proof: it cannot predict a model after days
of training. But a strategy whose training fails, or whose loss becomes infinite or NaN, does not train at all and so
cannot win.
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
"""The number of last steps whose mean loss is compared, and of steps in a request. A run is split into such requests
because each request has its own deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLosses:
    """The losses of a short run: of its first step, and the mean over its last steps."""

    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFidelity:
    """A comparison of a strategy's training with exact training. Unknown figures are None, and `note` says why.

    `loss` and `exact_loss` are means over the last steps of `num_steps` and over all ranks; `first_loss` is the loss of
    the first step. With `has_failed`, the strategy's training failed by its own fault, but exact training did not.
    """

    gradient_error: float | None = None
    num_steps: int = 0
    first_loss: float | None = None
    loss: float | None = None
    exact_loss: float | None = None
    has_failed: bool = False
    note: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the loss became infinite or NaN while the loss of exact training did not."""
        if self.loss is None or self.exact_loss is None:
            return False
        return math.isfinite(self.exact_loss) and not math.isfinite(self.loss)

    @property
    def cannot_win(self) -> bool:
        """Whether the strategy does not train at all."""
        return self.has_failed or self.diverged

    def to_plain(self) -> dict[str, object]:
        """Return the fields for programs. A figure that is infinite or NaN is None there, and `in_words` tells it."""
        figures = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in asdict(self).items()
        }
        return {**figures, "cannot_win": self.cannot_win, "in_words": str(self)}

    def __str__(self) -> str:
        words = [self.note] if self.note else []
        if self.gradient_error is not None:
            words.append(f"its averaged gradients are off by {self.gradient_error:.2g} of their norm")
        if self.loss is not None and self.exact_loss is not None:
            what = f"is {self.loss:.4g}" if math.isfinite(self.loss) else "is no number any more"
            words.append(f"after {self.num_steps} steps its loss {what}, that of exact training {self.exact_loss:.4g}")
        if self.cannot_win:
            words.append("so it cannot win")
        return "; ".join(words)


def measure_fidelities(
    trials: TrialRunner, candidates: Iterable[Candidate], progress: ProgressListener = SILENT
) -> dict[str, TrainingFidelity]:
    """Return how the inexact strategies among these train, by the ids of the strategies."""
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
    except OperationError as failure:
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
        loss = _losses(trials.service, contestant).last
    except TrialFailed as failure:
        return _unmeasured(failure) if failure.blame != "strategy" else _failed(failure)
    except OperationError as failure:
        return _unmeasured(failure)
    measured = TrainingFidelity(
        num_steps=NUM_STEPS, first_loss=exact_losses.first, loss=loss, exact_loss=exact_losses.last
    )
    try:
        return replace(measured, gradient_error=_gradient_error(trials, candidate, exact))
    except OperationError as failure:
        return replace(measured, note=f"the error of its gradients could not be measured ({_reason(failure)})")


def _unmeasured(failure: OperationError) -> TrainingFidelity:
    """Return a failure as a note. The proof is over by then, so a failure here does not cost the verdict."""
    return TrainingFidelity(note=f"what it does to training could not be measured ({_reason(failure)})")


def _failed(failure: TrialFailed) -> TrainingFidelity:
    """Return a failure that the strategy itself caused: a loss that is checked may raise before it is no number."""
    return TrainingFidelity(
        has_failed=True, note=f"its training failed, while exact training did not ({_reason(failure)})"
    )


def _reason(failure: OperationError) -> str:
    return f"{failure.kind}: {failure.message}" if isinstance(failure, TrialFailed) else str(failure)


def _gradient_error(trials: TrialRunner, candidate: Candidate, exact: Contestant) -> float | None:
    assert candidate.strategy is not None, "stock DDP is exact"
    if "stale" in candidate.strategy.classes:
        return None
    service = trials.service
    # Measured under our engine for every target, because torch's PowerSGD does not compress the first steps.
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
    """Train for `NUM_STEPS` steps, and return the losses over all ranks."""
    service.prepare(contestant)
    by_step: list[float] = []
    try:
        while len(by_step) < NUM_STEPS:
            losses = service.run(contestant.name, NUM_LAST, settle=True).losses
            by_step += [sum(step) / len(step) for step in zip(*losses, strict=True)]
    finally:
        service.release(contestant.name)
    return RunLosses(first=by_step[0], last=sum(by_step[-NUM_LAST:]) / NUM_LAST)
