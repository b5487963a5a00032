"""The strategies that `exactness.py` tries. Each case depends only on a seed and an index."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosync.errors import DoesNotApplyError
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import BackendName, ClusterSpec, Rack
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.strategy.files import dump_strategy
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shares import deal, global_batch
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.periodic import Periodic
from benchmarks.clusters import MEGABIT, on_this_machine
from tests.plan.reference.tree_cases import over_trees

ALONE = "one rank"
CLUSTERS = {
    ALONE: (1,),
    "2 nodes": (1, 1),
    "4 nodes": (1, 1, 1, 1),
    "2 nodes x 2": (2, 2),
    "unequal nodes": (2, 1),
    "2 nodes and a server": (1, 1, 0),
    "2 nodes x 2 and a server": (2, 2, 0),
    "4 nodes in 2 racks": (1, 1, 1, 1),
}
"""The numbers of ranks of each node; 0 is a node that only serves."""
RACKS = {"4 nodes in 2 racks": ("east", "east", "east", "west")}
"""The rack of each node, where there are racks. Uplinks are stated as slow, so that trees follow them."""
SEVERAL = tuple(name for name in CLUSTERS if name != ALONE)

SLICE_BYTES = (1024, 2048, 4096)
USUAL = Limits(slice_bytes=SLICE_BYTES, max_parts=6)
ANY = Limits(slice_bytes=SLICE_BYTES)
P_ANY = 0.05
"""The share of strategies with any number of parts. With up to 128 parts a variable they take as long as ten others."""

P_FITTED = 0.5
FITTED = ("rack_levels", "sharded")
"""The presets that can go over fitted trees, and do with this probability."""

P_PRESET = 1 / 3
P_OURS = 0.5
P_CHECKS = 0.1
P_FLOAT64 = 0.6
NUM_TRIES = 50
_UPLINK = 200 * MEGABIT
PERIODIC = "periodic, k = 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training that must be exact.

    `origin` is a preset's name or "sample". `hand_off` and `checks` are options of `parallelize`. After step
    `state_step` the model's state dict is read at once, and after step `eval_step` the model is evaluated; -1 means
    never. With `saves_state` the optimizer's state is read at the end. `draws` seeds the delays.
    """

    index: int
    task: str
    dtype: str
    cluster: str
    origin: str
    bundle: Bundle
    hand_off: bool
    checks: bool
    state_step: int
    eval_step: int
    saves_state: bool
    draws: int

    def plan(self) -> Plan:
        """Return the plan that the runtime will execute."""
        return lower(self.bundle.strategy, self.bundle.model, self.bundle.cluster)

    def describe(self) -> dict[str, Any]:
        """Return the case as it is printed and read back by `read_case`."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {**options, "strategy": dump_strategy(self.bundle.strategy)}


_OPTIONS = (
    "index",
    "task",
    "dtype",
    "cluster",
    "origin",
    "hand_off",
    "checks",
    "state_step",
    "eval_step",
    "saves_state",
    "draws",
)


def cluster_of(name: str, backend: BackendName = "gloo") -> ClusterSpec:
    """Return a cluster of that shape, all on this machine."""
    cluster = on_this_machine(*CLUSTERS[name], name=name, backend=backend)
    if name not in RACKS:
        return cluster
    nodes = tuple([replace(node, rack=rack) for node, rack in zip(cluster.nodes, RACKS[name], strict=True)])
    racks = [Rack(name=rack, uplink_out=_UPLINK, uplink_in=_UPLINK) for rack in dict.fromkeys(RACKS[name])]
    return replace(cluster, nodes=nodes, racks=tuple(racks))


def read_case(fields: Mapping[str, Any], strategy: Strategy, model: ModelSpec, backend: BackendName = "gloo") -> Case:
    """Return a case from the fields that `describe` returned."""
    bundle = bundled(strategy, model, cluster_of(fields["cluster"], backend))
    return Case(bundle=bundle, **{name: fields[name] for name in _OPTIONS})


class Cases:
    """Draws cases. `models` are the specs of (task, dtype); `clusters` names the clusters to draw from.

    By default these are all with several ranks. With `shares`, ranks compute random shares of the batch, except under
    strategies that refuse uneven ones. With `trees`, all cases are samples with at least one message over random trees
    or levels.
    """

    def __init__(
        self,
        models: Mapping[tuple[str, str], ModelSpec],
        *,
        seed: int,
        clusters: tuple[str, ...] = SEVERAL,
        num_steps: int = 3,
        backend: BackendName = "gloo",
        shares: bool = False,
        trees: bool = False,
    ) -> None:
        self._shares = shares
        self._trees = trees
        self._models = models
        self._seed = seed
        self._clusters = clusters
        self._num_steps = num_steps
        self._backend = backend
        self._tasks = sorted({task for task, _ in models})
        self._presets = [*self._exact_presets(), PERIODIC]
        self._spaces: dict[tuple[str, str, str, bool], Space] = {}

    def draw(self, index: int) -> Case:
        """Return the case of an index. Every third is a preset, all exact ones in turn, unless all go over trees."""
        rng = random.Random(f"{self._seed}/{index}")
        if self._trees:
            return self._draw_over_trees(rng, index)
        every = round(1 / P_PRESET)
        for _ in range(NUM_TRIES):
            task, dtype, cluster = self._place(rng)
            model = self._models[task, dtype]
            if index % every:
                return self._case(rng, index, (task, dtype, cluster), "sample", self._sample(rng, task, dtype, cluster))
            name = self._presets[index // every % len(self._presets)]
            try:
                strategy = _preset(rng, name, model, cluster_of(cluster, self._backend))
            except DoesNotApplyError:
                continue
            if strategy.is_exact:
                return self._case(rng, index, (task, dtype, cluster), name, strategy)
        # On NCCL some presets apply nowhere.
        assert self._backend != "gloo", f"the preset {name} applies nowhere"
        return self._case(rng, index, (task, dtype, cluster), "sample", self._sample(rng, task, dtype, cluster))

    def _draw_over_trees(self, rng: random.Random, index: int) -> Case:
        """Return a sample with a message over trees or more of them."""
        while True:
            task, dtype, cluster = where = self._place(rng)
            plain = self._sample(rng, *where)
            strategy = over_trees(rng, plain, self._models[task, dtype], cluster_of(cluster, self._backend))
            if strategy != plain:
                return self._case(rng, index, where, "sample", strategy)

    def _place(self, rng: random.Random) -> tuple[str, str, str]:
        """Return a task, its precision and a cluster."""
        task, cluster = rng.choice(self._tasks), rng.choice(self._clusters)
        return task, "float64" if rng.random() < P_FLOAT64 else "float32", cluster

    def _exact_presets(self) -> list[str]:
        """Return the presets that must equal training in one process.

        A preset has the same class wherever it applies.
        """
        found: list[str] = []
        for name in preset_names():
            for model, cluster in itertools.product(self._models.values(), self._clusters):
                with contextlib.suppress(DoesNotApplyError):
                    if build_preset(name, model, cluster_of(cluster)).is_exact:
                        found.append(name)
                    break
        return found

    def _sample(self, rng: random.Random, task: str, dtype: str, cluster: str) -> Strategy:
        is_any = rng.random() < P_ANY
        key = (task, dtype, cluster, is_any)
        if key not in self._spaces:
            limits = ANY if is_any else USUAL
            self._spaces[key] = Space(
                model=self._models[task, dtype], cluster=cluster_of(cluster, self._backend), limits=limits
            )
        strategy = self._spaces[key].sample(rng)
        assert strategy.is_exact, "the limits allow nothing else"
        return strategy

    def _case(
        self, rng: random.Random, index: int, where: tuple[str, str, str], origin: str, strategy: Strategy
    ) -> Case:
        task, dtype, cluster = where
        if self._shares:
            strategy = _divided(rng, strategy, self._models[task, dtype], cluster_of(cluster, self._backend))
        return Case(
            index=index,
            task=task,
            dtype=dtype,
            cluster=cluster,
            origin=origin,
            bundle=bundled(strategy, self._models[task, dtype], cluster_of(cluster, self._backend)),
            hand_off=rng.random() >= P_OURS,
            checks=rng.random() < P_CHECKS and self._backend == "gloo",
            state_step=rng.randrange(-1, self._num_steps),
            eval_step=rng.randrange(-1, self._num_steps),
            saves_state=rng.random() < 0.5,
            draws=rng.randrange(2**32),
        )


def _divided(rng: random.Random, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return the strategy with random shares of the batch, if it may have uneven ones."""
    if any(message.synchroniser.refuses_shares for message in strategy.messages):
        return strategy
    rates = [math.exp(rng.gauss(0, 1)) for _ in range(cluster.num_workers)]
    return replace(strategy, shares=deal(global_batch(model, cluster), rates))


def _preset(rng: random.Random, name: str, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return a preset's strategy, in half of the cases with the other overlap."""
    if name == PERIODIC:
        parts = tuple(Message(parts=(variable.name,), synchroniser=Periodic(every=1)) for variable in model.variables)
        strategy = Strategy(messages=parts)
    else:
        is_fitted = name in FITTED and cluster.backend == "gloo" and rng.random() < P_FITTED
        strategy = build_preset(name, model, cluster, **({"fitted": True} if is_fitted else {}))
    if rng.random() < 0.5:
        strategy = replace(strategy, overlap="forward" if strategy.overlap == "backward" else "backward")
    return strategy
