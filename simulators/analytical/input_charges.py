"""Charges the input of ranks: steps wait for batches, and reads take time of the links that carry messages.

Reads and messages need a link one after the other, so a step is no shorter than both together. Otherwise a step is as
long as its input, or as all the rest: workers make batches while ranks train. Without workers, a rank reads and makes
its batch before it trains; meanwhile only those messages travel that may overlap the next forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.simulators.analytical.tables import LINK, PROCESSORS, KernelInputs, Prices
from autosync.simulators.shared.arrays import Floats, Integers
from autosync.simulators.shared.reads import Reads
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.uplinks import NO_RACK, racks_around


class InputCharges:
    """Charges the reads of strategies on a cluster.

    `classes_apart`: each node's links are among the resources of prices. Otherwise nodes that do the same are one, and
    reads are charged to all of them as to the node that needs most for its own.
    """

    def __init__(self, cluster: ClusterSpec, costs: Costs, *, classes_apart: bool) -> None:
        self._costs = costs
        self._num_nodes = len(cluster.nodes)
        self._num_racks = len(cluster.racks)
        self._is_apart = classes_apart
        ranks = cluster.ranks[: cluster.num_workers]
        self._node_of = np.array([rank.node for rank in ranks], dtype=np.int64)
        around = racks_around(cluster)
        self._around = [[rack for rack in around[node] if rack != NO_RACK] for node in range(self._num_nodes)]

    def charged(self, seconds: Floats, given: KernelInputs, all_reads: Sequence[Reads | None]) -> Floats:
        """Return the seconds of a step of each strategy with its reads, from those without."""
        if not any(reads is not None for reads in all_reads):
            return seconds
        taken, prices, found = taken_by_units(given), given.prices, seconds.copy()
        pace = given.training.pace
        compute = pace.backward + pace.between + float(given.training.forward["seconds"].sum())
        for number, reads in enumerate(all_reads):
            if reads is not None:
                hides = bool(given.units.strategies["forward"][number])
                least = compute if hides else float(seconds[number])
                found[number] = self._with_reads((float(seconds[number]), least), taken[number], prices, reads)
        return found

    def _with_reads(self, step: tuple[float, float], taken: Floats, prices: Prices, reads: Reads) -> float:
        """Return the seconds of a step. `step` has those without reads, and of these what cannot be at the same time
        as input without workers."""
        seconds, apart = step
        work = np.array(reads.work_seconds)
        links = self._on_links(prices, reads)
        read = self._read_seconds(prices, links, reads)
        num_workers = reads.settings.num_workers
        if num_workers == 0:
            return max(seconds, apart + float((read + work).max(initial=0.0)))
        busy = float((taken + links)[prices.resources["kind"] == LINK].max(initial=0.0))
        if self._costs.num_processors is not None:
            is_processors = prices.resources["kind"] == PROCESSORS
            busy = max(
                busy,
                float(
                    taken[is_processors].max(initial=0.0)
                    + work.sum() * reads.processor_share / self._costs.num_processors
                ),
            )
        # A worker reads and then makes a batch; together they give batches no faster than the links and storage do.
        batches = float(np.maximum((read + work) / num_workers, read).max(initial=0.0))
        return max(seconds, batches, busy)

    def _on_links(self, prices: Prices, reads: Reads) -> Floats:
        """Return the seconds for which the reads of a step need each resource."""
        found = np.zeros(len(prices.resources))
        rates = prices.resources["speed"]
        num_bytes = self._bytes_of_nodes(reads)
        links = np.flatnonzero(prices.resources["kind"] == LINK)
        if not self._is_apart:
            num_classes = (len(links) - 2 * self._num_racks) // 3
            into = slice(num_classes, 2 * num_classes)
            found[into] = num_bytes.max(initial=0.0) / rates[into]
            return found
        into = slice(self._num_nodes, 2 * self._num_nodes)
        found[into] = num_bytes / rates[into]
        for node, racks in enumerate(self._around):
            for rack in racks:
                link = 3 * self._num_nodes + self._num_racks + rack
                found[link] += num_bytes[node] / rates[link]
        return found

    def _read_seconds(self, prices: Prices, links: Floats, reads: Reads) -> Floats:
        """Return the seconds in which each worker rank's batch comes if there are no messages."""
        num_bytes = self._bytes_of_nodes(reads)
        storage = np.array([np.inf if rate is None else rate for rate in reads.rates])
        of_nodes = num_bytes / storage
        if self._is_apart:
            of_nodes = np.maximum(of_nodes, links[self._num_nodes : 2 * self._num_nodes])
            for node, racks in enumerate(self._around):
                for rack in racks:
                    of_nodes[node] = max(of_nodes[node], links[3 * self._num_nodes + self._num_racks + rack])
        else:
            of_nodes = np.maximum(of_nodes, links[prices.resources["kind"] == LINK].max(initial=0.0))
        found: Floats = of_nodes[self._node_of]
        return found

    def _bytes_of_nodes(self, reads: Reads) -> Floats:
        weights = np.array(reads.num_bytes, np.float64)
        found: Floats = np.bincount(self._node_of, weights=weights, minlength=self._num_nodes).astype(np.float64)
        return found


def taken_by_units(given: KernelInputs) -> Floats:
    """Return the seconds for which the messages of each strategy take each resource in a step."""
    prices, units, amounts = given.prices, given.units.units, given.units.amount
    num_resources = len(prices.resources)
    of_units = np.zeros((len(units), num_resources))
    for number, template in enumerate(prices.templates):
        some: Integers = np.flatnonzero(units["template"] == number)
        if not len(some):
            continue
        for step in prices.steps[template["first_step"] : template["last_step"]]:
            amount = amounts[some, step["measure"]] / step["every"]
            if step["own_items"]:
                amount = amount * units["item_bytes"][some]
            slices = units["num_slices"][some] / step["every"]
            for use in prices.uses[step["first_use"] : step["last_use"]]:
                of_units[some, use["resource"]] += slices * use["fixed"] + amount * use["unit"]
    strategies = given.units.strategies
    sums = np.concatenate([np.zeros((1, num_resources)), np.cumsum(of_units, axis=0)])
    found: Floats = sums[strategies["last_unit"]] - sums[strategies["first_unit"]]
    return found
