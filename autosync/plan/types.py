"""The plan: a strategy lowered to a graph of operations for one model on one cluster.

What the runtime executes, the simulators simulate and the reference interprets. There are two kinds of operation: a
`Transfer` moves bytes between ranks, a `Local` works within one. Both name the regions they touch and the edges
they wait for. How to read a plan:

- **Regions** are contiguous ranges of a part's elements (row-major). A rank that takes part in an operation on a
  region has a buffer for it. `param`, `master` and `anchor` last over iterations; all others belong to one
  iteration.
- **Groups.** An operation happens once in each of its `groups` of ranks, independently. In a rooted transfer
  (reduce, broadcast, gather_v) the first member is the root.
- **Shards.** n members share a buffer of E elements in n chunks by `expansion.chunk_bounds(E, n)`, the i-th member
  owning the i-th. `reduce_scatter` leaves each member its chunk, `all_gather` starts from there, a `Local` with
  `sharded` works on its chunk alone, and a transfer with `within` moves, as its whole buffer, the chunk that its
  members own in the groups of `within`.
- **Edges** are local: a rank waits for what *it* takes part in. An edge to an operation in which the rank has no
  part, or to the gradient of a rank that computes none, holds nothing up. `lag` counts iterations back; before the
  first there is nothing to wait for. A server's step is called when the first worker's is.
- **Lanes** are the strategy's, numbered from 0, and each has a queue for each stage of a template, so that stages of
  different messages overlap. A transfer's `lane` is the number of its queue: `lane + stage * num_lanes`. On every
  rank the transfers of a queue run in the order of `operations`. Queues go on independently, `priority` (0 first)
  decides between them. `operations` is one order for all queues and in it everything comes after what it waits for,
  so no plan deadlocks.
- **Gates** are what compute waits for: a variable's first use in the forward pass, the return of backward, the
  return of `step()`.
- **every** k: the operation takes place in the iterations k-1, 2k-1, … alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autosync.specs.cluster import Rank
from autosync.strategy.codecs import Codec
from autosync.strategy.parts import Part
from autosync.strategy.representation import Overlap
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Disjoint groups of ranks."""

RegionKind: TypeAlias = Literal[
    "grad", "param", "rows", "new_rows", "factors", "encoded", "left", "right", "incoming", "master", "anchor", "norm"
]
"""What a region's buffer holds.

`grad` the gradient, local until a transfer has summed it · `param` the parameter · `rows` touched rows of a gradient ·
`new_rows` rows of the updated parameter · `factors` the two factors of a gradient · `encoded` a codec's output ·
`left`, `right` PowerSGD's factors · `master` a stale server's copy of the parameter · `incoming` its parameter on
the way to the workers · `anchor` the parameter at the last periodic average · `norm` the sums of squares of
gradients: element 0 of those that are shared, element 1 of a worker's own under periodic averaging.
"""

Collective: TypeAlias = Literal[
    "reduce", "broadcast", "all_reduce", "reduce_scatter", "all_gather", "gather_v", "all_gather_v"
]
Algorithm: TypeAlias = Literal["native", "ring", "tree", "halving_doubling", "star"]

LocalKind: TypeAlias = Literal[
    "average",
    "encode",
    "decode",
    "project",
    "merge_rows",
    "rebuild",
    "norm",
    "update",
    "copy",
    "take",
    "read_rows",
    "write_rows",
    "outer",
]
"""What a local operation does with its inputs.

`average` divides by the number of workers · `encode`, `decode` run a codec (decode averages too; `project` is
PowerSGD's middle step) · `merge_rows` adds up and averages rows with the same index · `rebuild` multiplies factors,
adds up and averages · `norm` adds its gradients' squares to the norm · `update` is the optimizer, on gradients
clipped by the norm that it waits for, if any · `copy` copies regions · `take` copies what arrived some iterations
ago (the lag of its edges), if that far back there was one · `read_rows`, `write_rows` take rows out of the
parameter and put them in, with a lag as `take` does · `outer` is the outer optimizer of periodic averaging.
"""

Event: TypeAlias = Literal["operation", "grad_ready", "step_called"]
GateKind: TypeAlias = Literal["before_use", "backward_returns", "step_returns"]


class Region(NamedTuple):
    """Elements `start` to `stop` of a part (by its position in `Plan.parts`; -1: of no part)."""

    kind: RegionKind
    part: int
    start: int
    stop: int
    dtype: str

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class Edge(NamedTuple):
    """Something to wait for: an operation or a variable's gradient (by position), or the step's call."""

    event: Event
    target: int = -1
    lag: int = 0


class Transfer(NamedTuple):
    """Bytes between ranks.

    `num_elements` of `item_bytes` each make the buffer: all regions, one behind the other. For gather_v and
    all_gather_v they are one member's contribution; where that is known at run time only (rows), they are what is
    expected and `max_elements` bounds it.
    """

    collective: Collective
    algorithm: Algorithm
    groups: Groups
    regions: tuple[int, ...]
    num_elements: int
    max_elements: int
    item_bytes: int
    within: Groups
    lane: int
    priority: int
    message: int
    after: tuple[Edge, ...]
    every: int = 1

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.item_bytes


class Local(NamedTuple):
    """Work within ranks.

    `cost` names what simulators price it by, `num_elements` is the whole, of which a shard is a share. `settings`
    are those of the codec or of the outer optimizer.
    """

    kind: LocalKind
    cost: str
    groups: Groups
    sharded: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    num_elements: int
    message: int
    after: tuple[Edge, ...]
    every: int = 1
    settings: Codec | OuterOptimizer | None = None


class Gate(NamedTuple):
    """What compute waits for. `variable` is a position in the model; -1 where the gate is not about one."""

    kind: GateKind
    variable: int
    after: tuple[Edge, ...]


Operation: TypeAlias = Transfer | Local


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph of operations with the facts it was made from.

    `messages` are the canonical strategy's messages in words (the parts they hold), for people and traces.
    `num_lanes` is how many lanes that strategy has, whether or not each sends something. Neither is part of a
    plan's identity.
    """

    model: str
    cluster: str
    overlap: Overlap
    backend: str
    ranks: tuple[Rank, ...]
    num_workers: int
    clip_norm: float | None
    parts: tuple[Part, ...]
    messages: tuple[tuple[str, ...], ...]
    num_lanes: int
    regions: tuple[Region, ...]
    operations: tuple[Operation, ...]
    gates: tuple[Gate, ...]

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that have transfers, in order."""
        return tuple(sorted({one.lane for one in self.operations if isinstance(one, Transfer)}))

    def lane_of(self, transfer: Transfer) -> int:
        """The lane of the strategy that a transfer is in."""
        return transfer.lane % self.num_lanes

    def queue_in_words(self, queue: int) -> str:
        """`lane 2`, and where lanes have several queues the stage that this one is for: `lane 2, stage 0`."""
        stages = {one // self.num_lanes for one in self.queues}
        stage, lane = divmod(queue, self.num_lanes)
        # The engine may do all operations in one queue, whose number no transfer has.
        if len(stages) < 2 or stage not in stages:
            return f"lane {lane}"
        return f"lane {lane}, stage {sorted(stages).index(stage)}"

    @property
    def needed_servers(self) -> tuple[int, ...]:
        """The ranks that only serve and must be there: all of them, or none where there is no work for any."""
        servers = {rank.index for rank in self.ranks if rank.role == "server"}
        is_needed = any(not servers.isdisjoint(group) for operation in self.operations for group in operation.groups)
        return tuple(sorted(servers)) if is_needed else ()
