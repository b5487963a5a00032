"""Timelines for the report: after the proof, stock DDP and the winner take some more steps, which the ranks record.

Recording costs a little time, so the proof itself is not recorded. A winner with stages has no timeline: its passes are
drawn from its plan.
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import replace
from pathlib import Path

from autosync import jsonio
from autosync.search.guarantee import ProofResult, Verdict
from autosync.search.progress import ProgressListener
from autosync.search.study_folder import StudyFolder
from autosync.search.trial_runner import TrialRunner
from autosync.trials.service import TrialFailed

NUM_STEPS = 9
"""The steps that are taken: buffers and connections are made in the first ones, and a typical one is shown."""

MOST_SECONDS = 30.0
"""The most time that recording may take: with longer steps nothing is recorded."""


def record_timelines(trials: TrialRunner, verdict: Verdict, folder: StudyFolder, progress: ProgressListener) -> None:
    """Write the timelines of stock DDP and of the winner into the study's folder.

    A failure, also of the disk, or an interruption is reported and changes nothing else. In a replay nothing runs, so
    nothing is recorded.
    """
    wanted = {folder.stock_timeline: verdict.default}
    strategy = verdict.winner.candidate.strategy
    if verdict.winner is not verdict.default and not (strategy is not None and strategy.stages):
        wanted[folder.winner_timeline] = verdict.winner
    try:
        for path in (folder.stock_timeline, folder.winner_timeline):
            path.unlink(missing_ok=True)
    except OSError as error:
        progress.note(f"no timelines are recorded: {error}")
        return
    if trials.is_recorded:
        return
    if trials.cluster.device_type == "cuda":
        progress.note("no timelines are recorded: on GPUs the host's clock does not show when work is done")
        return
    seconds = NUM_STEPS * sum(result.measurement.median_seconds for result in wanted.values())
    if seconds > MOST_SECONDS:
        progress.note(f"no timelines are recorded: {NUM_STEPS} steps of each would take {seconds:.0f} s")
        return
    for path, result in wanted.items():
        progress.now(f"recording a timeline of {result.name}")
        try:
            text = _timeline(trials, result)
            path.parent.mkdir(exist_ok=True)
            jsonio.write_text(path, text)
        except (TrialFailed, OSError) as failure:
            progress.note(f"no timeline of {result.name}: {failure}")
        except KeyboardInterrupt:
            progress.note(f"no timeline of {result.name}: interrupted")
            return


def _timeline(trials: TrialRunner, result: ProofResult) -> str:
    """Return the timeline of a contestant on the first rank."""
    # The file lies on the machine of each rank until the rank has sent it.
    file = Path(tempfile.gettempdir()) / f"autosync-timeline-{secrets.token_hex(8)}.json"
    contestant = replace(result.contestant.run_as, trace=file)
    try:
        trials.service.prepare(contestant)
        trials.service.run(contestant.name, NUM_STEPS, settle=True)
        return trials.service.timeline(contestant.name)
    finally:
        trials.service.release(contestant.name)
