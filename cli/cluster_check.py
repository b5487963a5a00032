"""`autosync cluster check`: check that all nodes are fit for trials."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from autosync.cli.output import json_option, note, print_json, print_text


@click.command(
    epilog="""\b
Examples:
  autosync cluster check cluster.yaml
  autosync cluster check cluster.yaml --file train.py --json"""
)
@click.argument("cluster_file", metavar="CLUSTER.yaml")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file that every node must have, equal to the one here.",
)
@json_option
def check(cluster_file: str, *, files: tuple[Path, ...], as_json: bool) -> None:
    """Check every node: Python, torch, autosync, interface, reachable peers, free memory and disk.

    The output names nodes that differ from the others. The exit code is 1 if no trial could succeed.
    """
    from autosync.launchers.node_check import check_nodes
    from autosync.specs.cluster_file import load_cluster

    spec = load_cluster(cluster_file, is_run=True)
    with tempfile.TemporaryDirectory(prefix="autosync-check-") as folder:
        checked = check_nodes(spec, Path(folder), files=files)
    if as_json:
        found = [{"node": f.node, "severity": f.severity, "words": f.words} for f in checked.findings]
        print_json({"nodes": checked.nodes, "findings": found})
    else:
        print_text(checked.table())
        for finding in checked.findings:
            note(f"{finding.severity}: {finding}")
    if checked.errors:
        raise click.exceptions.Exit(1)
