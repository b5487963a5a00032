"""How to repeat what a page shows: commands, settings, and the versions that were used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosync import __version__
from autosync.report.markup import Markup, element, joined
from autosync.report.tables import table
from autosync.search.trial_runner import environment
from autosync.specs.cluster import ClusterSpec


def repeat_facts(commands: Sequence[str], cluster: ClusterSpec, settings: Mapping[str, str]) -> Markup:
    """Return the commands, and a table of settings and of the versions that this process uses."""
    facts = {**settings, **environment(cluster), "this page": f"autosync {__version__}"}
    return joined(
        element("pre", element("code", "\n".join(commands))),
        table("Settings and versions.", ("what", "value"), list(facts.items())),
    )
