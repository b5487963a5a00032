"""The rates at which storage serves hosts: measured by loaders, kept in a file, and put into a bundle.

A bundle with these rates deals fewer examples of each step to the ranks of a host that is served worse. They are the
strategy's shares, so `autosync.loader` deals them and the engine weighs gradients by them: training stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosync import documents
from autosync.documents import STRICT
from autosync.errors import InputError, Problem
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_cost import InputCost
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.bundle import Bundle
from autosync.strategy.shares import are_even, deal, global_batch

KIND, VERSION = "served_rates", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRates:
    """What loaders measured: the bytes that an example takes, and the bytes a second that each host gets.

    A host's rate is that of all its ranks together.
    """

    __pydantic_config__ = STRICT

    example_bytes: float
    hosts: Mapping[str, float]

    def __post_init__(self) -> None:
        rates = {"example_bytes": self.example_bytes, **self.hosts}
        wrong = next((name for name, rate in rates.items() if not 0 < rate < math.inf), None)
        if wrong is not None or not self.hosts:
            what = "no host is there" if wrong is None else f"{wrong} has {rates[wrong]}"
            raise InputError([Problem(what=what, rule="one host or more, and finite numbers above 0")])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPace:
    """How fast a rank is with its examples: how many a second its input can give, and the compute time of each.

    `overlaps`: workers make batches while the rank computes.
    """

    examples_per_second: float
    compute_seconds: float
    overlaps: bool = True

    @property
    def speed(self) -> float:
        """The examples a second that input and compute allow together."""
        input_seconds = 1.0 / self.examples_per_second
        if self.overlaps:
            return 1.0 / max(input_seconds, self.compute_seconds)
        return 1.0 / (input_seconds + self.compute_seconds)


def shares_at(paces: Sequence[RankPace], num_examples: int) -> tuple[int, ...]:
    """Return how many examples of a step each rank should get, so that the step is done early; each gets one or more.

    A rank whose input keeps up with its compute gets no fewer than others, however it is served.
    """
    return deal(num_examples, [pace.speed for pace in paces])


def load_rates(path: Path | str) -> ServedRates:
    """Read a file of rates."""
    return documents.load(path, kind=KIND, version=VERSION, into=ServedRates)[0]


def save_rates(path: Path | str, rates: ServedRates) -> None:
    """Write a file of rates: YAML, or JSON if its name ends in .json."""
    documents.write(path, documents.dump(rates, kind=KIND, version=VERSION))


def dealt_by_rate(bundle: Bundle, rates: ServedRates) -> Bundle:
    """Return the bundle with these rates in its cluster and its model, and with the shares that suit them.

    Raises an error if the strategy cannot have uneven shares.
    """
    cluster, model = _served(bundle.cluster, rates), _with_input(bundle.model, rates)
    shares = shares_at(rank_paces(bundle, model, cluster), global_batch(model, cluster))
    strategy = replace(bundle.strategy, shares=() if are_even(shares) else shares)
    legality.check(strategy, model, cluster)
    return bundled(strategy, model, cluster)


def rank_paces(bundle: Bundle, model: ModelSpec, cluster: ClusterSpec) -> list[RankPace]:
    """Return the pace of each worker rank with its model's examples, by the rates of a cluster."""
    timeline = model.timeline
    passes = math.fsum(segment.seconds for segment in (*timeline.forward, *timeline.backward))
    settings, cost = bundle.strategy.input, model.input or InputCost()
    paces = []
    for rank in cluster.ranks[: cluster.num_workers]:
        node = cluster.nodes[rank.node]
        rate = node.bandwidth_in if node.storage is None else node.storage
        paces.append(
            RankPace(
                examples_per_second=rate / node.devices / max(cost.example_bytes, 1.0),
                compute_seconds=passes / model.batch_size / node.compute,
                overlaps=settings is None or settings.num_workers > 0,
            )
        )
    return paces


def _served(cluster: ClusterSpec, rates: ServedRates) -> ClusterSpec:
    workers = {node.name for node in cluster.nodes if node.role == "worker"}
    strange = sorted(workers ^ set(rates.hosts))
    if strange:
        what = f"{strange[0]} {'has no rate' if strange[0] in workers else 'is no worker of the cluster'}"
        rule = f"a rate for each of the bundle's workers: {', '.join(sorted(workers))}"
        raise InputError([Problem(what=what, rule=rule, path=("hosts",))])
    nodes = [replace(node, storage=rates.hosts.get(node.name)) for node in cluster.nodes]
    return replace(cluster, nodes=tuple(nodes))


def _with_input(model: ModelSpec, rates: ServedRates) -> ModelSpec:
    return replace(model, input=replace(model.input or InputCost(), example_bytes=rates.example_bytes))
