"""The early proof: the strategies that are predicted to be fastest are proved at once, before any other trial.

So a user has an answer in the first minutes; therefore it measures less than a proof after trials. Its measurements are
the first trials of the search. If no later trial is faster, this proof is the result.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.guarantee import Verdict, prove
from autosync.search.progress import ProgressListener
from autosync.search.proposers.interface import Ground
from autosync.search.running_study import RunningStudy
from autosync.search.search_loop import SearchLoop
from autosync.search.study import StartedTrial
from autosync.search.trust.early_answer import EarlyAnswer


def prove_early(
    running: RunningStudy, search: SearchLoop, ground: Ground, *, seed: int, progress: ProgressListener
) -> Verdict | None:
    """Prove what is predicted to be fastest, and return the verdict.

    None if there is no early proof: the user asked for a number of trials, the study has trials, or stock DDP could not
    be measured beside others. Then the search begins with trials.
    """
    begun = search.begin_predicted(ground.simulator)
    finalists = [one.candidate for one in begun if one.candidate.strategy is not None]
    if not finalists:
        running.study.withdraw(begun)
        return None
    baselines = search.baselines(ground, by_prediction=True)
    started = dt.datetime.now(tz=dt.UTC)
    try:
        design = running.trials.effort.early_proof
        verdict = prove(running.trials, finalists, baselines=baselines, design=design, seed=seed, progress=progress)
    except OperationError as error:
        progress.note(f"nothing is proved yet: {error}")
        running.study.withdraw(begun)
        return None
    search.take_in_proof(begun, list(_records(running, begun, verdict, started)), EarlyAnswer.of(verdict))
    progress.note(_words(verdict))
    return verdict


def _records(
    running: RunningStudy, begun: Sequence[StartedTrial], verdict: Verdict, started: dt.datetime
) -> Iterator[Record]:
    """Yield the record of each begun trial that the proof has measured as its strategy, and of the best preset."""
    measured = {}
    for result in verdict.results:
        # The best bucket is measured as stock DDP with an argument, and flags of stock DDP vary a finalist.
        if result.name == running.trials.contestant(result.candidate).name:
            measured[result.candidate.strategy_id] = result.measurement
    ids = {one.candidate.strategy_id for one in begun}
    presets = [one for one in verdict.results if one.contestant.role == "best preset"]
    others = [running.study.begin_for_proof(one.candidate) for one in presets if one.candidate.strategy_id not in ids]
    for one in (*begun, *others):
        found = measured.get(one.candidate.strategy_id)
        if found is not None:
            yield running.trials.record_of_proof(
                one.candidate, one.number, started, found, other_cpu_share=verdict.other_cpu_share
            )


def _words(verdict: Verdict) -> str:
    if not verdict.beats_default:
        return "proved: nothing that was predicted to be fast is faster than stock DDP for certain"
    return f"proved: {verdict.winner.ratio}"
