"""Rules that several synchronisers share, and the facts of a message, its model and its cluster that rules read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync.errors import Path
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS, Backend
from autosync.strategy.parts import Part
from autosync.strategy.shapes.levels import num_level_shares
from autosync.strategy.shapes.trees import MAX_SHARES, TreeShare, check_shares

Finding = tuple[Path, str, str]
"""A broken rule: the path within the message, the mistake, and the rule."""

PLACE: Path = ("synchroniser",)
ALONE = "each rank trains alone, and nothing says how much a rank's own steps are worth"
"""The rule where ranks that train apart would have steps of unlike weights."""


class Routes(Protocol):
    """The limits of a space on topologies."""

    @property
    def topologies(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """The facts that rules read.

    These are a message's parts, whether it is sliced or encoded, the model, the cluster and its backend.
    """

    parts: Sequence[Part]
    is_sliced: bool
    is_encoded: bool
    model: ModelSpec
    cluster: ClusterSpec
    backend: Backend
    nodes: Mapping[str, Node]


def elementwise(facts: MessageFacts, what: str) -> Iterator[Finding]:
    """Yield a finding if the optimizer is not elementwise; `what` names the feature that updates pieces."""
    if not facts.model.optimizer.elementwise:
        yield PLACE, f"{what} with {facts.model.optimizer.name}", "needs an elementwise optimizer"


def need_trees(topology: str, trees: Sequence[TreeShare]) -> None:
    """Raise ValueError unless the trees make a shape, or there are none because the topology has none."""
    if topology == "trees":
        check_shares(trees)
    elif trees:
        raise ValueError(f"trees with topology {topology} (only topology trees has trees)")


def fits_trees(cluster: ClusterSpec, limits: Routes, *, takes_servers: bool) -> bool:
    """Whether a space has trees that are fitted to the cluster's links: where they may gain, if the limits allow it.

    If `takes_servers`, servers may be inner nodes of the trees.
    """
    if "trees" not in limits.topologies or cluster.num_workers < 2 or not BACKENDS[cluster.backend].own_rounds:
        return False
    # It loads numpy, which readers of strategies do not need.
    from autosync.strategy.shapes.links import trees_may_gain

    return trees_may_gain(cluster, takes_servers=takes_servers)


def tree_shapes(facts: MessageFacts, topology: str, trees: Sequence[TreeShare]) -> Iterator[Finding]:
    """Yield a finding for each rule that the topologies `levels` and `trees` break on the cluster."""
    cluster, place = facts.cluster, (*PLACE, "trees")
    num_workers = cluster.num_workers
    if topology == "levels" and num_level_shares(cluster) > MAX_SHARES:
        yield (*PLACE, "topology"), f"levels in {num_level_shares(cluster)} shares", f"at most {MAX_SHARES}"
    if topology != "trees":
        return
    num_ranks = trees[0].num_ranks
    if not num_workers <= num_ranks <= len(cluster.ranks):
        rule = f"{cluster.name} has {num_workers} workers, and trees name each of them"
        yield place, f"trees over {num_ranks} ranks", rule
    missing = sorted({rank for share in trees for rank in share.absent if rank < num_workers})
    if missing:
        yield place, f"rank {missing[0]} is absent in a tree", "only servers may be absent"


def rows(facts: MessageFacts) -> Iterator[Finding]:
    """Yield a finding for each reason why the touched rows of a message cannot travel."""
    part = facts.parts[0]
    if len(facts.parts) > 1:
        yield ("parts",), "several parts travel as rows", "rows travel alone: one part in the message"
    if part.variable.kind != "embedding":
        yield PLACE, f"{part.name} is {part.variable.kind}", "rows need an embedding"
    if not facts.model.optimizer.sparse:
        yield PLACE, f"rows with {facts.model.optimizer.name}", "needs an optimizer that takes sparse gradients"
    if facts.model.clip_norm or facts.model.loss_scaling:
        yield PLACE, "rows in a task that clips or scales", "clipping and scaling are for dense gradients"
    if facts.is_sliced:
        yield ("slice_bytes",), "rows in slices", "rows are not sliced: their number is known at run time only"
