"""`tune`: the whole product in one function.

The fastest strategies of the trials are measured again, in turn with stock DDP, stock DDP with its best bucket and the
best preset. The winner is written to the study's `best.yaml` (and to `output`). If nothing is certainly faster, the
file has the buckets of stock DDP.

- `model` is a task (`FILE.py[:NAME]`, or the function that returns it) or a model spec, whose compute is then replayed
  (a file, a shipped name, also `SPEC@x4`, or the object). `cluster` is a cluster file, a shipped name or the object.
  `launcher` replaces the cluster's own.
- `proposer` suggests strategies, and `simulator` predicts their step times. Each is a name, a builder like those
  behind the names, or the object itself. A study that was begun with an object is resumed with the same object.
- `prior` is what the simulator learns before the first trial: records of other models and clusters. The shipped prior
  is used where the caller names neither a simulator nor a prior.
- `allow` admits `lossy` and `stale` strategies. With the target "ddp", stock DDP runs all strategies, so only those
  that it can express are tried.
- `num_trials` is the number of strategies to try. Without it, what is predicted to be fastest is proved at once. Then
  trials go on (at most 50) while they are expected to save more of a training of `training_seconds` (ten hours) than
  they take. `budget_seconds` and `patience` (20 trials without a gain, 0 for no limit) end any search.
- `effort` says how long each strategy is measured; a trial with a step longer than `trial_timeout_seconds` fails.
- `jobs` is the number of cores of this machine that predict step times while ranks wait (all of them); the result does
  not depend on it.
- `study` names the study's folder. Tuners with the same `storage`, an Optuna URL, and the same `study` share a search.
- `resume` continues an interrupted study. It keeps its settings, except for `num_trials`, `training_seconds`,
  `budget_seconds`, `patience` and `effort` where given. `replay` searches recorded trials, of a study or a dataset,
  instead of a cluster.
- `consent` is called before anything is run or contacted that a study's folder names and that this user has not named
  before. The default refuses it; `autosync.specs.consent.agree` allows all of it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autosync.datasets.files import check_writable
from autosync.datasets.studies import STUDIES_FOLDER
from autosync.search.guarantee import Verdict, prove
from autosync.search.measurement_effort import Effort
from autosync.search.operands import ClusterOperand, LauncherOperand, ModelOperand
from autosync.search.planning import plan_tuning
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.running_study import RunningStudy, running
from autosync.search.search_loop import SearchLoop
from autosync.search.target import Target
from autosync.search.timelines import record_timelines
from autosync.search.trust.early_proof import prove_early
from autosync.search.tuned import FirstAnswer, Tuned, hand_over, records_of
from autosync.search.tuning_plan import TuningPlan
from autosync.simulators.compile_notice import compiling_is_told
from autosync.simulators.interface import Simulator
from autosync.simulators.shared.cores import available_cores, on_cores
from autosync.specs.consent import Consent, refuse
from autosync.strategy.space.limits import InexactClass


def tune(
    *,
    model: ModelOperand | None = None,
    cluster: ClusterOperand | None = None,
    launcher: LauncherOperand | None = None,
    proposer: str | Proposer | Callable[[Ground], Proposer] | None = None,
    simulator: str | Simulator | Callable[..., Simulator] | None = None,
    prior: Path | str | None = None,
    allow: Sequence[InexactClass] = (),
    target: Target = "autosync",
    num_trials: int | None = None,
    training_seconds: float | None = None,
    budget_seconds: float | None = None,
    patience: int | None = None,
    effort: Effort | None = None,
    trial_timeout_seconds: float = 120.0,
    jobs: int | None = None,
    seed: int = 0,
    study: str | None = None,
    storage: str | None = None,
    resume: str | None = None,
    replay: str | None = None,
    consent: Consent = refuse,
    output: Path | None = None,
    progress: ProgressListener = SILENT,
) -> Tuned:
    """Find the fastest strategy for a model on a cluster, and prove it. The module's docstring has the parameters."""
    began = time.monotonic()
    if resume is None:
        check_writable(Path(STUDIES_FOLDER) / "study")
    how_long: dict[str, Any] = {"num_trials": num_trials, "training_seconds": training_seconds}
    how_long |= {"budget_seconds": budget_seconds, "patience": patience, "effort": effort}
    who = {"proposer": proposer, "simulator": simulator, "prior": None if prior is None else str(prior)}
    what = {"allow": tuple(allow), "target": target, "trial_timeout_seconds": trial_timeout_seconds, "seed": seed}
    with compiling_is_told(progress.now):
        plan = plan_tuning(
            model=model,
            cluster=cluster,
            launcher=launcher,
            study=study,
            settings={**how_long, **who, **what},
            storage=storage,
            resume=resume,
            replay=replay,
            consent=consent,
            progress=progress,
        )
        ground, settings = plan.ground(), plan.settings
    _tell_of_stages(plan, ground, progress)
    with on_cores(available_cores() if jobs is None else jobs), running(plan, progress) as run:
        search = SearchLoop(run, open_proposer(settings.proposer, ground), ground, settings, progress)
        first = _first_answer(run, search, ground, seed=settings.seed, began=began, progress=progress)
        give = functools.partial(hand_over, plan, run, search, output=output, began=began, first=first)
        if first is not None:
            give(first.verdict, records_of(run, search), is_last=False)
        search.run()
        verdict = _proven(run, search, ground, first, seed=settings.seed, progress=progress)
        tuned = give(verdict, records_of(run, search))
        record_timelines(run.trials, verdict, plan.folder, progress)
    return tuned


def _tell_of_stages(plan: TuningPlan, ground: Ground, progress: ProgressListener) -> None:
    """Tell the user why strategies with stages are not searched, if they are not."""
    if plan.told_undivided:
        progress.note(f"strategies that divide the model into stages are left out: {plan.told_undivided}")
    elif not plan.why_undivided and not ground.divided:
        progress.note("no division of the model into stages fits into the nodes' memory")


def _first_answer(
    run: RunningStudy, search: SearchLoop, ground: Ground, *, seed: int, began: float, progress: ProgressListener
) -> FirstAnswer | None:
    """Prove what is predicted to be fastest; None if the search begins with trials."""
    verdict = prove_early(run, search, ground, seed=seed, progress=progress)
    return None if verdict is None else FirstAnswer(verdict=verdict, wall_seconds=time.monotonic() - began)


def _proven(
    run: RunningStudy,
    search: SearchLoop,
    ground: Ground,
    first: FirstAnswer | None,
    *,
    seed: int,
    progress: ProgressListener,
) -> Verdict:
    """Measure the fastest strategies again, in turn with stock DDP and the baselines, and return the verdict.

    The first answer stands if no trial after it was faster.
    """
    if first is not None and not search.is_proof_due:
        return first.verdict
    finalists = search.finalists(ground.simulator)
    baselines = search.baselines(ground) if finalists else ()
    best_seconds = search.status.best_seconds
    return prove(run.trials, finalists, baselines=baselines, best_seconds=best_seconds, seed=seed, progress=progress)
