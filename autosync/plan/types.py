"""The plan: a strategy lowered to a graph of operations for one model on one cluster.

The runtime executes a plan, the simulators predict its step time and the reference interprets it. There are two kinds
of operation: a `Transfer` moves bytes between ranks, a `Local` works within one rank. Both name the regions that they
touch and the edges that they wait for. How to read a plan:

- **Regions** are contiguous ranges of a part's elements (row-major). A rank that takes part in an operation on a
  region has a buffer for it. `param`, `master` and `anchor` last over iterations; all others belong to one
  iteration.
- **Groups.** An operation happens once in each of its `groups` of ranks, independently. In a rooted transfer
  (reduce, broadcast, gather_v) the first member is the root.
- **Shards.** n members share a buffer of E elements in n chunks by `expansion.chunk_bounds(E, n)`; the i-th member
  owns the i-th chunk. After `reduce_scatter` each member holds its chunk, and `all_gather` starts from there. Over
  trees, a member owns the shares whose root it is (see `shards`). A `Local` with `sharded` works only on the rank's
  shard. The buffer of a transfer with `within` is not the whole region, but the chunk that its members own in the
  groups of `within`.
- **Edges** are local: a rank waits only for operations that it takes part in. An edge to an operation without the rank,
  or to a gradient that the rank does not compute, holds nothing up. `lag` counts iterations back; an edge to an
  iteration before the first holds nothing up. A server counts as calling `step()` when the first worker does.
- **Lanes** are the strategy's, numbered from 0. Each has a queue for each stage of a template, so that stages of
  different messages overlap. A transfer's `lane` is the number of its queue: `lane + stage * num_lanes`. On every
  rank the transfers of a queue run in the order of `operations`. Queues are independent of each other; `priority`
  (0 first) decides between them. `operations` is one order for all queues in which every operation comes after those
  that it waits for, so no plan deadlocks.
- **Gates** hold compute up: before a variable's first use in the forward pass, before backward returns, or before
  `step()` returns.
- **Stages.** If the strategy has stages, `forward` and `backward` are the passes of one microbatch through one stage on
  one rank. Where the plan splits backward passes, `weights` computes the gradients of weights afterwards. A `send`
  carries what crosses the boundary between two stages: activations, or their gradients. They belong to no message (-1),
  and each boundary has a queue in each direction. `num_elements` of a pass counts examples. A rank computes and updates
  only the variables of its stages. A variable's gradient is ready during the last pass of the rank that contributes to
  it: `backward`, or `weights` if backward passes are split.
- **every** k: the operation takes place only in the iterations k-1, 2k-1, ….
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autosync.specs.cluster import Rank
from autosync.strategy.codecs import Codec
from autosync.strategy.parts import Part
from autosync.strategy.representation import Overlap
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.shares import weights_of
from autosync.strategy.stages import ModelStage
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Disjoint groups of ranks."""

Weights: TypeAlias = tuple[int, ...]
"""The weights of the shards of a group's members, in their order; empty if all shards are equal."""

RegionKind: TypeAlias = Literal[
    "grad",
    "param",
    "rows",
    "new_rows",
    "factors",
    "encoded",
    "left",
    "right",
    "incoming",
    "master",
    "anchor",
    "norm",
    "activations",
    "activation_grads",
]
"""The kinds of regions, by the content of their buffers.

`grad` the gradient, local until a transfer has summed it · `param` the parameter · `rows` touched rows of a gradient ·
`new_rows` rows of the updated parameter · `factors` the two factors of a gradient · `encoded` a codec's output ·
`left`, `right` PowerSGD's factors · `master` a stale server's copy of the parameter · `incoming` the server's parameter
on the way to the workers · `anchor` the parameter at the last periodic average · `norm` the sums of squares of
gradients: element 0 for shared gradients, element 1 for a worker's own gradients under periodic averaging ·
`activations`, `activation_grads` what crosses the boundary between two stages, in bytes: `part` is the number of the
boundary, and a microbatch has its place among all of them.
"""

Collective: TypeAlias = Literal[
    "reduce", "broadcast", "all_reduce", "reduce_scatter", "all_gather", "gather_v", "all_gather_v", "send"
]
NamedAlgorithm: TypeAlias = Literal["native", "ring", "tree", "halving_doubling", "star"]
Algorithm: TypeAlias = NamedAlgorithm | TreeShape
"""How a collective's data travels: by a rule for any number of members, or over trees written for these members.

In a `TreeShape` ranks are positions in the transfer's group.
"""

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
    "forward",
    "backward",
    "weights",
]
"""The kinds of local operations.

`average` divides by the number of workers · `encode`, `decode` run a codec (decode also averages; `project` is
PowerSGD's middle step) · `merge_rows` adds up and averages rows with the same index · `rebuild` multiplies factors,
adds up the products and averages them · `norm` adds the squares of its gradients to the norm · `update` runs the
optimizer on gradients, clipped by the norm that it waits for, if any · `copy` copies regions · `take` copies data that
arrived some iterations ago (the lag of its edges), if there was such an iteration · `read_rows` takes rows out of the
parameter, `write_rows` puts rows into it, with a lag as in `take` · `outer` runs the outer optimizer of periodic
averaging · `forward`, `backward` pass a microbatch through a stage · `weights` computes the gradients of weights that
this backward pass has left for later.
"""

Event: TypeAlias = Literal["operation", "grad_ready", "step_called"]
GateKind: TypeAlias = Literal["before_use", "backward_returns", "step_returns"]


class Region(NamedTuple):
    """The elements `start` to `stop` of a part; `part` is a position in `Plan.parts`, or -1 for a region of no part."""

    kind: RegionKind
    part: int
    start: int
    stop: int
    dtype: str

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class Edge(NamedTuple):
    """Something to wait for: an operation or a variable's gradient (at position `target`), or the call of `step()`."""

    event: Event
    target: int = -1
    lag: int = 0


class Transfer(NamedTuple):
    """An operation that moves bytes between ranks.

    The buffer is all regions, one behind the other: `num_elements` elements of `item_bytes` bytes each. For gather_v
    and all_gather_v, `num_elements` is one member's contribution. If sizes are known only at run time (rows), it is
    the expected number, and `max_elements` is an upper bound.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePass:
    """The stage and the microbatch of a pass."""

    stage: int
    microbatch: int


class Local(NamedTuple):
    """An operation within ranks.

    `cost` names the cost by which simulators predict its time. `num_elements` counts the elements of the whole, even if
    each rank works only on its shard. `settings` are those of the codec or of the outer optimizer, or say which pass
    through a stage it is. `weights` are those of the shards.
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
    settings: Codec | OuterOptimizer | StagePass | None = None
    weights: Weights = ()


class Gate(NamedTuple):
    """A point at which compute waits for operations.

    `variable` is a position in the model, or -1 for a gate that belongs to no variable.
    """

    kind: GateKind
    variable: int
    after: tuple[Edge, ...]


Operation: TypeAlias = Transfer | Local


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph of operations with the facts that it was made from.

    `messages` has the names of the parts in each message of the canonical strategy, for people and traces. `num_lanes`
    counts the lanes of that strategy, including lanes without transfers. Neither is part of a plan's identity.

    `shares` has the examples of the batch that each worker computes, and is empty if all compute equally many. With
    shares, a worker's gradient enters the plan scaled by its weight (see `strategy.shares`): every `grad`, `rows` or
    `factors` region holds the weighed gradient from the start. `weighs`: batches are weighed at run time, by
    the task's own `weight(batch)`.

    `stages` and `microbatches` are those of the strategy. With stages, a rank's gradient is the sum over its
    microbatches, each divided by the number of microbatches, and the ranks' gradients of a variable add up.
    `recompute`: a backward pass computes the activations of its stage again. `splits_backward`: it leaves gradients of
    weights to a later pass, `weights`. Without `flushes`, passes of the next step come before the last ones of this
    step (see `rank_passes`), and those of a step take the parameters before the last update. If it `stashes`, each
    stage is updated by itself, and passes take its newest parameters.
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
    shares: tuple[int, ...] = ()
    weighs: bool = False
    stages: tuple[ModelStage, ...] = ()
    microbatches: int = 1
    recompute: bool = False
    splits_backward: bool = False
    flushes: bool = True
    stashes: bool = False

    @property
    def gradient_pass(self) -> LocalKind:
        """The kind of pass after which the gradients of a microbatch are complete."""
        return "weights" if self.splits_backward else "backward"

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight by which each worker's gradient is scaled before it enters the plan, without run-time weights."""
        return weights_of(self.shares) if self.shares else (1.0,) * self.num_workers

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that have transfers, in order."""
        return tuple(sorted({one.lane for one in self.operations if isinstance(one, Transfer)}))

    def lane_of(self, transfer: Transfer) -> int:
        """Return the strategy's lane that a transfer is in."""
        return transfer.lane % self.num_lanes

    def queue_in_words(self, queue: int) -> str:
        """Return a queue's name, such as `lane 2`, or `lane 2, stage 0` if lanes have a queue for each stage."""
        stages = {one // self.num_lanes for one in self.queues}
        stage, lane = divmod(queue, self.num_lanes)
        # The engine may run all operations in one queue, with a number that no transfer has.
        if len(stages) < 2 or stage not in stages:
            return f"lane {lane}"
        return f"lane {lane}, stage {sorted(stages).index(stage)}"

    @property
    def needed_servers(self) -> tuple[int, ...]:
        """The ranks of servers that must be started: all servers if any has work, else none."""
        servers = {rank.index for rank in self.ranks if rank.role == "server"}
        is_needed = any(not servers.isdisjoint(group) for operation in self.operations for group in operation.groups)
        return tuple(sorted(servers)) if is_needed else ()
