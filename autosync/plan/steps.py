"""Templates as data: the steps of a synchroniser, independent of the message that it synchronises.

A template has two halves. `collect` turns the ranks' gradients of one slice into finished gradients on the ranks that
update; it runs during backward. `settle` updates the parameters and sends them to the ranks that need them, after
`step()` was called and, if the task clips, after the norm. Only two modules read templates, and nothing else knows
what a synchroniser does: `builder` writes operations with their regions, `compiled` writes columns.

A step describes an operation without its size, its regions' places and its position. Its size is an `Amount`, relative
to the slices that it works on; its regions are named by kind; its waits refer to other steps of the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autosync.plan.types import Algorithm, Collective, Groups, LocalKind, RegionKind, Weights
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.codecs import Codec
from autosync.strategy.shapes.levels import levels, worker_racks
from autosync.strategy.shapes.pairing import nearest_first
from autosync.strategy.shapes.trees import TreeShape, TreeShare
from autosync.strategy.synchronisers.base import Route
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer

Measure = Literal[
    "elements",
    "encoded_bytes",
    "left_elements",
    "right_elements",
    "factor_elements",
    "rebuilt_elements",
    "touched_elements",
    "touched_bytes",
    "most_touched_bytes",
    "union_elements",
    "union_bytes",
    "most_union_bytes",
]
"""The measures of slices (computed in `measures`).

`elements` the number of elements · `encoded_bytes` their bytes under the template's codec · `left_elements`,
`right_elements` the sizes of PowerSGD's factors of rank 1 · `factor_elements` the size of sufficient factors ·
`rebuilt_elements` the multiplications that rebuild a gradient from one rank's factors · `touched_elements`,
`touched_bytes` the expected size of the rows that one rank touches · `union_elements`, `union_bytes` that of the rows
that any worker touches · `most_touched_bytes`, `most_union_bytes` the largest possible sizes.
"""

WaitKind = Literal["step", "gradients", "collected", "norm", "step_called", "updated"]


class Amount(NamedTuple):
    """A size: `factor` times a measure of the slices that a step works on."""

    measure: Measure = "elements"
    factor: int = 1


ELEMENTS = Amount()


class Wait(NamedTuple):
    """Something that a step waits for.

    `on` is one of: a `step` of the same list (by position), the slice's `gradients`, the operations that `collected`
    the round's slices, the `norm`, the call of `step()` (`step_called`), or the end of the steps that are done once a
    round (`updated`). `lag` counts iterations back.
    """

    on: WaitKind
    step: int = -1
    lag: int = 0


GRADIENTS = Wait("gradients")
COLLECTED = Wait("collected")
NORM = Wait("norm")
STEP_CALLED = Wait("step_called")
UPDATED = Wait("updated")

Waits: TypeAlias = tuple[Wait, ...]
Kinds: TypeAlias = tuple[RegionKind, ...]


class Kept(NamedTuple):
    """A region for each piece, in the part's dtype or in `dtype`, as long as the piece or as `amount` says."""

    kind: RegionKind
    dtype: str = ""
    amount: Amount = ELEMENTS


class TransferStep(NamedTuple):
    """A step that becomes a transfer.

    `item_bytes` 0 means the item size of the message; `most` None means that `amount` is also the largest amount.
    """

    collective: Collective
    algorithm: Algorithm
    groups: Groups
    stage: int
    regions: Kinds
    waits: Waits
    amount: Amount = ELEMENTS
    most: Amount | None = None
    item_bytes: int = 0
    within: Groups = ()
    every: int = 1


class LocalStep(NamedTuple):
    """A step that becomes a local operation."""

    kind: LocalKind
    groups: Groups
    inputs: Kinds
    outputs: Kinds
    waits: Waits
    amount: Amount = ELEMENTS
    cost: str = ""
    sharded: bool = False
    every: int = 1
    settings: Codec | OuterOptimizer | None = None
    weights: Weights = ()


Step: TypeAlias = TransferStep | LocalStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """The half of a template that finishes a slice's gradient.

    `kept` lists its regions in the order in which they are made. `grads` is the region that holds the finished
    gradient, on the ranks `holders` (each only its shard if `sharded`, with these `weights`), as soon as the waits
    `finished` are met.
    """

    kept: tuple[Kept, ...]
    steps: tuple[Step, ...]
    finished: Waits
    grads: RegionKind
    holders: Groups
    sharded: bool = False
    weights: Weights = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The half of a template that updates parameters and sends them to all workers.

    A round is a whole message or, if `by_slice`, one slice. The steps `once` run once a round, on all its slices, the
    update first; then the steps `each` run for each slice. The use of the parameters waits for `done`, and for
    `each_done` of every slice.
    """

    kept: tuple[Kept, ...]
    once: tuple[Step, ...]
    done: Waits
    by_slice: bool = False
    each: tuple[Step, ...] = ()
    each_done: Waits = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The steps into which every message with one synchroniser and one codec is lowered."""

    codec: Codec | None
    collect: Collect
    settle: Settle


class Draft:
    """A list of steps under construction."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def add(self, step: Step) -> Wait:
        """Add a step and return a wait for it."""
        self._steps.append(step)
        return Wait("step", len(self._steps) - 1)

    def next(self, ahead: int = 0, *, lag: int) -> Wait:
        """Return a wait for a step not yet added, in an earlier iteration; `ahead` 0 is the step that is added next."""
        return Wait("step", len(self._steps) + ahead, lag)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps added so far."""
        return tuple(self._steps)


class Site:
    """The facts of a cluster and a model that templates need: the groups of ranks, and the name of the update's cost.

    `shared_nodes` are the groups of workers on nodes with several workers. With stages, `workers` are only the
    `members` that hold a message's variables, and their gradients are parts that add up (`adds_up`): the sum is the
    finished gradient, and nothing is averaged.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, members: Sequence[int] = ()) -> None:
        self.num_workers = cluster.num_workers
        self.nodes: Groups = cluster.worker_groups()
        self.shared_nodes: Groups = tuple(group for group in self.nodes if len(group) > 1)
        self.adds_up = bool(members)
        self.workers: Groups = (tuple(members) or tuple(range(cluster.num_workers)),)
        self.update_cost = f"update:{model.optimizer.name}"
        self._cluster = cluster

    @property
    def racks(self) -> Groups:
        """The groups of workers in one rack; a node without a rack is a rack by itself."""
        return tuple([tuple([rank for node in rack for rank in node]) for rack in worker_racks(self._cluster)])

    @property
    def has_own_rounds(self) -> bool:
        """Whether the backend can run rounds of the engine's own messages."""
        return BACKENDS[self._cluster.backend].own_rounds

    def algorithm(self, route: Route, trees: tuple[TreeShare, ...] = ()) -> Algorithm:
        """Return the algorithm by which all workers go a route; `trees` are those of the route of that name."""
        if route == "levels":
            return levels(self._cluster) if self.has_own_rounds else "native"
        return TreeShape(shares=trees) if route == "trees" else route

    def ordered(self, groups: Groups, algorithm: Algorithm) -> Groups:
        """Return groups in the order in which an algorithm takes their members: for halving-doubling, nearest first."""
        if algorithm != "halving_doubling":
            return groups
        return tuple([nearest_first(group, self._cluster) for group in groups])

    def leader(self, server: str) -> int:
        """Return the rank through which a node serves."""
        return self._cluster.leader(self._cluster.node_index(server))

    def star(self, server: str, *, through_proxies: bool) -> Groups:
        """Return the server and the ranks that exchange data with it (all workers, or one of each node) as a group."""
        root = self.leader(server)
        speakers = [group[0] for group in self.nodes] if through_proxies else self.workers[0]
        return ((root, *[rank for rank in speakers if rank != root]),)

    def everyone(self, servers: Iterable[str]) -> Groups:
        """Return one group of all workers and these servers."""
        return (tuple(sorted({*self.workers[0], *map(self.leader, servers)})),)


def update(
    site: Site,
    groups: Groups,
    grads: RegionKind,
    updated: RegionKind,
    *,
    amount: Amount = ELEMENTS,
    sharded: bool = False,
    weights: Weights = (),
    more: Waits = (),
) -> LocalStep:
    """Return a step that runs the optimizer on the gradients that each rank holds; it changes the region `updated`."""
    waits = (COLLECTED, NORM, STEP_CALLED, *more)
    step = LocalStep("update", groups, (grads,), (updated,), waits, amount, cost=site.update_cost, sharded=sharded)
    return step._replace(weights=weights)


def update_everywhere(site: Site, *, grads: RegionKind = "grad", amount: Amount = ELEMENTS) -> Settle:
    """Return the half of a template in which every worker updates its own copy, and nothing more is sent."""
    draft = Draft()
    done = draft.add(update(site, site.workers, grads, "param", amount=amount))
    return Settle(kept=(Kept("param"),), once=draft.steps, done=(done,))
