"""The one lowering: strategy + model spec + cluster spec -> plan, pure, deterministic and free of torch.

Nothing else interprets a strategy. The canonical form is what is lowered, so equal strategy ids mean equal plans. The
order of the operations is the proof that a plan cannot deadlock: first whatever collects gradients, in the order in
which they become ready; then the barrier; then whatever updates and returns parameters, in the order of their next use.
Every operation comes after all it waits for, and each lane is a part of this order.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from autosync.plan.builder import Buffer, Builder, Piece, Slice
from autosync.plan.server_templates import ServerTemplate, SparseServerTemplate
from autosync.plan.templates import (
    AllReduceTemplate,
    FactorsTemplate,
    Finished,
    PeriodicTemplate,
    ShardedTemplate,
    SparseGatherTemplate,
    Template,
)
from autosync.plan.types import Edge, Gate, Groups, Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical
from autosync.strategy.parts import all_parts
from autosync.strategy.representation import (
    AllReduce,
    Codec,
    ParameterServer,
    Periodic,
    Sharded,
    SparseGather,
    Strategy,
    SufficientFactors,
    Synchroniser,
)

SHARED_NORM = Piece(-1, 0, 1)
OWN_NORM = Piece(-1, 1, 2)

_TEMPLATES: Mapping[type, type[Template[Any]]] = {
    AllReduce: AllReduceTemplate,
    Sharded: ShardedTemplate,
    SparseGather: SparseGatherTemplate,
    SufficientFactors: FactorsTemplate,
    Periodic: PeriodicTemplate,
}


def lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """The plan of a legal strategy (see `legality.problems`)."""
    with _collector_paused():
        return _lower(canonical(strategy, model, cluster), model, cluster)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Without Python's cyclic garbage collector: a plan has no cycles, and hundreds of thousands of tuples.

    Each of its runs would look at all of them, which takes as long as the lowering itself.
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
    templates = _templates(builder)
    finished = _collect(templates, slices)
    barriers = _barriers(builder, slices, finished)
    settled = _settle(templates, slices, finished, barriers)
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
        regions=tuple(builder.regions),
        operations=tuple(builder.operations),
        gates=_gates(builder, finished, settled),
    )


Settled = list[tuple[Sequence[Slice], tuple[Edge, ...]]]


def _templates(builder: Builder) -> list[Template[Any]]:
    """Each message's template; messages with the same synchroniser and codec share theirs."""
    known: dict[tuple[Synchroniser, Codec | None], Template[Any]] = {}
    found: list[Template[Any]] = []
    for message in builder.strategy.messages:
        key = (message.synchroniser, message.codec)
        template = known.get(key)
        if template is None:
            template = known[key] = _template(builder, *key)
        found.append(template)
    return found


def _template(builder: Builder, synchroniser: Synchroniser, codec: Codec | None) -> Template[Any]:
    if isinstance(synchroniser, ParameterServer):
        kind = SparseServerTemplate if synchroniser.sparse else ServerTemplate
        return kind(builder, synchroniser, codec)
    return _TEMPLATES[type(synchroniser)](builder, synchroniser, codec)


def _collect(templates: Sequence[Template[Any]], slices: Sequence[Sequence[Slice]]) -> list[list[Finished]]:
    """Collect all slices, in the order in which their last gradient becomes ready.

    In a message the parts are in this order, so its slices are.
    """
    finished: list[list[Finished]] = [[] for _ in templates]
    for piece in sorted(itertools.chain.from_iterable(slices), key=attrgetter("ready")):
        finished[piece.message].append(templates[piece.message].collect(piece))
    return finished


def _barriers(
    builder: Builder, slices: Sequence[Sequence[Slice]], finished: Sequence[Sequence[Finished]]
) -> list[tuple[Edge, ...]]:
    """Where the task clips or scales: for each message the norm that its updates wait for, and are scaled by.

    Shared gradients have one norm among them. Periodic averaging has no finished gradients: each of its workers has a
    norm of its own.
    """
    messages = builder.strategy.messages
    if builder.model.clip_norm is None and not builder.model.loss_scaling:
        return [()] * len(messages)
    shared: list[tuple[Slice, Finished]] = []
    own: list[tuple[Slice, Finished]] = []
    for message, pieces, done in zip(messages, slices, finished, strict=True):
        chosen = own if isinstance(message.synchroniser, Periodic) else shared
        chosen.extend(zip(pieces, done, strict=True))
    of_shared = _shared_barrier(builder, shared)
    of_own = _norm(builder, builder.region("norm", OWN_NORM, "float64"), own, shares=False)
    return [of_own if isinstance(message.synchroniser, Periodic) else of_shared for message in messages]


def _shared_barrier(builder: Builder, shared: Sequence[tuple[Slice, Finished]]) -> tuple[Edge, ...]:
    """The norm of all shared gradients.

    Where all workers hold all gradients, each counts for itself. Else each counts what it alone holds and a share of
    what all hold, and a scalar all-reduce makes the norm everybody's.
    """
    norm = builder.region("norm", SHARED_NORM, "float64")
    everywhere = all(_is_everywhere(builder, one) for _, one in shared)
    edges = _norm(builder, norm, shared, shares=not everywhere)
    if everywhere:
        return edges
    message = shared[0][0].message
    return (builder.transfer(message, 1, "all_reduce", "native", builder.everyone, Buffer((norm,), 1, 8), edges),)


def _norm(
    builder: Builder, norm: int, gradients: Iterable[tuple[Slice, Finished]], *, shares: bool
) -> tuple[Edge, ...]:
    """Add up the squares of finished gradients where they are; each worker a share of those that all hold, if told so.

    On each rank one after the other, for they add to the same number, and in one order everywhere, so that all get the
    same. All workers and a server may share a rank, two servers do not.
    """
    last: dict[Groups, Edge] = {}
    for piece, one in gradients:
        near = last if one.holders == builder.workers else (one.holders, builder.workers)
        last[one.holders] = builder.local(
            piece.message,
            "norm",
            one.holders,
            one.grads,
            (norm,),
            (*one.after, *[last[holders] for holders in near if holders in last]),
            num_elements=piece.num_elements,
            sharded=one.sharded or (shares and _is_everywhere(builder, one)),
        )
    return tuple(last.values())


def _is_everywhere(builder: Builder, one: Finished) -> bool:
    """Whether every worker holds the whole gradient."""
    return one.holders == builder.workers and not one.sharded


def _settle(
    templates: Sequence[Template[Any]],
    slices: Sequence[Sequence[Slice]],
    finished: Sequence[Sequence[Finished]],
    barriers: Sequence[tuple[Edge, ...]],
) -> Settled:
    """Update everything and bring it home, in the order of the parameters' next use."""
    rounds: list[tuple[Sequence[Slice], Sequence[Finished]]] = []
    for template, pieces, done in zip(templates, slices, finished, strict=True):
        if template.updates_by_slice:
            rounds.extend(zip(zip(pieces), zip(done), strict=True))
        else:
            rounds.append((pieces, done))
    rounds.sort(key=lambda one: min([piece.use for piece in one[0]]))
    return [
        (pieces, templates[pieces[0].message].settle(pieces, done, barriers[pieces[0].message]))
        for pieces, done in rounds
    ]


def _gates(builder: Builder, finished: Sequence[Sequence[Finished]], settled: Settled) -> tuple[Gate, ...]:
    """What compute waits for: with forward overlap each variable's use, else the return of backward and of the step."""
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
