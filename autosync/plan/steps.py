"""Templates as data: the steps that a synchroniser becomes, whatever it is that travels by it.

A template has two halves. `collect` turns the ranks' gradients of one slice into finished ones, wherever the optimizer
needs them; it runs while backward does. `settle` updates the parameters and brings them to whoever lacks them, after
`step()` was called and after the norm, where the task clips. Two executors read templates and nothing else knows what
a synchroniser is: `builder` writes operations with their regions, `compiled` writes columns.

A step says what the operation will be but for sizes, places and positions. Its size is an `Amount` of what it works on,
its regions are kinds, and what it waits for is told within the template.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autosync.plan.types import Algorithm, Collective, Groups, LocalKind, RegionKind
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Codec
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
"""What can be measured of slices (see `measures`).

`elements`, and `encoded_bytes` of them under the template's codec · `left_elements`, `right_elements` of PowerSGD's
factors of rank 1 · `factor_elements` of sufficient factors, `rebuilt_elements` that one rank's factors make up ·
`touched_elements`, `touched_bytes` of the rows that one rank touches, `union_elements`, `union_bytes` of those that any
rank does: expected, and with `most` what bounds it.
"""

WaitKind = Literal["step", "gradients", "collected", "norm", "step_called", "updated"]


class Amount(NamedTuple):
    """`factor` times a measure of the slices that a step works on."""

    measure: Measure = "elements"
    factor: int = 1


ELEMENTS = Amount()


class Wait(NamedTuple):
    """What a step waits for.

    A `step` of the same list (by position), its slice's `gradients`, what the round's slices are `collected` by, the
    `norm`, the call of `step()`, or for what is done once a round to be done (`updated`). `lag` counts iterations back.
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
    """A region for each piece: in the part's dtype unless told otherwise, as long as the piece or as an amount says."""

    kind: RegionKind
    dtype: str = ""
    amount: Amount = ELEMENTS


class TransferStep(NamedTuple):
    """Of a transfer. `item_bytes` 0: those of the message's own elements; `most` None: as much as `amount`."""

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
    """Of work within ranks."""

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


Step: TypeAlias = TransferStep | LocalStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """How a slice's gradient is finished.

    `kept` are its regions in the order in which they are made, `grads` the one that holds the finished gradient: on
    `holders`, each having its shard where `sharded`, as soon as `finished` is over.
    """

    kept: tuple[Kept, ...]
    steps: tuple[Step, ...]
    finished: Waits
    grads: RegionKind
    holders: Groups
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """How parameters are updated and brought home: a whole message at once, or `by_slice` each as soon as it can be.

    `once` is done once a round, on all its slices, the update first; then `each` is done for each of them. Who uses the
    parameters waits for `done`, and for `each_done` of every slice.
    """

    kept: tuple[Kept, ...]
    once: tuple[Step, ...]
    done: Waits
    by_slice: bool = False
    each: tuple[Step, ...] = ()
    each_done: Waits = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """How messages with one synchroniser and one codec are lowered."""

    codec: Codec | None
    collect: Collect
    settle: Settle


class Draft:
    """Steps as they are written down, one after the other."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def add(self, step: Step) -> Wait:
        """Write a step down; how others wait for it."""
        self._steps.append(step)
        return Wait("step", len(self._steps) - 1)

    def next(self, ahead: int = 0, *, lag: int) -> Wait:
        """How to wait for a step that is not written yet, in an earlier iteration."""
        return Wait("step", len(self._steps) + ahead, lag)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was written."""
        return tuple(self._steps)


class Site:
    """What templates are set up for: the groups of a cluster's ranks, and what a model's update is called by.

    `shared_nodes` are the nodes with several workers.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.num_workers = cluster.num_workers
        self.nodes: Groups = cluster.worker_groups()
        self.shared_nodes: Groups = tuple(group for group in self.nodes if len(group) > 1)
        self.workers: Groups = (tuple(range(cluster.num_workers)),)
        self.update_cost = f"update:{model.optimizer.name}"
        self._cluster = cluster

    def leader(self, server: str) -> int:
        """The rank through which a node serves."""
        return self._cluster.leader(self._cluster.node_index(server))

    def star(self, server: str, *, through_proxies: bool) -> Groups:
        """The server, then everybody who speaks to it: all workers, or the first of each node."""
        root = self.leader(server)
        speakers = [group[0] for group in self.nodes] if through_proxies else self.workers[0]
        return ((root, *[rank for rank in speakers if rank != root]),)

    def everyone(self, servers: Iterable[str]) -> Groups:
        """The workers and these servers."""
        return (tuple(sorted({*self.workers[0], *map(self.leader, servers)})),)


def update(
    site: Site,
    groups: Groups,
    grads: RegionKind,
    updated: RegionKind,
    *,
    amount: Amount = ELEMENTS,
    sharded: bool = False,
    more: Waits = (),
) -> LocalStep:
    """The optimizer on what is held there, on the parameters or a copy of them."""
    waits = (COLLECTED, NORM, STEP_CALLED, *more)
    return LocalStep("update", groups, (grads,), (updated,), waits, amount, cost=site.update_cost, sharded=sharded)


def update_everywhere(site: Site, *, grads: RegionKind = "grad", amount: Amount = ELEMENTS) -> Settle:
    """Every worker updates its own copy, with nothing more to send."""
    draft = Draft()
    done = draft.add(update(site, site.workers, grads, "param", amount=amount))
    return Settle(kept=(Kept("param"),), once=draft.steps, done=(done,))
