"""Runs a probe: starts ranks on every node, waits with a time limit, and turns their samples into a calibration."""

from __future__ import annotations

import datetime as dt
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autosync import __version__, documents
from autosync.errors import OperationError
from autosync.launchers.control_address import RELAYED
from autosync.launchers.node_check import check_nodes
from autosync.specs.calibration import Calibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster
from autosync.specs.task_file import task_path
from autosync.trials.probe import analysis
from autosync.trials.probe.findings import Finding, find, shared_links
from autosync.trials.probe.rack_search import RackSearch, decide
from autosync.trials.probe.racks import alone_rates, with_found_racks
from autosync.trials.probe.reach import telling
from autosync.trials.probe.request import ANSWER_KIND, BACKEND, SETTINGS_KIND, VERSION, ProbeSettings, RankAnswer
from autosync.trials.probe.schedule import all_workers
from autosync.trials.probe.speeds import refuse_one_machine, speeds_of, with_speeds
from autosync.trials.ranks import Ranks, plan_launch

PROGRAM = "autosync.trials.probe.rank"
"""The module that the ranks of a probe run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The cluster with its calibration, the findings about it, and the seconds that the probe took.

    `search` is the search for links that nodes share, or None if there was none; the cluster has its racks.
    `speeds` are those of its worker nodes, which the cluster has too; empty if no model was timed.
    """

    cluster: ClusterSpec
    findings: tuple[Finding, ...]
    seconds: float
    search: RackSearch | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def calibration(self) -> Calibration:
        assert self.cluster.calibration is not None, "a probed cluster has its calibration"
        return self.cluster.calibration


def probe(
    cluster: ClusterSpec,
    *,
    settings: ProbeSettings | None = None,
    task: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Probed:
    """Measure a cluster and leave no rank running, even after errors. `progress` is called with each stage's name.

    With a `task` (FILE.py[:NAME]), each node's speed of computing its model is measured too.
    """
    settings = settings or ProbeSettings()
    if task is not None:
        refuse_one_machine(cluster)
    started = time.monotonic()
    probed = all_workers(cluster)
    with tempfile.TemporaryDirectory(prefix="autosync-probe-") as name:
        answers = _measure(cluster, _request(cluster, settings, task), settings, Path(name), progress)
    steps = analysis.step_samples(answers)
    calibration = Calibration(
        measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        autosync=__version__,
        torch=answers[0].torch,
        python=platform.python_version(),
        backend=BACKEND,
        emulated=cluster.is_emulated,
        cpu_share=round(max(answer.cpu_share for answer in answers), 4),
        step_seconds=analysis.estimate(steps) if steps else None,
        step_variation=analysis.variation(steps) if steps else None,
        nodes=analysis.calibrate_nodes(probed, settings, answers),
        racks=analysis.calibrate_racks(probed, settings, answers),
        curves=analysis.calibrate_curves(answers),
        num_processors=os.cpu_count() if cluster.is_emulated else None,
    )
    speeds = {} if task is None else speeds_of(cluster, answers)
    # The search and the warnings also need what the ends of a link have limited.
    found = with_speeds(replace(cluster, calibration=telling(cluster, calibration)), speeds)
    search = _decided(calibration, answers[0])
    return Probed(
        cluster=found if search is None else with_found_racks(found, search),
        findings=(*find(cluster, calibration, answers), *([] if search is None else shared_links(cluster, search))),
        seconds=time.monotonic() - started,
        search=search,
        speeds=speeds,
    )


def _decided(calibration: Calibration, answer: RankAnswer) -> RackSearch | None:
    """Return the result of the search for shared links, or None if the ranks did not search."""
    alone = alone_rates(calibration)
    return decide(answer.loads, alone) if answer.loads and alone is not None else None


def _request(cluster: ClusterSpec, settings: ProbeSettings, task: str | None) -> dict[str, Any]:
    return {
        "cluster": dump_cluster(cluster),
        "settings": documents.dump(settings, kind=SETTINGS_KIND, version=VERSION),
        "task": task,
    }


def _measure(
    cluster: ClusterSpec,
    asked: Mapping[str, Any],
    settings: ProbeSettings,
    folder: Path,
    progress: Callable[[str], None],
) -> list[RankAnswer]:
    """Return the answers of all ranks in the order of their numbers in the probe."""
    launcher, request = plan_launch(cluster, folder, program=PROGRAM)
    with launcher.hold(cluster):
        if launcher.control == RELAYED:
            _refuse_unfit_nodes(cluster, folder, [task_path(asked["task"])] if asked["task"] else [])
        progress(f"starting {len(request.processes)} ranks")
        ranks = Ranks(cluster, folder, program=PROGRAM)
        try:
            request_of_all = {**asked, "rendezvous": ranks.meeting_point()}
            answers = ranks.ask("probe", request_of_all, settings.timeout_seconds, progress=progress)
        finally:
            ranks.end()
    parsed = [
        documents.parse(documents.without_file(answer), kind=ANSWER_KIND, version=VERSION, into=RankAnswer)
        for answer in answers
    ]
    return sorted(parsed, key=lambda answer: answer.rank)


def _refuse_unfit_nodes(cluster: ClusterSpec, folder: Path, files: Sequence[Path]) -> None:
    errors = check_nodes(cluster, folder, files=files).errors
    if errors:
        told = "; ".join(map(str, errors))
        raise OperationError(f"{told} (`autosync cluster check` tells of all nodes)")
