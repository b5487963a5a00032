"""The bound of strategies that divide the model: seconds of a step that none of them can beat.

The terms, each of which is a bound by itself:

- **compute**: the passes of the whole batch, over all devices, with microbatches of the size that takes least for an
  example. Bubbles and updates count as nothing.
- **node_out**, **node_in**, **rack_out**, **rack_in**: what must cross an interface or an uplink, which has devices on
  both sides, here and there. Either both sides hold all layers, as in data-parallel training: then the gradients of the
  whole model leave and enter. Or some layers are only on one side. Then only the other side can compute a microbatch
  alone. All other microbatches cross at least one cut, their activations in one direction and the gradients of these in
  the other. In time T the devices of one side compute no more than T times their speed of the whole compute C. Which
  side lacks layers is not known, so the faster side counts. The share 1 - T·speed/C of the batch, or more, crosses the
  cut with the fewest bytes:

      T >= (1 - T·speed / C)·bytes / rate,  so  T >= a / (1 + a·speed / C)  with  a = bytes / rate

  And every rank computes a stage, in which n ranks take turns: that is 1 / (2n - 1) of the batch or more, and on the
  side that lacks layers all of this crosses. The smaller of both cases counts.

Latency, and bytes that do not grow with the batch, count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autosync.plan.bound_terms import Bound, Rates, Term, TermKind, pair_of_node, pair_of_rack
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import share_factor
from autosync.specs.model import STATE_ITEM_BYTES, ModelSpec
from autosync.specs.uplinks import nodes_behind
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.stage_rules import why_undivided


def stage_bound(model: ModelSpec, cluster: ClusterSpec, *, rates: Rates | None = None) -> Bound | None:
    """Return the bound of strategies that divide a model over a cluster; None if no such strategy is legal."""
    if why_undivided(model, cluster):
        return None
    known = rates or Rates()
    compute = _compute_of_batch(model, cluster)
    speed = _speed(cluster, range(len(cluster.nodes)))
    terms = [Term(kind="divided_compute", subject="", num_bytes=0.0, seconds=compute / speed)]
    crossing = _Crossing(model, cluster, compute)
    for index, node in enumerate(cluster.nodes):
        if node.role == "worker" and _speed(cluster, [index]) < speed:
            pair = pair_of_node(cluster, index, known)
            terms += crossing.terms(("divided_node_out", "divided_node_in"), node.name, pair, [index])
    for rack, inside in zip(cluster.racks, nodes_behind(cluster), strict=True):
        if 0 < _speed(cluster, inside) < speed:
            pair = pair_of_rack(rack, known)
            terms += crossing.terms(("divided_rack_out", "divided_rack_in"), rack.name, pair, inside)
    return Bound(terms=tuple(terms))


def least_divided_memory(model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the least bytes that the fullest rank needs: the whole model, and its share of gradients and state.

    Without stages, each rank has the gradients and mostly the state of the whole model.
    """
    state = STATE_ITEM_BYTES * model.optimizer.state_slots * sum(one.num_elements for one in model.variables)
    return model.num_bytes + (model.num_bytes + state) / cluster.num_workers


def _compute_of_batch(model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the seconds in which one device of speed 1 passes the global batch, in the best microbatches."""
    num_examples = model.batch_size * cluster.num_workers
    passes = math.fsum(segment.seconds for segment in (*model.timeline.forward, *model.timeline.backward))
    return passes * min(count * share_factor(model, num_examples / count) for count in legal_counts(model, cluster))


def _speed(cluster: ClusterSpec, nodes: Sequence[int]) -> float:
    """Return the speed of all devices of some nodes together."""
    chosen = (cluster.nodes[index] for index in nodes)
    return math.fsum(node.compute * node.devices for node in chosen if node.role == "worker")


class _Crossing:
    """What must cross between some nodes and all others."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, compute: float) -> None:
        self._cluster = cluster
        self._compute = compute
        self._gradients = float(model.num_bytes)
        fewest = min(cut.num_bytes - cut.fixed_bytes for cut in model.timeline.cuts)
        self._activations = float(fewest * cluster.num_workers)

    def terms(
        self, kinds: tuple[TermKind, TermKind], subject: str, rates: tuple[float, float], inside: Sequence[int]
    ) -> Iterator[Term]:
        outside = [index for index in range(len(self._cluster.nodes)) if index not in inside]
        # The share of the batch that the faster side could compute in a second.
        alone_per_second = max(_speed(self._cluster, side) for side in (inside, outside)) / self._compute
        for kind, rate in zip(kinds, rates, strict=True):
            every = self._activations / rate
            crossing = max(every / (1 + every * alone_per_second), every / (2 * self._cluster.num_workers - 1))
            seconds = min(self._gradients / rate, crossing)
            yield Term(kind=kind, subject=subject, num_bytes=seconds * rate, seconds=seconds)
