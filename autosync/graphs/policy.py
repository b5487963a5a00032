"""How a model's vertices are batched, and the file that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autosync import documents
from autosync.errors import InputError, Problem
from autosync.graphs.graph_batch import GraphBatch
from autosync.graphs.input_graph import Integers
from autosync.graphs.order_search import rule_of
from autosync.graphs.orders import by_depth, by_rule, lowest_first
from autosync.specs.graph_batching import GraphBatching, GraphProfile, OrderName

KIND = "batching_policy"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingPolicy:
    """The order of groups, and whether weight gradients wait for one product at the end of the backward pass.

    `naive` runs one vertex after the other. `searched` follows `table`, which maps states to signatures.
    """

    order: OrderName = "depth"
    lazy_weights: bool = False
    table: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table and self.order != "searched":
            what = f"order {self.order} does not read a table"
            raise InputError([Problem(what=what, rule="a table needs order: searched", path=("table",))])
        if self.lazy_weights and self.order == "naive":
            rule = "without groups there is nothing to add up"
            raise InputError([Problem(what="naive with lazy weights", rule=rule, path=("lazy_weights",))])

    @property
    def name(self) -> str:
        return f"{self.order}, lazy weights" if self.lazy_weights else self.order

    def groups_of(self, batch: GraphBatch) -> Integers:
        """Return the number of each vertex's group."""
        match self.order:
            case "naive":
                return _one_by_one(batch)
            case "depth":
                return by_depth(batch)
            case "agenda":
                return by_rule(batch, lowest_first)
            case "searched":
                return by_rule(batch, rule_of(self.table, batch))


def policy_of(batching: GraphBatching, profile: GraphProfile) -> BatchingPolicy:
    """Return the policy of a strategy's batching; the profile has the table of the searched order."""
    table = profile.table if batching.order == "searched" else {}
    return BatchingPolicy(order=batching.order, lazy_weights=batching.lazy_weights, table=table)


def _one_by_one(batch: GraphBatch) -> Integers:
    groups = batch.heights.argsort(kind="stable").argsort()
    return groups.astype("int64")


def read_policy(path: Path | str) -> BatchingPolicy:
    """Read a policy file."""
    policy, _ = documents.load(path, kind=KIND, version=VERSION, into=BatchingPolicy)
    return policy


def write_policy(path: Path | str, policy: BatchingPolicy) -> None:
    """Write a policy as YAML, or as JSON if the file name ends in .json."""
    documents.write(path, documents.dump(policy, kind=KIND, version=VERSION))
