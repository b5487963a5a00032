"""`tune_script`: tuning an unchanged script while it trains, in one function.

The script runs once, by the cluster's launcher. Its first steps are observed under stock DDP, and make the model spec
and the limits of the space. Then the search of every study tries strategies, each for some steps of the script's own
training, and the proof compares the fastest with stock DDP in turn. All strategies are exact, so the script trains as
it would under stock DDP.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from autosync import jsonio
from autosync.datasets.files import check_writable
from autosync.datasets.studies import STUDIES_FOLDER
from autosync.errors import AutosyncError
from autosync.launchers.request import TrainingScript
from autosync.script.script_facts import ScriptFacts
from autosync.script_tuning.drift import Drift
from autosync.script_tuning.kept_training import Chosen, keep_training
from autosync.script_tuning.launch import ScriptRanks
from autosync.script_tuning.service import MOST_SPARED, STOCK, ScriptTrials
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.study_folder import StudyFolder, folder_named_after
from autosync.specs.cluster import ClusterSpec
from autosync.trials.failures import TrialFailed

if TYPE_CHECKING:
    # What searches takes seconds to load. It is loaded while the ranks start, and the script begins to train.
    from autosync.script_tuning.tuner import ScriptTuner, ScriptTuning

    _Loaded = tuple[type[ScriptTuner], Mapping[str, Any]]

NUM_TRIALS = 12
"""Fewer trials than in other studies: each takes steps of the training."""
PATIENCE = 8
_CHECKED = {"num_trials", "training_seconds", "prior", "simulator"}
"""The settings that may not fit together."""

Then = Literal["stop", "keep_training", "retune"]
"""What a script does after its proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedScript:
    """How a script was tuned and has ended.

    `tunings` are the results, of which all but the first followed a drift; there is none if the script could not be
    tuned and went on under stock DDP. `code` is the script's exit code.
    """

    tunings: tuple[ScriptTuning, ...]
    drifts: tuple[Drift, ...] = ()
    code: int = 0


class ScriptListener(Protocol):
    """Hears of a script's tuning while the script runs."""

    def tuned(self, result: ScriptTuning) -> None:
        """The script was tuned, or tuned again."""

    def drifted(self, drift: Drift) -> None:
        """The steps of the script have become slower for good, or as fast again."""

    def wrote(self, line: str) -> None:
        """The script wrote a line, while it was tuned or afterwards. Called by another thread."""


class SilentScriptListener:
    """A listener that ignores everything."""

    def tuned(self, result: ScriptTuning) -> None:
        pass

    def drifted(self, drift: Drift) -> None:
        pass

    def wrote(self, line: str) -> None:
        pass


def tune_script(
    command: Sequence[str],
    cluster: ClusterSpec,
    *,
    settings: Mapping[str, Any],
    then: Then = "stop",
    environment: Mapping[str, str] | None = None,
    study: str | None = None,
    output: Path | None = None,
    listener: ScriptListener | None = None,
    progress: ProgressListener = SILENT,
) -> TunedScript:
    """Tune the script of a command (`train.py ARGS`, or `-m MODULE ARGS`) on all ranks of a cluster.

    `then` says what comes after the proof. `stop`: the script ends where its next step would begin. `keep_training`: it
    goes on by the winner to its own end, and is watched for drift; if it cannot be tuned, it goes on under stock DDP.
    `retune`: it is also tuned again when its steps have become slower. `settings` are the fields of `StudySettings`
    that the user gave; None means not given.
    """
    listener = listener or SilentScriptListener()
    check_writable(Path(STUDIES_FOLDER) / "study")
    name = _name_of(command)
    folder = folder_named_after(study, name, cluster.name)
    given = {key: value for key, value in settings.items() if value is not None}
    script = TrainingScript(command=tuple(command), environment=environment or {})
    with ThreadPoolExecutor(1, thread_name_prefix="autosync-load", initializer=_yield_processors) as pool:
        loading = pool.submit(_load, given, progress)
        if given.keys() & _CHECKED:
            # What the user has asked for is checked before anything starts.
            loading.result()
        progress.note(f"starting {shlex.join(command)} on {cluster.num_workers} ranks of {cluster.name}")
        with ScriptRanks(cluster, script, name=name, folder=folder.path / "ranks") as ranks:
            try:
                observed = _observe(ranks, cluster, loading, progress, ends=then == "stop")
                tuner = observed.tuner(command=tuple(command), cluster=cluster, output=output, progress=progress)
                first = tuner.tune(folder, began=observed.began)
            except AutosyncError as error:
                if then == "stop" or ranks.have_failed:
                    raise
                progress.note(f"the script goes on under stock DDP, because it cannot be tuned: {error}")
                return TunedScript(tunings=(), code=_go_on_untuned(ranks, listener))
            listener.tuned(first)
            if then == "stop":
                ranks.end(progress)
                return TunedScript(tunings=(first,))
            with ranks.shown(listener.wrote):
                training = _Training(tuner, first, listener)
                training.go_on(tunes_again=then == "retune")
                code = ranks.wait()
            return TunedScript(tunings=tuple(training.tunings), drifts=tuple(training.drifts), code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """A script whose first steps were observed, and what tunes it."""

    facts: ScriptFacts
    trials: ScriptTrials
    began: float
    make_tuner: type[ScriptTuner]
    settings: Mapping[str, Any]

    def tuner(self, *, command: tuple[str, ...], **more: Any) -> ScriptTuner:
        settings = {"task": shlex.join(command), **self.settings}
        return self.make_tuner(command=command, facts=self.facts, trials=self.trials, settings=settings, **more)


def _observe(
    ranks: ScriptRanks, cluster: ClusterSpec, loading: Future[_Loaded], progress: ProgressListener, *, ends: bool
) -> _Observed:
    """Observe the first steps of a script, which then goes on until everything is loaded. `ends`: so does the script.

    A script that ends after its proof waits, rather than run out of steps.
    """
    progress.now("observing the first steps, under stock DDP")
    facts, answers = ranks.observe()
    began = time.monotonic() - sum(answers[0]["step_seconds"])
    for reason in facts.reasons:
        progress.note(f"only the script's optimizer may update: {reason}")
    ranks.fit(facts.model, cluster)
    trials = ScriptTrials(ranks, observed=answers, most_spared=MOST_SPARED if ends else None)
    make_tuner, settings = trials.train_while(loading.result, None)
    return _Observed(facts=facts, trials=trials, began=began, make_tuner=make_tuner, settings=settings)


def _go_on_untuned(ranks: ScriptRanks, listener: ScriptListener) -> int:
    """Let a script train to its end under stock DDP; return its exit code."""
    with ranks.shown(listener.wrote):
        # A rank that refuses to settle what the last strategy has under way is back at stock DDP too.
        with contextlib.suppress(TrialFailed):
            ranks.train({**STOCK, "num_steps": 1})
        return ranks.wait()


def _yield_processors() -> None:
    """Let this thread come after others where processors are few: the ranks may start on this machine."""
    if sys.platform == "linux":
        # Elsewhere threads have no priority of their own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _load(given: dict[str, Any], progress: ProgressListener) -> _Loaded:
    """Load what searches, which takes seconds; return the tuner's class and the settings of a study.

    Raise InputError if what the user gave does not fit together.
    """
    from autosync.script_tuning.plan import SCRIPT_EFFORT
    from autosync.script_tuning.tuner import ScriptTuner
    from autosync.search.planning import choose_end, choose_prior
    from autosync.simulators.compile_notice import compiling_is_told

    choose_end(given)
    with compiling_is_told(progress.now):
        choose_prior(given)
    return ScriptTuner, {"num_trials": NUM_TRIALS, "patience": PATIENCE, "effort": SCRIPT_EFFORT, **given}


def _name_of(command: Sequence[str]) -> str:
    """Return the name of a script: that of its file without `.py`, or that of its module."""
    return command[1] if command[0] == "-m" and len(command) > 1 else Path(command[0]).stem


class _Training:
    """The training of a script after it was first tuned: its further tunings, and its drifts."""

    def __init__(self, tuner: ScriptTuner, first: ScriptTuning, listener: ScriptListener) -> None:
        self.tunings = [first]
        self.drifts: list[Drift] = []
        self._tuner = tuner
        self._listener = listener

    def go_on(self, *, tunes_again: bool) -> None:
        """Let the script train to its end."""
        first = self.tunings[0].tuned
        keep_training(
            self._tuner.trials,
            self._tuner.chosen(first),
            told=self._drifted,
            refused=self._refused,
            tune_again=self._tune_again if tunes_again else None,
        )
        if self.drifts:
            drifts = [drift.fields() for drift in self.drifts]
            jsonio.write_json(StudyFolder(first.folder).summary, {**first.summary, "drifts": drifts})

    def _refused(self, message: str) -> None:
        self._tuner.progress.note(f"the script goes on under stock DDP, because its ranks refuse the winner: {message}")

    def _drifted(self, drift: Drift) -> None:
        self.drifts.append(drift)
        self._listener.drifted(drift)

    def _tune_again(self) -> Chosen | None:
        try:
            # From the cluster file each time: a link may have become faster again.
            tuner = self._tuner.with_measured_links()
            result = tuner.again(self.tunings[0].tuned, len(self.tunings))
        except AutosyncError as error:
            # The training is worth more than a faster strategy, and the script may just have ended.
            self._tuner.progress.note(f"tuning again has ended without a result: {error}")
            return None
        self.tunings.append(result)
        self._listener.tuned(result)
        return tuner.chosen(result.tuned)
