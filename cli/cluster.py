"""`autosync cluster`: look at a cluster file."""

from __future__ import annotations

import click

from autosync.cli.output import json_option, print_json


@click.group(epilog="Example: autosync cluster show cluster.yaml")
def cluster() -> None:
    """Look at a cluster: its nodes, ranks, links and racks."""


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

    spec = load_cluster(cluster_file)
    if as_json:
        print_json(dump_cluster(spec))
    else:
        print(describe(spec))
