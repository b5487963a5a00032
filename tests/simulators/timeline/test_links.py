"""The links of the timeline have the probed rates that count."""

from __future__ import annotations

from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.timeline.links import network_of
from autosync.specs.cluster import BackendName, ClusterSpec, Node
from tests.helpers.probed_clusters import probed


def _out(backend: BackendName, rate: float) -> float:
    """The rate out of a node whose file says 1e9, and whose links gloo measured at some rate."""
    nodes = tuple(Node(name=name, host=name, bandwidth_out=1e9, bandwidth_in=1e9) for name in "ab")
    cluster = ClusterSpec(name="c", nodes=nodes, launcher="ssh", backend=backend)
    cluster = probed(cluster, {"a": rate, "b": rate}, {})
    return float(network_of(cluster, usual_costs(cluster)).link_rate[0])


def test_another_backend_than_the_probe_has_at_least_the_rate_of_the_file() -> None:
    assert _out("gloo", 3e8) == 3e8
    assert _out("nccl", 3e8) == 0.97e9
    assert _out("nccl", 2e9) == 2e9
