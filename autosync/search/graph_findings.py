"""What the batching and the dealing of graphs bring, for the results of a study of a model whose graph changes."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.graph_batching import in_words
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy


def graph_findings(winner: Strategy | None, model: ModelSpec, cluster: ClusterSpec) -> dict[str, object] | None:
    """Return the facts and a sentence; None if the model's graph does not change. None as winner is stock DDP.

    All times are by the profile: how long passes take under a policy, and how long the slowest worker takes compared
    with a batch of examples that were dealt by count.
    """
    graphs = model.graphs
    if graphs is None:
        return None
    chosen = (winner.batching if winner is not None else None) or graphs.own
    seconds, own_seconds = graphs.seconds_of(chosen), graphs.policies[0].seconds
    assert seconds is not None, "a legal strategy has a measured policy"
    by_count, by_cost = (graphs.dealing_factor(one, cluster.num_workers) for one in ("count", "cost"))
    return {
        "batching": in_words(chosen),
        "policy_times_as_fast": own_seconds / seconds,
        "slowest_by_count": by_count,
        "slowest_by_cost": by_cost if graphs.knows_dealing else None,
        "lost_by_count": 1 - 1 / by_count,
        "in_words": _words(own_seconds / seconds, by_count, by_cost, cluster.num_workers, graphs.undealt),
    }


def _words(policy: float, by_count: float, by_cost: float, num_workers: int, undealt: str) -> str:
    told = f"by the profile, its policy is {policy:.2f} times as fast as the model's own"
    if policy == 1:
        told = "its policy is the model's own"
    if num_workers < 2:
        return told
    if undealt:
        return f"{told}; examples cannot be dealt by cost: {undealt}"
    return (
        f"{told}; the slowest of {num_workers} ranks takes {by_count:.2f} times as long as a mean batch if examples "
        f"are dealt by count, and {by_cost:.2f} times by cost"
    )
