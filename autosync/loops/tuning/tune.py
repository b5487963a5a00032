"""Tunes a loop on the ranks of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosync.errors import InputError
from autosync.loops.dependences import analyse
from autosync.loops.launch import launch_ranks
from autosync.loops.load import load_loop, naming, records_of
from autosync.loops.rank_run import LoopSettings
from autosync.loops.reports import finite
from autosync.loops.schedule_file import write_choice
from autosync.loops.schedules import ScheduleChoice
from autosync.loops.tuning.contest import ContestResult, TriedSchedule, TuningOrders
from autosync.loops.tuning.prediction import RankLinks
from autosync.specs.cluster import ClusterSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunedLoop:
    """A tuned loop: its name, the cluster, and the outcome of the contest."""

    loop: str
    cluster: str
    num_ranks: int
    num_records: int
    outcome: ContestResult

    @property
    def winner(self) -> TriedSchedule:
        return self.outcome.contestants[0]


def tune_loop(
    target: str,
    cluster: ClusterSpec,
    settings: LoopSettings,
    *,
    goal: float | None = None,
    num_finalists: int = 4,
    num_rounds: int = 2,
    budget_seconds: float | None = None,
    output: Path | None = None,
    show: Callable[[str], None] = lambda _line: None,
) -> TunedLoop:
    """Find the schedule that reaches a loss in the shortest time on a cluster, and write its choice to `output`.

    Without `goal`, the goal is the serial program's loss after the epochs of `settings`. `show` receives a line about
    each run, and each line that the user's code prints.
    """
    loop = load_loop(target)
    if loop.loss is None:
        rule = "a loop is tuned by the time to a loss: @autosync.loop(..., loss=...)"
        raise InputError(f"{loop.name} declares no loss", rule=rule).located(loop.file, loop.line)
    if cluster.num_workers < 2:
        raise InputError(f"the cluster {cluster.name} has one rank", rule="a loop is tuned for two ranks or more")
    records = records_of(loop, target)
    with naming(target):
        analyse(loop, records)
    orders = TuningOrders(
        settings=settings,
        links=links_of(cluster),
        goal=goal,
        num_finalists=num_finalists,
        num_rounds=num_rounds,
        budget_seconds=budget_seconds,
    )
    found: list[ContestResult] = []

    def take(report: dict[str, Any]) -> bool:
        if "line" in report:
            show(report["line"])
            return False
        found.append(_result_of(report))
        return True

    launch_ranks(target, cluster, {"tuning": dataclasses.asdict(orders)}, show=show, told=take)
    tuned = TunedLoop(
        loop=loop.name,
        cluster=cluster.name,
        num_ranks=cluster.num_workers,
        num_records=len(records),
        outcome=found[-1],
    )
    if output is not None:
        write_choice(output, tuned.winner.choice)
    return tuned


def links_of(cluster: ClusterSpec) -> RankLinks:
    """Return the rates between the workers of a cluster."""
    return RankLinks(
        nodes=tuple(rank.node for rank in cluster.ranks if rank.role == "worker"),
        rates_out=tuple(node.bandwidth_out for node in cluster.nodes),
        rates_in=tuple(node.bandwidth_in for node in cluster.nodes),
        rates_within=tuple(node.intra_bandwidth or node.bandwidth_out for node in cluster.nodes),
    )


def _result_of(report: Mapping[str, Any]) -> ContestResult:
    contestants = [TriedSchedule(**{**one, "choice": ScheduleChoice(**one["choice"])}) for one in report["contestants"]]
    return ContestResult(**{**report, "contestants": contestants})


def tuning_fields(tuned: TunedLoop) -> dict[str, Any]:
    """Return a tuned loop as plain values for programs. Times that are not known and infinite losses are null."""
    fields = dataclasses.asdict(tuned.outcome)
    for one in (fields, *fields["contestants"]):
        one.update({key: finite(value) for key, value in one.items() if isinstance(value, float)})
    return {
        "schema": "autosync.loop_tuning/1",
        "loop": tuned.loop,
        "cluster": tuned.cluster,
        "num_ranks": tuned.num_ranks,
        "num_records": tuned.num_records,
        **fields,
    }
