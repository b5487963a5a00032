"""The cluster: its picture, its nodes, and the load of its links under some strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosync.datasets.schema import Measurement
from autosync.pictures.cluster_picture import MAX_LOADS, ClusterLoad, cluster_picture
from autosync.report import charts
from autosync.report.markup import Markup, element, joined
from autosync.report.picture import picture
from autosync.report.study_report import StudyReport
from autosync.report.tables import Row, TableCell, figure, table
from autosync.search.link_times import link_times
from autosync.search.shown_summary import ShownContest
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy
from autosync.units import format_rate, format_size


def study_cluster_section(report: StudyReport) -> Markup:
    """Return the section of a study: the loads are those of stock DDP and of the winner."""
    if report.cluster is None:
        return element("p", "The cluster spec is not in the study's folder.", class_="soft")
    shown = [("stock DDP", report.default)]
    if report.winner is not report.default:
        shown.append(("the winner", report.winner))
    loads = [ClusterLoad(name=name, shares=_loads(report, contest)) for name, contest in shown]
    return cluster_section(report.cluster, loads)


def cluster_section(cluster: ClusterSpec, loads: Sequence[ClusterLoad] = ()) -> Markup:
    """Return the cluster's picture and nodes, and a table of its links where loads are known."""
    how = "emulated on one machine" if cluster.is_emulated else f"reached by the launcher {cluster.launcher}"
    probed = "probed" if cluster.calibration is not None else "not probed: its rates are those of its file"
    words = f"{cluster.name}, {how}, backend {cluster.backend}; {probed}."
    known = [load for load in loads if load.shares]
    told = " and the share of a step in which each link is busy" if known else ""
    drawn = cluster_picture(cluster, known, title=cluster.name, subtitle=f"{how}, backend {cluster.backend}")
    more = charts.left_out(len(known) - MAX_LOADS, "contestant")
    caption = f"The nodes and links of {cluster.name}{told}.{more}"
    return joined(element("p", words), picture(drawn, caption), _nodes(cluster), _links(known))


def link_loads(
    measured: Measurement | None, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy | None
) -> Mapping[str, float]:
    """Return the busy share of each link under a strategy (None: stock DDP); empty if no bytes were counted."""
    if measured is None or (strategy is not None and legality.problems(strategy, model, cluster)):
        return {}
    times = link_times(measured, model, cluster, strategy)
    return {one.link: one.seconds / measured.median_seconds for one in times}


def _nodes(cluster: ClusterSpec) -> Markup:
    uplinks = {rack.name: rack for rack in cluster.racks}
    rows: list[Row] = []
    for node in cluster.nodes:
        rack = uplinks.get(node.rack or "")
        rows.append(
            (
                node.name,
                node.role,
                TableCell(shown=str(node.devices), number=node.devices),
                figure(node.bandwidth_out, format_rate(node.bandwidth_out)),
                figure(node.bandwidth_in, format_rate(node.bandwidth_in)),
                figure(node.memory_bytes, format_size(node.memory_bytes or 0)),
                node.rack or "" if rack is None or rack.rack is None else f"{rack.name} in {rack.rack}",
                "" if rack is None else f"{format_rate(rack.uplink_out)} out, {format_rate(rack.uplink_in)} in",
            )
        )
    columns = ("node", "role", "devices", "out", "in", "memory", "rack", "uplink of the rack")
    return table("Nodes.", columns, rows, numbers=("devices", "out", "in", "memory"))


def _links(loads: Sequence[ClusterLoad]) -> Markup:
    if not loads:
        return Markup()
    caption = "Share of a step in which each link is busy, by the bytes that were counted."
    names = [load.name for load in loads]
    links = dict.fromkeys(link for load in loads for link in load.shares)
    rows: list[Row] = [(link, *(_share(load.shares.get(link)) for load in loads)) for link in links]
    return table(caption, ("link", *names), rows, numbers=names)


def _share(share: float | None) -> TableCell:
    return figure(share, f"{min(share or 0, 1):.0%}")


def _loads(report: StudyReport, contest: ShownContest) -> Mapping[str, float]:
    """Return the busy share of each link in a contestant's trial; empty if no trial counted bytes."""
    trial, model, cluster = report.trial_of(contest), report.model, report.cluster
    if trial is None or model is None or cluster is None:
        return {}
    return link_loads(trial.record.measurement, model, cluster, trial.strategy)
