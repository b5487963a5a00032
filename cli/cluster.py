"""`autosync cluster`: show a cluster file, or measure the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync import units
from autosync.cli.cluster_check import check
from autosync.cli.cluster_costs import costs
from autosync.cli.options import positive_seconds
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite

if TYPE_CHECKING:
    from autosync.specs.calibration import Calibration, Curve, Estimate
    from autosync.specs.cluster import ClusterSpec
    from autosync.trials.probe import Probed


def probe_limit(cluster: ClusterSpec) -> float:
    """Return the seconds that a probe of a cluster may take."""
    return 60.0 + 20.0 * len(cluster.nodes)


@click.group(epilog="Example: autosync cluster show cluster.yaml")
def cluster() -> None:
    """Show a cluster's nodes, ranks, links, racks and costs, check its nodes, or measure it."""


@cluster.command(
    epilog="""\b
Examples:
  autosync cluster show cluster.yaml
  autosync cluster show 4-hosts-2-servers
  autosync cluster show resource_spec.yml --json > cluster.json"""
)
@click.argument("cluster_file", metavar="CLUSTER.yaml")
@json_option
def show(cluster_file: str, *, as_json: bool) -> None:
    """Check a cluster file and show its nodes, ranks, links and racks.

    CLUSTER.yaml is a cluster file, AutoDist's resource_spec.yml, or the name of a cluster that ships with autosync.
    With --json the output is the cluster file itself, every node written out.
    """
    from autosync.specs.cluster import describe
    from autosync.specs.cluster_file import dump_cluster, load_cluster

    spec = load_cluster(cluster_file, is_run=True)
    if as_json:
        print_json(dump_cluster(spec))
    else:
        print_text(describe(spec))


@cluster.command(
    epilog="""\b
Examples:
  autosync cluster probe cluster.yaml -o calibrated.yaml
  autosync cluster probe cluster.yaml --model model.py -o calibrated.yaml
  autosync cluster probe 4-hosts --json"""
)
@click.argument("cluster_file", metavar="CLUSTER.yaml")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the calibrated cluster file here.")
@click.option(
    "--model",
    "task",
    metavar="MODEL.py[:NAME]",
    help="Also measure how fast nodes compute the model of this task.",
)
@click.option(
    "--timeout",
    callback=positive_seconds,
    metavar="TIME",
    help="Give up after this time.  [default: 1 min and 20 s a node]",
)
@force_option
@json_option
def probe(
    cluster_file: str, *, output: Path | None, task: str | None, timeout: float | None, force: bool, as_json: bool
) -> None:
    """Measure a cluster with real transfers, and report everything unusual.

    It measures links in each direction and in both at once, bursts, latency, the cost of messages and collectives,
    compute and noise. If the file has no racks, it finds groups of nodes that share a link. With --model, the speeds of
    nodes tell `autosync tune` how to divide a batch. With -o, the results are written into a cluster file, which can be
    used wherever CLUSTER.yaml can.
    """
    from autosync.specs.cluster_file import dump_cluster, load_cluster, save_cluster

    refuse_overwrite(output, force=force)
    spec = load_cluster(cluster_file, is_run=True)
    if task is not None:
        _check_task(task)
    # This import loads the launchers, so it waits until the command line has been checked.
    from autosync.trials.probe import ProbeSettings
    from autosync.trials.probe import probe as run_probe

    limit = probe_limit(spec) if timeout is None else timeout
    probed = run_probe(spec, settings=ProbeSettings(timeout_seconds=limit), task=task, progress=note)
    if output is not None:
        save_cluster(output, probed.cluster)
        note(f"written: {output}")
    if as_json:
        warnings = [{"kind": f.kind, "subject": f.subject, "message": f.message} for f in probed.findings]
        print_json({"cluster": dump_cluster(probed.cluster), "warnings": warnings, "seconds": round(probed.seconds, 1)})
    else:
        print_text(describe_probe(probed))


def _check_task(target: str) -> None:
    """Refuse what names no task before any rank starts."""
    from autosync.errors import InputError
    from autosync.specs.task_file import is_task, load_task

    if not is_task(target):
        raise InputError(
            f"--model {target}: its compute cannot be measured", rule="a task, FILE.py[:NAME], which every node can run"
        )
    load_task(target)


def describe_probe(probed: Probed) -> str:
    """Return the measurements as tables for users, followed by the warnings."""
    calibration = probed.calibration
    parts = [_links_table(probed.cluster, calibration), _nodes_table(calibration)]
    if calibration.curves:
        parts.append(_curves_table(calibration.curves))
    if calibration.step_seconds is not None and calibration.step_variation is not None:
        step = _with_interval(calibration.step_seconds, units.format_time)
        parts.append(f"mixed steps: {step}, coefficient of variation {calibration.step_variation:.2%}")
    if probed.speeds:
        told = ", ".join(f"{name} {speed:g}" for name, speed in probed.speeds.items())
        parts.append(f"speed of computing the model, compared with {next(iter(probed.speeds))}: {told}")
    where = "emulated on this machine" if calibration.emulated else "real"
    parts.append(
        f"{probed.cluster.name}, {where}: probed in {probed.seconds:.0f} s, processors busy {calibration.cpu_share:.0%}"
    )
    if probed.search is not None and not probed.search.uplinks and probed.search.doubt is None:
        parts.append(f"no nodes share a link that the file does not state ({probed.search.num_loads} measurements)")
    parts.append("\n".join(f"warning: {finding}" for finding in probed.findings) or "nothing odd was found")
    return "\n\n".join(parts)


def _links_table(spec: ClusterSpec, calibration: Calibration) -> str:
    from autosync.strategy.wording import format_table

    rows = []
    for node in calibration.nodes:
        claimed = spec.nodes[spec.node_index(node.name)]
        rows.append(
            (
                node.name,
                _of_claim(node.rate_out, claimed.bandwidth_out),
                _of_claim(node.rate_in, claimed.bandwidth_in),
                f"{_rate(node.rate_out_both)} / {_rate(node.rate_in_both)}" if node.rate_out_both else "",
                _rate(node.rate_within),
                node.interface or "",
            )
        )
    for rack in calibration.racks:
        uplink = next(one for one in spec.racks if one.name == rack.name)
        rows.append(
            (
                f"rack {rack.name}",
                _of_claim(rack.rate_out, uplink.uplink_out),
                _of_claim(rack.rate_in, uplink.uplink_in),
                "",
                "",
                "",
            )
        )
    return format_table(rows, header=("link", "out", "in", "out / in at once", "within", "interface"))


def _nodes_table(calibration: Calibration) -> str:
    from autosync.strategy.wording import format_table

    rows = [
        (
            node.name,
            f"{_size(node.burst_out_bytes)} / {_size(node.burst_in_bytes)}" if node.rate_out else "",
            _time(node.latency_seconds),
            _time(node.message_seconds),
            _time(node.message_cpu_seconds),
            ", ".join(_time(rank) for rank in node.compute_seconds),
        )
        for node in calibration.nodes
    ]
    header = ("node", "burst out / in", "latency", "a message", "its processor time", "compute")
    return format_table(rows, header=header)


def _curves_table(curves: tuple[Curve, ...]) -> str:
    from autosync.strategy.wording import format_table

    seconds = [{point.num_bytes: point.seconds.value for point in curve.points} for curve in curves]
    sizes = sorted({num_bytes for found in seconds for num_bytes in found})
    # On slow links, curves end before sizes that would take long.
    rows = [
        (units.format_size(size), *(units.format_time(found[size]) if size in found else "" for found in seconds))
        for size in sizes
    ]
    return format_table(rows, header=("all_reduce", *(curve.algorithm for curve in curves)))


def _of_claim(measured: Estimate | None, claimed: float) -> str:
    """Return a measured rate and its ratio to the rate in the file, such as `495 Mbit/s (0.99)`."""
    return "" if measured is None else f"{units.format_rate(measured.value)} ({measured.value / claimed:.2f})"


def _with_interval(measured: Estimate, text: Callable[[float], str]) -> str:
    return f"{text(measured.value)} ({text(measured.low)} to {text(measured.high)})"


def _rate(measured: Estimate | None) -> str:
    return "" if measured is None else units.format_rate(measured.value)


def _size(measured: Estimate | None) -> str:
    return "?" if measured is None else units.format_size(measured.value)


def _time(measured: Estimate | None) -> str:
    return "" if measured is None else units.format_time(measured.value)


cluster.add_command(check)
cluster.add_command(costs)
