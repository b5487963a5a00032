"""The cluster: its nodes, and how busy each link is under stock DDP and under the winner."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.report.markup import Markup, element, joined
from autosync.report.study_report import StudyReport
from autosync.report.tables import Row, TableCell, figure, table
from autosync.search.link_times import link_times
from autosync.search.shown_summary import ShownContest
from autosync.specs.cluster import ClusterSpec
from autosync.strategy import legality
from autosync.units import format_rate, format_size


def cluster_section(report: StudyReport) -> Markup:
    """Return the cluster's nodes, and the load of its links if trials counted bytes."""
    cluster = report.cluster
    if cluster is None:
        return element("p", "The cluster spec is not in the study's folder.", class_="soft")
    how = "emulated on one machine" if cluster.is_emulated else f"reached by the launcher {cluster.launcher}"
    probed = "probed" if cluster.calibration is not None else "not probed: its rates are those of its file"
    words = f"{cluster.name}, {how}, backend {cluster.backend}; {probed}."
    return joined(element("p", words), _nodes(cluster), _links(report))


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
                node.rack or "",
                "" if rack is None else f"{format_rate(rack.uplink_out)} out, {format_rate(rack.uplink_in)} in",
            )
        )
    columns = ("node", "role", "devices", "out", "in", "memory", "rack", "uplink of the rack")
    return table("Nodes.", columns, rows, numbers=("devices", "out", "in", "memory"))


def _links(report: StudyReport) -> Markup:
    before, after = _loads(report, report.default), _loads(report, report.winner)
    if not before and not after:
        return Markup()
    caption = "Share of a step in which each link is busy, by the bytes that the trials counted."
    if report.winner is report.default:
        rows = [(link, _share(before.get(link))) for link in before]
        return table(caption, ("link", "stock DDP"), rows, numbers=("stock DDP",))
    columns = ("link", "stock DDP", "the winner")
    both = [(link, _share(before.get(link)), _share(after.get(link))) for link in {**before, **after}]
    return table(caption, columns, both, numbers=columns[1:])


def _share(share: float | None) -> TableCell:
    return figure(share, f"{min(share or 0, 1):.0%}")


def _loads(report: StudyReport, contest: ShownContest) -> Mapping[str, float]:
    """Return the busy share of each link in a contestant's trial; empty if no trial counted bytes."""
    trial, model, cluster = report.trial_of(contest), report.model, report.cluster
    if trial is None or trial.record.measurement is None or model is None or cluster is None:
        return {}
    if trial.strategy is not None and legality.problems(trial.strategy, model, cluster):
        return {}
    measured = trial.record.measurement
    times = link_times(measured, model, cluster, trial.strategy)
    return {one.link: one.seconds / measured.median_seconds for one in times}
