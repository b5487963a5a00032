"""The bound: seconds of a step that no exact strategy for a model on a cluster can beat, if it has no stages.

Strategies that divide the model have a bound of their own (`stage_bound`). Where devices compute equally fast, it is
the bound of strategies with even shares: uneven ones, which no search proposes there, may beat it beside a slow link.

The bound holds for a step of a long run, in which transfers overlap both passes and each step overlaps the next. It is
the largest of several terms, each of which is a bound by itself. All terms rest on the bytes that must pass an
interface under every exact strategy of the representation, whichever ranks sum, update or answer:

- **dense**: one number for every element of a gradient. Ranks of one node may add up their gradients before they send,
  and a server that sums or updates also sends one number for every element.
- **rows**, if the task allows them: the numbers of every touched row. A part may travel as rows, as new rows or
  dense, and in each form its touched rows are sent. So a table never costs less than its touched rows without their
  indices, however it is cut. Several ranks together touch at least as many rows as one rank; no more is certain. (The
  union is larger the more evenly rows are drawn, and a part in which every row was touched can travel dense, without
  indices.) If rows are known to be drawn evenly, as in a replay (`even_rows`), the expected size of the union is
  known and no part is touched more than another. Then either rows travel with their indices, or all rows travel.
- **factors**, if the task allows them: the factors of one rank, because factors of several ranks do not add up. If
  some parts of a variable travel as factors and others dense, their sum is no smaller than the smaller of the two.

The least bytes of a variable for a group of ranks are therefore `min(dense, ranks x factors)`, or its touched rows.
If not every step uses the variable, they are expected bytes: nothing has to be sent of the gradients of a group in
which no rank uses it (see `specs.use_sample`). The bound is then one of the mean step.
The terms are:

- **compute**: a device runs forward and backward of one step after those of the step before. The update does not
  count: it may run elsewhere, or beside the next forward pass. Where devices compute at different speeds, strategies
  may divide the batch (`strategy.shares`). Then the best division counts, whole examples or not, and the two terms
  that rest on a rank's own compute (`use_to_use`, `window`) are left out, because a rank may compute very little. For
  the same reason a rank's touched rows count as those of a single example.
- **node_out**, **node_in**: the new parameters of all other nodes depend on a node's gradients, so the least bytes of
  its ranks must leave it. Its own new parameters depend on the other nodes' gradients, so the least bytes of their
  ranks must enter it. A server among the workers sends new parameters instead, which are no smaller. A node that holds
  all workers sends nothing.
- **total**: n nodes must tell each other what each knows of an element. At least n-1 messages are sent before any rank
  (a worker or a server) knows everything, and from then on each of the n-1 other nodes must be sent one more: 2(n-1).
  A row that k nodes touch takes (k-1) + (n-1) messages, and the k of all rows add up to the rows that each node
  touches. The factors of each of the N ranks must reach n-1 nodes. All these bytes leave one interface and enter
  another. Nodes without workers can help, but not for free: data that is sent to such a node goes to one more node.
  If nodes without workers send s times in all, workers still send 2(n-1) - s(n-2)/(n-1) times or more, so the
  interfaces of nodes without workers count with a weight of (n-2)/(n-1). (These nodes must receive before they can
  send, so all nodes together send 2n-1 times or more, and each worker sends at least once. The same is true of
  receiving.)
- **both_ways**: where a node without workers saves others from sending, they receive more. In both directions together,
  every element takes 4(n-1) messages, where those nodes count with a weight of (n-2)/n alone (`docs/notes/bound.md` has
  the proof). Without such nodes, this says no more than total. Rows, factors and variables that some steps do not use
  count by what total says of them.
- **rack_out**, **rack_in**: as for a node, with the workers of a rack against all other workers.
- **rack_total**, **rack_both_ways**: as total and both_ways, with racks in place of nodes and uplinks in place of
  interfaces, and again with pods. A node without a rack is a rack by itself. With two racks, this is no more than what
  rack_out and rack_in say.
- **use_to_use**: a variable is used; its gradient is ready no sooner than compute allows; that gradient leaves node u,
  and data that depends on it enters node w before w's next use. The way there and back takes two steps: twice the
  compute and the two transfers, each at the rate of the slowest link on its way. The slowest pair of nodes counts.
- **window**: the same for several variables at once. None of their gradients leaves u before the first of them is
  ready, and all have entered w before the last of them is used, so all their bytes must pass in the time between. The
  longest of all such windows, each from a gradient to a use, counts.

A variable that some steps do not use has neither of the last two terms: its next use may be several steps away.

Latency, overheads, the wires within nodes and the few bytes of a norm count as nothing. Rates are those of the cluster
spec or of `Rates`: where rates were measured (`rates_of`), the upper ends of their confidence intervals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autosync.plan.bound_terms import Bound, Pair, Rates, Term, TermKind, pair_of_node, pair_of_rack
from autosync.plan.rows import union_rows
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import Pace, at_pace, least_passes
from autosync.specs.model import ITEM_BYTES, ModelSpec, Variable
from autosync.specs.uplinks import NO_RACK, Around, innermost_racks, nodes_behind, outermost_racks, racks_around
from autosync.specs.use_sample import UseSample
from autosync.strategy.parts import INDEX_BYTES


def bound(model: ModelSpec, cluster: ClusterSpec, *, rates: Rates | None = None, even_rows: bool = False) -> Bound:
    """Return the bound for a model on a cluster with all its terms, which the docstring of this module explains.

    `even_rows` says that each rank, independently, touches every row of an embedding with equal probability.
    """
    known = rates or Rates()
    passes = least_passes(model, cluster)
    compute = _compute_seconds(model) * passes
    terms = [Term(kind="compute", subject="", num_bytes=0.0, seconds=compute)]
    nodes = [pair_of_node(cluster, index, known) for index in range(len(cluster.nodes))]
    workers = [index for index, node in enumerate(cluster.nodes) if node.role == "worker"]
    if len(workers) > 1:
        if cluster.is_uneven:
            model, even_rows = _of_one_example(model), False
        sizes = [_Sizes.of(v, model, num_ranks=cluster.num_workers, even_rows=even_rows) for v in model.variables]
        terms += _node_terms(cluster, nodes, workers, sizes)
        devices = [cluster.nodes[index].devices if index in workers else 0 for index in range(len(nodes))]
        terms += _total_terms(("total", "both_ways"), nodes, devices, sizes)
        terms += _rack_terms(cluster, known, sizes)
        terms += _rack_total_terms(cluster, nodes, known, sizes)
        spans = [] if cluster.is_uneven else _spans(at_pace(model, Pace(passes=passes)), sizes)
        seconds_per_byte = _seconds_per_byte([_way(cluster, index, known) for index in workers])
        terms += _use_to_use_terms(spans, seconds_per_byte)
        terms += _window_terms(spans, seconds_per_byte)
    return Bound(terms=tuple(terms))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """The least bytes that a variable costs.

    `dense` is the size of the gradient that all ranks send as one sum, `factors` the size of one rank's factors
    (infinite where factors are not legal). In an embedding whose rows may travel alone, each rank touches `touched` of
    its `rows` rows, and a row that travels takes at least `row_bytes`. `use` is a
    sample of uses, if there are steps that do not use the variable.
    """

    dense: float
    factors: float = math.inf
    rows: int = 0
    touched: float = 0.0
    row_bytes: float = 0.0
    even_rows: bool = False
    name: str = ""
    use: UseSample | None = None

    @classmethod
    def of(cls, variable: Variable, model: ModelSpec, *, num_ranks: int, even_rows: bool) -> _Sizes:
        dense, sample = float(variable.num_bytes), model.use_sample
        facts: dict[str, Any] = {"name": variable.name, "dense": dense}
        if sample is not None and variable.name in sample.names:
            # The ranks that use the table in a step are fewer than all.
            even_rows, facts["use"] = False, sample
        if variable.kind == "embedding" and variable.touched_rows is not None and _rows_are_legal(model):
            rows, touched = variable.shape[0], variable.touched_rows
            row_bytes = dense / rows
            if even_rows and touched:
                # A rank sends at most the union of all ranks' rows. If the table travels whole instead, its bytes
                # are spread over these rows.
                row_bytes = min(row_bytes + INDEX_BYTES, dense / union_rows(rows, touched, num_ranks))
            return cls(**facts, rows=rows, touched=touched, row_bytes=row_bytes, even_rows=even_rows)
        if variable.kind == "linear" and variable.factor_rows is not None and model.accumulation_steps == 1:
            item_bytes = ITEM_BYTES[variable.dtype]
            return cls(**facts, factors=float(variable.factor_rows * sum(variable.shape) * item_bytes))
        return cls(**facts)

    def used(self, num_ranks: int) -> float:
        """Return the share of steps in which at least one of some ranks uses the variable."""
        return 1.0 if self.use is None else self.use.share([self.name], num_ranks)

    def least(self, num_ranks: int) -> float:
        """Return the least bytes that carry the gradients of `num_ranks` ranks to others."""
        if self.rows:
            touched = union_rows(self.rows, self.touched, num_ranks) if self.even_rows else self.touched
            return self.row_bytes * touched * self.used(num_ranks)
        return min(self.dense * self.used(num_ranks), num_ranks * self.used(1) * self.factors)

    def least_total(self, devices: Sequence[int]) -> float:
        """Return the least bytes that nodes send until each has every gradient; `devices` counts ranks by node."""
        others, num_ranks = len(devices) - 1, sum(devices)
        if self.rows:
            # A row takes (k-1) + (n-1) messages; the k of all rows add up to the rows that each node touches.
            return sum(map(self.least, devices)) + (others - 1) * self.least(num_ranks)
        if self.use is not None:
            # The same is true of a gradient that k nodes have.
            dense = self.dense * (sum(map(self.used, devices)) + (others - 1) * self.used(num_ranks))
            return min(dense, others * num_ranks * self.used(1) * self.factors)
        return others * min(2 * self.dense, num_ranks * self.factors)

    def least_both_ways(self, devices: Sequence[int]) -> float:
        """Return the least bytes that nodes send and receive until each has every gradient."""
        others = len(devices) - 1
        if self.rows or self.use is not None or math.isfinite(self.factors):
            # What `least_total` says of each direction, at the lower weight of nodes without workers.
            return 2 * self.least_total(devices) * others / len(devices)
        return 4 * others * self.dense


def _of_one_example(model: ModelSpec) -> ModelSpec:
    """Return the model with the rows that a single example touches on average."""
    variables = [
        one if one.touched_rows is None else replace(one, touched_rows=one.touched_rows / model.batch_size)
        for one in model.variables
    ]
    return replace(model, variables=tuple(variables))


def _rows_are_legal(model: ModelSpec) -> bool:
    return model.optimizer.sparse and model.clip_norm is None and not model.loss_scaling


def _compute_seconds(model: ModelSpec) -> float:
    microstep = sum(segment.seconds for segment in (*model.timeline.forward, *model.timeline.backward))
    return model.accumulation_steps * microstep


def _least(sizes: list[_Sizes], num_ranks: int) -> float:
    return sum(size.least(num_ranks) for size in sizes)


def _node_terms(cluster: ClusterSpec, nodes: list[Pair], workers: list[int], sizes: list[_Sizes]) -> Iterator[Term]:
    by_devices = {
        devices: (_least(sizes, devices), _least(sizes, cluster.num_workers - devices))
        for devices in {cluster.nodes[index].devices for index in workers}
    }
    for index in workers:
        out, into = by_devices[cluster.nodes[index].devices]
        name, (rate_out, rate_in) = cluster.nodes[index].name, nodes[index]
        yield Term(kind="node_out", subject=name, num_bytes=out, seconds=out / rate_out)
        yield Term(kind="node_in", subject=name, num_bytes=into, seconds=into / rate_in)


def _total_terms(
    kinds: tuple[TermKind, TermKind], rates: Sequence[Pair], devices: Sequence[int], sizes: list[_Sizes]
) -> Iterator[Term]:
    """Yield the terms of all interfaces, or of all uplinks, together; `devices` has the workers behind each.

    The second kind is that of both directions together.
    """
    workers = [count for count in devices if count]
    num_bytes = sum(size.least_total(workers) for size in sizes)
    out, into = _rates_together(rates, devices, help_of_others=(len(workers) - 2) / (len(workers) - 1))
    yield Term(kind=kinds[0], subject="", num_bytes=num_bytes, seconds=num_bytes / min(out, into))
    if len(workers) < len(devices):
        num_bytes = sum(size.least_both_ways(workers) for size in sizes)
        rate = sum(_rates_together(rates, devices, help_of_others=(len(workers) - 2) / len(workers)))
        yield Term(kind=kinds[1], subject="", num_bytes=num_bytes, seconds=num_bytes / rate)


def _rates_together(rates: Sequence[Pair], devices: Sequence[int], *, help_of_others: float) -> Pair:
    """Return the sums of all rates; where there are no workers, they count with the weight of their help."""
    weights = [1.0 if count else help_of_others for count in devices]
    out, into = (
        sum(weight * rate for weight, rate in zip(weights, way, strict=True)) for way in zip(*rates, strict=True)
    )
    return out, into


def _rack_terms(cluster: ClusterSpec, rates: Rates, sizes: list[_Sizes]) -> Iterator[Term]:
    for rack, behind in zip(cluster.racks, nodes_behind(cluster), strict=True):
        inside = sum(cluster.nodes[n].devices for n in behind if cluster.nodes[n].role == "worker")
        outside = cluster.num_workers - inside
        if inside and outside:
            rate_out, rate_in = pair_of_rack(rack, rates)
            out, into = _least(sizes, inside), _least(sizes, outside)
            yield Term(kind="rack_out", subject=rack.name, num_bytes=out, seconds=out / rate_out)
            yield Term(kind="rack_in", subject=rack.name, num_bytes=into, seconds=into / rate_in)


def _rack_total_terms(cluster: ClusterSpec, nodes: list[Pair], rates: Rates, sizes: list[_Sizes]) -> Iterator[Term]:
    """Yield the terms of all uplinks together, of outermost racks and of innermost ones, where three have workers."""
    for racks in dict.fromkeys([outermost_racks(cluster), innermost_racks(cluster)]):
        behind: dict[int, tuple[Pair, int]] = {}
        for index, (node, rack) in enumerate(zip(cluster.nodes, racks, strict=True)):
            unit = -1 - index if rack == NO_RACK else rack
            rate = nodes[index] if rack == NO_RACK else pair_of_rack(cluster.racks[rack], rates)
            devices = node.devices if node.role == "worker" else 0
            behind[unit] = rate, devices + behind.get(unit, (rate, 0))[1]
        uplinks, devices_behind = zip(*behind.values(), strict=True)
        if cluster.racks and sum(count > 0 for count in devices_behind) > 2:
            yield from _total_terms(("rack_total", "rack_both_ways"), uplinks, devices_behind, sizes)


# From gradients to their next uses.


class _Way(NamedTuple):
    """The rates at which bytes leave and enter a node: through its interface and through its racks' uplinks."""

    racks: Around
    own: Pair
    uplinks: tuple[Pair, Pair]

    def to(self, other: _Way) -> float:
        """Return the bytes per second from this node to another."""
        rate = min(self.own[0], other.own[1])
        for level, (rack, its) in enumerate(zip(self.racks, other.racks, strict=True)):
            if rack != its:
                rate = min(rate, self.uplinks[level][0], other.uplinks[level][1])
        return rate


def _way(cluster: ClusterSpec, index: int, rates: Rates) -> _Way:
    outer, inner = racks = racks_around(cluster)[index]
    uplinks = (_uplink(cluster, outer, rates), _uplink(cluster, inner, rates))
    return _Way(racks, pair_of_node(cluster, index, rates), uplinks)


def _uplink(cluster: ClusterSpec, rack: int, rates: Rates) -> Pair:
    return (math.inf, math.inf) if rack == NO_RACK else pair_of_rack(cluster.racks[rack], rates)


def _seconds_per_byte(workers: list[_Way]) -> float:
    """Return half the seconds that a byte takes from one node to another and back, for the slowest pair of nodes."""
    counts: dict[_Way, int] = {}
    for way in workers:
        counts[way] = counts.get(way, 0) + 1
    pairs = itertools.chain(
        itertools.combinations(counts, 2), ((way, way) for way, count in counts.items() if count > 1)
    )
    return max((1 / u.to(w) + 1 / w.to(u)) / 2 for u, w in pairs)


class _Span(NamedTuple):
    """When, by compute alone, a variable is first used and its gradient is ready (seconds in a step), and its bytes."""

    name: str
    used: float
    ready: float
    num_bytes: float


def _spans(model: ModelSpec, sizes: list[_Sizes]) -> list[_Span]:
    timeline = model.timeline
    forward = sum(segment.seconds for segment in timeline.forward)
    first_use, last_ready = dict[str, float](), dict[str, float]()
    clock = 0.0
    for segment in timeline.forward:
        for name in segment.variables:
            first_use.setdefault(name, clock)
        clock += segment.seconds
    for segment in timeline.backward:
        clock += segment.seconds
        last_ready.update(dict.fromkeys(segment.variables, clock))
    earlier_microsteps = (model.accumulation_steps - 1) * clock
    # A timeline may lack a pass: then the latest possible use or the earliest possible gradient is assumed.
    return [
        _Span(
            variable.name,
            first_use.get(variable.name, forward),
            last_ready.get(variable.name, forward) + earlier_microsteps,
            size.least(1),
        )
        for variable, size in zip(model.variables, sizes, strict=True)
        if size.use is None
    ]


def _use_to_use_terms(spans: list[_Span], seconds_per_byte: float) -> Iterator[Term]:
    for span in spans:
        seconds = span.ready - span.used + span.num_bytes * seconds_per_byte
        yield Term(kind="use_to_use", subject=span.name, num_bytes=span.num_bytes, seconds=seconds)


def _window_terms(spans: list[_Span], seconds_per_byte: float) -> Iterator[Term]:
    """Yield the term of the longest window with two or more variables, if any."""
    late = sorted(spans, key=lambda span: -span.ready)
    used, ready, num_bytes = (np.array([span[column] for span in late]) for column in (1, 2, 3))
    longest: Term | None = None
    for last_use in sorted({span.used for span in spans}):
        inside = used <= last_use
        together = np.cumsum(np.where(inside, num_bytes, 0.0))
        seconds = np.where(inside, ready - last_use + together * seconds_per_byte, -math.inf)
        end = int(seconds.argmax())
        num_inside = int(inside[: end + 1].sum())
        if num_inside > 1 and (longest is None or seconds[end] > longest.seconds):
            first = next(span.name for span in late if span.used <= last_use)
            longest = Term(
                kind="window",
                subject=f"{first} and {num_inside - 1} more",
                num_bytes=float(together[end]),
                seconds=float(seconds[end]),
            )
    if longest is not None:
        yield longest
