"""What a strategy that is not exact does to training: the error of its gradients, and the loss after a short run.

Both are measured on the ranks beside exact training (stock DDP) from the same parameters on the same batches. The
gradient error is that of one step: how far the averaged gradients are from the exact ones, as a share of their norm; a
codec that feeds errors back makes up for some of it later, which the losses show. A stale strategy has exact gradients
of old parameters, so for it the losses alone speak. A short run is a warning, not a proof: how a model ends up after
days of training nobody can tell from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.guarantee import Verdict
from autosync.search.progress import SILENT, Progress
from autosync.search.trial import ComparingService, Trials
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialFailed

NUM_STEPS = 60
NUM_LAST = 10
"""How many of the last steps make the loss that is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
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

    def __str__(self) -> str:
        if self.note:
            return self.note
        words = []
        if self.gradient_error is not None:
            words.append(f"its averaged gradients are off by {self.gradient_error:.2g} of their norm")
        if self.loss is not None and self.exact_loss is not None:
            what = "is no number any more" if math.isnan(self.loss) else f"is {self.loss:.4g}"
            words.append(f"after {self.num_steps} steps its loss {what}, that of exact training {self.exact_loss:.4g}")
        return "; ".join(words)


def fidelity(trials: Trials, candidate: Candidate) -> Fidelity:
    """Measure how an inexact strategy trains, on the ranks of the trials."""
    if trials.is_replayed or trials.is_recorded:
        return Fidelity(note="what it does to training is not known: replayed compute has no gradients of its own")
    service = trials.service
    contestant = replace(trials.contestant(candidate), name=f"{candidate.name}, training")
    exact = replace(trials.contestant(STOCK_DDP), name=f"{STOCK_DDP.name}, training")
    try:
        error = _gradient_error(service, exact, trials, candidate)
        first, exact_loss = _losses(service, exact)
        _, loss = _losses(service, contestant)
    except TrialFailed as failure:
        return Fidelity(note=f"what it does to training could not be measured ({failure.kind}: {failure.message})")
    return Fidelity(gradient_error=error, num_steps=NUM_STEPS, first_loss=first, loss=loss, exact_loss=exact_loss)


def measure_fidelities(trials: Trials, verdict: Verdict, progress: Progress = SILENT) -> dict[str, Fidelity]:
    """What those of a proof that are not exact do to training, by name."""
    found: dict[str, Fidelity] = {}
    for contest in verdict.contests:
        strategy = contest.candidate.strategy
        if strategy is not None and not strategy.is_exact:
            progress.now(f"training by {contest.name} and exactly, side by side")
            found[contest.name] = fidelity(trials, contest.candidate)
    return found


def _gradient_error(service: ComparingService, exact: Contestant, trials: Trials, candidate: Candidate) -> float | None:
    assert candidate.strategy is not None, "stock DDP is exact"
    if "stale" in candidate.strategy.classes:
        return None
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


def _losses(service: ComparingService, contestant: Contestant) -> tuple[float, float]:
    """The loss of the first step and of the last ones, over all ranks."""
    service.prepare(contestant)
    try:
        losses = service.run(contestant.name, NUM_STEPS, settle=True).losses
    finally:
        service.release(contestant.name)
    by_step = [sum(step) / len(step) for step in zip(*losses, strict=True)]
    return by_step[0], sum(by_step[-NUM_LAST:]) / NUM_LAST
