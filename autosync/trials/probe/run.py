"""Runs a probe: starts ranks on every node, waits with a time limit, and turns their samples into a calibration."""

from __future__ import annotations

import datetime as dt
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autosync import __version__, documents
from autosync.errors import OperationError
from autosync.launchers.control_address import RELAYED
from autosync.launchers.node_check import check_nodes
from autosync.specs.calibration import Calibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster
from autosync.trials.probe import analysis
from autosync.trials.probe.findings import Finding, find, shared_links
from autosync.trials.probe.rack_search import RackSearch, decide
from autosync.trials.probe.racks import alone_rates, with_found_racks
from autosync.trials.probe.request import ANSWER_KIND, SETTINGS_KIND, VERSION, ProbeSettings, RankAnswer
from autosync.trials.probe.schedule import all_workers
from autosync.trials.ranks import Ranks, plan_launch

PROGRAM = "autosync.trials.probe.rank"
"""The module that the ranks of a probe run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The cluster with its calibration, the findings about it, and the seconds that the probe took.

    `search` is the search for links that nodes share, or None if there was none; the cluster has its racks.
    """

    cluster: ClusterSpec
    findings: tuple[Finding, ...]
    seconds: float
    search: RackSearch | None = None

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
    """Measure a cluster and leave no rank running, even after errors. `progress` is called with each stage's name."""
    settings = settings or ProbeSettings()
    started = time.monotonic()
    probed = all_workers(cluster)
    with tempfile.TemporaryDirectory(prefix="autosync-probe-") as name:
        answers = _measure(cluster, probed, settings, Path(name), progress)
    steps = analysis.step_samples(answers)
    calibration = Calibration(
        measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        autosync=__version__,
        torch=answers[0].torch,
        python=platform.python_version(),
        backend="gloo",
        emulated=cluster.is_emulated,
        cpu_share=round(max(answer.cpu_share for answer in answers), 4),
        step_seconds=analysis.estimate(steps) if steps else None,
        step_variation=analysis.variation(steps) if steps else None,
        nodes=analysis.calibrate_nodes(probed, settings, answers),
        racks=analysis.calibrate_racks(probed, settings, answers),
        curves=analysis.calibrate_curves(answers),
        num_processors=os.cpu_count() if cluster.is_emulated else None,
    )
    found = replace(cluster, calibration=calibration)
    search = _decided(calibration, answers[0])
    return Probed(
        cluster=found if search is None else with_found_racks(found, search),
        findings=(*find(cluster, calibration, answers), *([] if search is None else shared_links(cluster, search))),
        seconds=time.monotonic() - started,
        search=search,
    )


def _decided(calibration: Calibration, answer: RankAnswer) -> RackSearch | None:
    """Return the result of the search for shared links, or None if the ranks did not search."""
    alone = alone_rates(calibration)
    return decide(answer.loads, alone) if answer.loads and alone is not None else None


def _measure(
    cluster: ClusterSpec,
    probed: ClusterSpec,
    settings: ProbeSettings,
    folder: Path,
    progress: Callable[[str], None],
) -> list[RankAnswer]:
    launcher, request = plan_launch(probed, folder, program=PROGRAM)
    with launcher.hold(probed):
        if launcher.control == RELAYED:
            _refuse_unfit_nodes(probed, folder)
        progress(f"starting {len(request.processes)} ranks")
        ranks = Ranks(probed, folder, program=PROGRAM)
        try:
            asked = {
                "cluster": dump_cluster(cluster),
                "settings": documents.dump(settings, kind=SETTINGS_KIND, version=VERSION),
                "rendezvous": ranks.meeting_point(),
            }
            answers = ranks.ask("probe", asked, settings.timeout_seconds, progress=progress)
        finally:
            ranks.end()
    return [
        documents.parse(documents.without_file(answer), kind=ANSWER_KIND, version=VERSION, into=RankAnswer)
        for answer in answers
    ]


def _refuse_unfit_nodes(cluster: ClusterSpec, folder: Path) -> None:
    errors = check_nodes(cluster, folder).errors
    if errors:
        told = "; ".join(map(str, errors))
        raise OperationError(f"{told} (`autosync cluster check` tells of all nodes)")
