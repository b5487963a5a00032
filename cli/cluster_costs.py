"""`autosync cluster costs`: the costs that simulators read from a cluster, or the profiles that ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.output import json_option, print_json, print_text

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec


@click.command(
    epilog="""\b
Examples:
  autosync cluster costs
  autosync cluster costs nccl-pcie
  autosync cluster costs cluster.yaml --json"""
)
@click.argument("name", metavar="[CLUSTER.yaml|PROFILE]", required=False)
@json_option
def costs(name: str | None, *, as_json: bool) -> None:
    """Show what messages and work cost on a cluster, and where each figure is from.

    Simulators read these costs. A cluster file names a profile under `costs` and may change single figures; a probe
    replaces what it measures. Given a profile, every figure is shown with its source. Without a name, the profiles that
    ship are listed.
    """
    from autosync.specs.cluster_file import load_cluster
    from autosync.specs.cost_profiles import profile_names

    if name is None:
        found = _profiles()
    elif name in profile_names() and not Path(name).is_file():
        found = _of_profile(name)
    else:
        found = _of_cluster(load_cluster(name))
    if as_json:
        print_json(found)
    else:
        print_text(_in_words(found))


def _profiles() -> dict[str, Any]:
    from autosync.specs.cost_profiles import cost_profile, profile_names

    return {"profiles": [{"name": name, "about": cost_profile(name).about} for name in profile_names()]}


def _of_profile(name: str) -> dict[str, Any]:
    from autosync.specs.cost_figures import FIGURES
    from autosync.specs.cost_profiles import cost_profile, figure_of

    profile = cost_profile(name)
    rows = [_row(figure, figure_of(profile.costs, figure), profile.sources[figure]) for figure in FIGURES]
    return {"profile": name, "about": profile.about, "figures": rows}


def _of_cluster(cluster: ClusterSpec) -> dict[str, Any]:
    from autosync.simulators.shared.costs import usual_costs
    from autosync.specs.cost_figures import FIGURES
    from autosync.specs.cost_profiles import cost_profile, figure_of

    profile, stated = cluster.profile_of_costs, dict(cluster.costs.figures) if cluster.costs else {}
    usual, found = cost_profile(profile).costs, usual_costs(cluster)

    def source(figure: str) -> str:
        if figure in stated:
            return "file"
        return "profile" if figure_of(found, figure) == figure_of(usual, figure) else "probe"

    rows = [_row(figure, figure_of(found, figure), source(figure)) for figure in FIGURES]
    return {"cluster": cluster.name, "profile": profile, "about": cost_profile(profile).about, "figures": rows}


def _row(figure: str, value: float | None, source: str) -> dict[str, Any]:
    from autosync.specs.cost_figures import FIGURES, figure_in_words

    words = figure_in_words(figure, value)
    return {"figure": figure, "value": value, "words": words, "from": source, "meaning": FIGURES[figure].meaning}


def _in_words(found: dict[str, Any]) -> str:
    from autosync.strategy.wording import format_table

    if "profiles" in found:
        profiles = [(one["name"], one["about"]) for one in found["profiles"]]
        return format_table(profiles, header=("profile", "costs of"))
    if "cluster" in found:
        head = f"{found['cluster']}: costs of the profile {found['profile']}"
        figures = [(one["figure"], one["words"], one["from"], one["meaning"]) for one in found["figures"]]
        return f"{head}\n\n{format_table(figures, header=('figure', 'value', 'from', 'meaning'))}"
    rows = [(one["figure"], one["words"], one["from"]) for one in found["figures"]]
    return f"{found['profile']}: {found['about']}\n\n{format_table(rows, header=('figure', 'value', 'source'))}"
