"""Running a probe: start a rank on every node, wait with a limit, and make a calibration of what they measured."""

from __future__ import annotations

import datetime as dt
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosync import __version__
from autosync.errors import OperationError
from autosync.launchers import LAUNCHERS
from autosync.launchers.request import Launch, Launcher
from autosync.specs.calibration import Calibration
from autosync.specs.cluster import ClusterSpec
from autosync.trials.probe import analysis
from autosync.trials.probe.findings import Finding, find
from autosync.trials.probe.request import ProbeFolder, ProbeSettings, RankAnswer
from autosync.trials.probe.schedule import all_workers

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""How long the other ranks may go on after one has failed."""
_LOG_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The cluster with its calibration, what is odd about it, and how long it all took."""

    cluster: ClusterSpec
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def calibration(self) -> Calibration:
        assert self.cluster.calibration is not None, "a probed cluster has its calibration"
        return self.cluster.calibration


def probe(
    cluster: ClusterSpec,
    *,
    settings: ProbeSettings | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Probed:
    """Measure a cluster. `progress` is told each stage. Nothing is left running, whatever happens."""
    settings = settings or ProbeSettings()
    started = time.monotonic()
    probed = all_workers(cluster)
    with tempfile.TemporaryDirectory(prefix="autosync-probe-") as name:
        answers = _measure(cluster, probed, settings, ProbeFolder(Path(name)), progress)
    steps = analysis.step_samples(answers)
    calibration = Calibration(
        measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        autosync=__version__,
        torch=answers[0].torch,
        python=platform.python_version(),
        backend="gloo",
        emulated=cluster.launcher == "testbed",
        cpu_share=round(max(answer.cpu_share for answer in answers), 4),
        step_seconds=analysis.estimate(steps) if steps else None,
        step_variation=analysis.variation(steps) if steps else None,
        nodes=analysis.calibrate_nodes(probed, settings, answers),
        racks=analysis.calibrate_racks(probed, settings, answers),
        curves=analysis.calibrate_curves(answers),
    )
    return Probed(
        cluster=replace(cluster, calibration=calibration),
        findings=find(cluster, calibration, answers),
        seconds=time.monotonic() - started,
    )


def _measure(
    cluster: ClusterSpec,
    probed: ClusterSpec,
    settings: ProbeSettings,
    folder: ProbeFolder,
    progress: Callable[[str], None],
) -> list[RankAnswer]:
    launcher: Launcher = LAUNCHERS.get(probed.launcher)()
    command = (sys.executable, "-m", "autosync.trials.probe.rank", str(folder.path.resolve()))
    request = launcher.plan(probed, command, folder.path)
    folder.write_request(cluster, settings)
    progress(f"starting {len(request.processes)} ranks")
    launch = launcher.start(request)
    try:
        codes = _wait(launch, folder, settings.timeout_seconds, progress)
    finally:
        launch.stop()
    return _answers(folder, settings, codes)


def _wait(
    launch: Launch, folder: ProbeFolder, timeout_seconds: float, progress: Callable[[str], None]
) -> Sequence[int | None]:
    """Until all ranks have ended, or some time after one has failed; the exit codes, None of those that still run."""
    deadline = time.monotonic() + timeout_seconds
    has_failed = False
    told = ""
    while True:
        codes = launch.exit_codes()
        if not has_failed and any(code not in (None, 0) for code in codes):
            has_failed = True
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if None not in codes or time.monotonic() >= deadline:
            return codes
        stage = folder.stage.read_text(encoding="utf-8") if folder.stage.exists() else told
        if stage != told:
            progress(stage)
            told = stage
        time.sleep(POLL_SECONDS)


def _answers(folder: ProbeFolder, settings: ProbeSettings, codes: Sequence[int | None]) -> list[RankAnswer]:
    """What every rank measured; OperationError tells the failure that the others followed from."""
    answers = [folder.read_answer(rank) for rank in range(len(codes))]
    told = [answer for answer in answers if answer is not None]
    errors = sorted((one for one in told if one.error), key=lambda one: one.ended_at_seconds)
    for rank, (answer, code) in enumerate(zip(answers, codes, strict=True)):
        # Before those who raised: a rank that vanishes makes all others raise.
        if answer is None and code is not None:
            raise OperationError(f"rank {rank} ended without an answer (exit code {code}): {_last_words(folder, rank)}")
    if errors:
        raise OperationError(f"rank {errors[0].rank}: {errors[0].error}")
    if len(told) < len(answers):
        running = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None)
        stage = folder.stage.read_text(encoding="utf-8") if folder.stage.exists() else "starting"
        raise OperationError(f"not done within {settings.timeout_seconds:g} s: rank {running}, at: {stage}")
    return told


def _last_words(folder: ProbeFolder, rank: int) -> str:
    log = folder.path / f"rank-{rank}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "; ".join(line.strip() for line in lines[-_LOG_LINES:]) or "its log is empty"
