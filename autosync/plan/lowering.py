"""The lowering: strategy + model spec + cluster spec -> plan; a pure, deterministic function without torch.

Nothing else interprets a strategy. It lowers the strategy's canonical form, so equal strategy ids mean equal plans. The
order of the operations proves that a plan cannot deadlock. With stages, the passes and the sends between stages come
first, in the order of time. Then come the operations that collect gradients, in the
order in which gradients become ready; then the barrier; then the operations that update and return parameters, in the
order of their next use. Every operation comes after all operations that it waits for, and each lane follows this order.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from autosync.plan.builder import Builder, Finished, Slice
from autosync.plan.pipeline import add_passes
from autosync.plan.steps import Template
from autosync.plan.templates import template_of
from autosync.plan.types import Edge, Gate, Groups, Local, Plan, Region, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical
from autosync.strategy.codecs import Codec
from autosync.strategy.representation import Strategy, all_parts
from autosync.strategy.stages import UNFLUSHED
from autosync.strategy.synchronisers.base import Synchroniser

SHARED_NORM = Region("norm", -1, 0, 1, "float64")
OWN_NORM = Region("norm", -1, 1, 2, "float64")


def lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """Return the plan of a legal strategy (see `legality.problems`)."""
    with _collector_paused():
        return _lower(canonical(strategy, model, cluster), model, cluster)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector.

    A plan has no cycles, but hundreds of thousands of tuples. Scanning them takes the collector as long as the lowering
    itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    builder = Builder(strategy, model, cluster, all_parts(strategy, model))
    slices = [builder.slices_of(index) for index in range(len(strategy.messages))]
    if strategy.stages:
        add_passes(builder, strategy.stages, strategy.microbatches, model, cluster)
    templates = _templates(builder)
    finished = _collect(builder, templates, slices)
    barriers = _barriers(builder, slices, finished)
    settled = _settle(builder, templates, slices, finished, barriers)
    return Plan(
        model=model.fingerprint(),
        cluster=cluster.fingerprint(),
        overlap=strategy.overlap,
        backend=cluster.backend,
        ranks=cluster.ranks,
        num_workers=cluster.num_workers,
        clip_norm=model.clip_norm,
        parts=builder.parts,
        messages=tuple([message.parts for message in strategy.messages]),
        num_lanes=builder.num_lanes,
        regions=tuple(builder.regions),
        operations=tuple(builder.operations),
        gates=_gates(builder, finished, settled),
        shares=strategy.shares,
        weighs=model.weighs,
        stages=strategy.stages,
        microbatches=strategy.microbatches,
        recompute=strategy.recompute,
        splits_backward=bool(strategy.stages) and strategy.schedule == "zero_bubble",
        flushes=not strategy.stages or strategy.schedule not in UNFLUSHED,
        stashes=bool(strategy.stages) and strategy.schedule == "stashing",
    )


Settled = list[tuple[Sequence[Slice], tuple[Edge, ...]]]


def _templates(builder: Builder) -> list[Template]:
    """Return the template of each message; messages with the same synchroniser, codec and workers share one."""
    known: dict[tuple[Groups, Synchroniser, Codec | None], Template] = {}
    found: list[Template] = []
    for index, message in enumerate(builder.strategy.messages):
        site = builder.site_of(index)
        key = (site.workers, message.synchroniser, message.codec)
        template = known.get(key)
        if template is None:
            template = known[key] = template_of(site, message.synchroniser, message.codec)
        found.append(template)
    return found


def _collect(
    builder: Builder, templates: Sequence[Template], slices: Sequence[Sequence[Slice]]
) -> list[list[Finished]]:
    """Collect all slices, in the order in which their last gradient becomes ready.

    The parts of a message are in this order, so its slices are too.
    """
    finished: list[list[Finished]] = [[] for _ in templates]
    for piece in sorted(itertools.chain.from_iterable(slices), key=attrgetter("ready")):
        finished[piece.message].append(builder.collect(templates[piece.message], piece))
    return finished


def _barriers(
    builder: Builder, slices: Sequence[Sequence[Slice]], finished: Sequence[Sequence[Finished]]
) -> list[tuple[Edge, ...]]:
    """Return for each message the edges to the norm that its updates wait for; none unless the task clips or scales.

    All shared gradients have one common norm. Under periodic averaging gradients are not shared: each worker has a norm
    of its own.
    """
    messages = builder.strategy.messages
    if builder.model.clip_norm is None and not builder.model.loss_scaling:
        return [()] * len(messages)
    shared: list[tuple[Slice, Finished]] = []
    own: list[tuple[Slice, Finished]] = []
    for message, pieces, done in zip(messages, slices, finished, strict=True):
        chosen = own if message.synchroniser.trains_apart else shared
        chosen.extend(zip(pieces, done, strict=True))
    of_shared = _shared_barrier(builder, shared)
    of_own = _norm(builder, builder.region(OWN_NORM), own, shares=False)
    return [of_own if message.synchroniser.trains_apart else of_shared for message in messages]


def _shared_barrier(builder: Builder, shared: Sequence[tuple[Slice, Finished]]) -> tuple[Edge, ...]:
    """Add the norm of all shared gradients and return the edges to it.

    If all workers hold all gradients, each computes the norm by itself. Otherwise each rank takes the gradients that
    only it holds and a share of those that all workers hold (with stages, that all ranks of the stage hold), and an
    all-reduce of one number sums the norm for all.
    """
    norm = builder.region(SHARED_NORM)
    everywhere = not builder.strategy.stages and all(_is_everywhere(builder, one) for _, one in shared)
    edges = _norm(builder, norm, shared, shares=not everywhere)
    if everywhere:
        return edges
    message = shared[0][0].message
    settings = builder.strategy.messages[message]
    total = Transfer(
        collective="all_reduce",
        algorithm="native",
        groups=builder.everyone,
        regions=(norm,),
        num_elements=1,
        max_elements=1,
        item_bytes=8,
        within=(),
        lane=settings.lane + builder.num_lanes,
        priority=settings.priority,
        message=message,
        after=edges,
    )
    return (builder.add(total),)


def _norm(
    builder: Builder, norm: int, gradients: Iterable[tuple[Slice, Finished]], *, shares: bool
) -> tuple[Edge, ...]:
    """Add operations that sum the squares of finished gradients on the ranks that hold them; return the last edges.

    With `shares`, each worker sums only a share of the gradients that all workers hold. The operations of a rank run
    one after the other, because they add to the same number, and in the same order on all ranks, so that the sums are
    equal. A rank may belong to all workers and to one server, but never to two servers. With stages, a rank may belong
    to several groups of ranks. All workers hold shards, perhaps in another order.
    """
    workers, has_stages = builder.site.workers, bool(builder.strategy.stages)
    last: dict[Groups, Edge] = {}
    for piece, one in gradients:
        holders = workers if one.sharded else one.holders
        near: Iterable[Groups] = last if has_stages or holders == workers else (holders, workers)
        if has_stages:
            near = [other for other in last if not set(other[0]).isdisjoint(holders[0])]
        squares = Local(
            kind="norm",
            cost="norm",
            groups=one.holders,
            sharded=one.sharded or (shares and _is_everywhere(builder, one)),
            inputs=one.grads,
            outputs=(norm,),
            num_elements=piece.num_elements,
            message=piece.message,
            after=(*one.after, *[last[other] for other in near if other in last]),
            weights=one.weights,
        )
        last[holders] = builder.add(squares)
    return tuple(last.values())


def _is_everywhere(builder: Builder, one: Finished) -> bool:
    """Whether every worker (with stages, every one of the message) holds the whole gradient."""
    return not one.sharded and (bool(builder.strategy.stages) or one.holders == builder.site.workers)


def _settle(
    builder: Builder,
    templates: Sequence[Template],
    slices: Sequence[Sequence[Slice]],
    finished: Sequence[Sequence[Finished]],
    barriers: Sequence[tuple[Edge, ...]],
) -> Settled:
    """Update all parameters and send them to the workers, in the order of their next use."""
    rounds: list[tuple[Sequence[Slice], Sequence[Finished]]] = []
    for template, pieces, done in zip(templates, slices, finished, strict=True):
        if template.settle.by_slice:
            rounds.extend(zip(zip(pieces), zip(done), strict=True))
        else:
            rounds.append((pieces, done))
    rounds.sort(key=lambda one: min([piece.use for piece in one[0]]))
    return [
        (pieces, builder.settle(templates[pieces[0].message], pieces, done, barriers[pieces[0].message]))
        for pieces, done in rounds
    ]


def _gates(builder: Builder, finished: Sequence[Sequence[Finished]], settled: Settled) -> tuple[Gate, ...]:
    """Return the gates: before each variable's use, or with backward overlap before backward and `step()` return."""
    if builder.strategy.overlap == "backward":
        ready = dict.fromkeys(
            edge
            for group in finished
            for one in group
            if _is_everywhere(builder, one)
            for edge in one.after
            if edge.event == "operation"
        )
        done = dict.fromkeys([edge for _, edges in settled for edge in edges])
        return (Gate("backward_returns", -1, tuple(ready)), Gate("step_returns", -1, tuple(done)))
    uses: list[dict[Edge, None]] = [{} for _ in builder.model.variables]
    for pieces, edges in settled:
        waits = dict.fromkeys([Edge(event, target, lag + 1) for event, target, lag in edges])
        for variable in {builder.variable_of[piece.part] for one in pieces for piece in one.pieces}:
            uses[variable].update(waits)
    return tuple([Gate("before_use", variable, tuple(waits)) for variable, waits in enumerate(uses)])
