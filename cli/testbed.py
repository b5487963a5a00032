"""`autosync testbed`: emulate a cluster on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.output import json_option, note, print_json, print_text
from autosync.errors import InputError, OperationError
from autosync.units import format_rate, format_size

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec
    from autosync.testbed import Testbed
    from autosync.testbed.records import TestbedRecord

_dry_run_option = click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
_force_option = click.option("--force", is_flag=True, help="Do it even while a process uses the testbed.")


@click.group(epilog="Example: autosync testbed up cluster.yaml")
def testbed() -> None:
    """Emulate a cluster on this machine: hosts in network namespaces with rate-limited links."""


@testbed.command(
    epilog="""\b
Examples:
  autosync testbed up cluster.yaml
  autosync testbed up 4-hosts --dry-run"""
)
@click.argument("cluster_file", metavar="CLUSTER.yaml")
@_dry_run_option
@json_option
def up(cluster_file: str, *, dry_run: bool, as_json: bool) -> None:
    """Bring a cluster's testbed up, or do nothing if it is already up and intact.

    It stays up until `autosync testbed down`. Trials do not need this command: they bring a testbed up and take it
    down.
    """
    cluster = _load(cluster_file)
    from autosync.testbed import layout, live

    if dry_run:
        steps = [str(step) for step in layout.build_calls(live.planned(cluster))]
        if as_json:
            print_json({"commands": [line for step in steps for line in step.splitlines()]})
        else:
            print_text("\n".join(steps))
        return
    live.up(cluster, keep=True, file=_path(cluster_file))
    _print_status([_only(cluster)], as_json=as_json)


@testbed.command(
    epilog="""\b
Examples:
  autosync testbed down cluster.yaml
  autosync testbed down --all"""
)
@click.argument("cluster_file", metavar="[CLUSTER.yaml]", required=False)
@click.option("--all", "every", is_flag=True, help="All testbeds of this user.")
@_force_option
@_dry_run_option
def down(cluster_file: str | None, *, every: bool, force: bool, dry_run: bool) -> None:
    """Take a cluster's testbed down, together with the remains of dead testbeds.

    This ends every process in its hosts. It does nothing if no testbed is up.
    """
    if (cluster_file is None) != every:
        raise InputError("which testbed?", rule="either CLUSTER.yaml or --all")
    cluster, file = (None, None) if cluster_file is None else (_load(cluster_file), _path(cluster_file))
    from autosync.testbed import layout, live

    if dry_run:
        for bed, record in live.find_all():
            if cluster is None or live.belongs(record, cluster, file):
                print_text("\n".join(map(str, layout.removal_calls(bed.layout.switch, bed.layout.namespaces))))
        return
    removed = live.down(cluster, file=file, force=force)
    note(f"taken down: {', '.join(removed)}" if removed else "no such testbed is up")


@testbed.command(
    epilog="""\b
Examples:
  autosync testbed status
  autosync testbed status cluster.yaml --json"""
)
@click.argument("cluster_file", metavar="[CLUSTER.yaml]", required=False)
@json_option
def status(cluster_file: str | None, *, as_json: bool) -> None:
    """Show the testbeds that are up: hosts, addresses, rates, bytes in and out, and the processes in them."""
    from autosync.testbed import live

    cluster = None if cluster_file is None else _load(cluster_file)
    found = live.find_all() if cluster is None else [_only(cluster)]
    _print_status(found, as_json=as_json)


@testbed.command(
    name="exec",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Example:
  autosync testbed exec cluster.yaml host-0 -- ip address""",
)
@click.argument("cluster_file", metavar="CLUSTER.yaml")
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")
def exec_command(cluster_file: str, node: str, command: tuple[str, ...]) -> None:
    """Run a command in a node's host; its exit code becomes this command's."""
    from autosync.testbed import live

    words = (*live.find(_load(cluster_file)).enter(node), "--", *command)
    sys.stdout.flush()
    try:
        # The command replaces this process, so that signals and the terminal reach it directly.
        os.execvp(words[0], words)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise OperationError(f"{words[0]} cannot be run: {error.strerror}") from error


def _load(cluster_file: str) -> ClusterSpec:
    from autosync.specs.cluster_file import load_cluster

    return load_cluster(cluster_file)


def _path(cluster_file: str) -> str:
    from autosync.specs.cluster_file import cluster_path

    return str(cluster_path(cluster_file).resolve())


def _only(cluster: ClusterSpec) -> tuple[Testbed, TestbedRecord]:
    from autosync.testbed import live

    key = live.find(cluster).layout.key
    return next((bed, record) for bed, record in live.find_all() if bed.layout.key == key)


def _print_status(found: list[tuple[Testbed, TestbedRecord]], *, as_json: bool) -> None:
    states = [_status(bed, record) for bed, record in found]
    if as_json:
        print_json({"testbeds": states})
    elif states:
        print_text("\n\n".join(_describe(state) for state in states))
    else:
        note("no testbed is up")


def _status(bed: Testbed, record: TestbedRecord) -> dict[str, Any]:
    faults = list(bed.faults())
    try:
        counters = bed.counters()
    except OperationError:
        # The switch is gone. The list of faults reports it, and the rest is still shown.
        counters = {}
    running = bed.processes()
    return {
        "name": bed.layout.name,
        "key": bed.layout.key,
        "kept": record.is_kept,
        "used_by": sorted({lease.pid for lease in record.users}),
        "faults": faults,
        "hosts": [
            {
                "node": host.node,
                "namespace": host.namespace,
                "address": host.address,
                "rate_out": host.bandwidth_out,
                "rate_in": host.bandwidth_in,
                "bytes_out": counters.get(host.node, (None, None))[0],
                "bytes_in": counters.get(host.node, (None, None))[1],
                "processes": [{"pid": process.pid, "command": process.command} for process in running[host.node]],
            }
            for host in bed.layout.hosts
        ],
        "uplinks": [
            {"rack": uplink.rack, "rate_out": uplink.out, "rate_in": uplink.into} for uplink in bed.layout.uplinks
        ],
    }


def _describe(state: dict[str, Any]) -> str:
    from autosync.strategy.wording import format_table

    used = f"used by process {', '.join(map(str, state['used_by']))}" if state["used_by"] else "not in use"
    lines = [f"{state['name']}: {'kept' if state['kept'] else 'not kept'}, {used}", ""]
    header = ("node", "namespace", "address", "rate out", "rate in", "sent", "received", "processes")
    rows = [
        (
            host["node"],
            host["namespace"],
            host["address"],
            format_rate(host["rate_out"]),
            format_rate(host["rate_in"]),
            *("" if host[way] is None else format_size(host[way]) for way in ("bytes_out", "bytes_in")),
            ", ".join(f"{process['pid']} {process['command']}"[:60] for process in host["processes"]),
        )
        for host in state["hosts"]
    ]
    lines.append(format_table(rows, header=header))
    for uplink in state["uplinks"]:
        rates = f"{format_rate(uplink['rate_out'])} out, {format_rate(uplink['rate_in'])} in"
        lines.append(f"rack {uplink['rack']}: {rates}")
    lines += [f"fault: {fault}" for fault in state["faults"]]
    return "\n".join(lines)
