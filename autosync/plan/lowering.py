"""The one lowering: strategy + model spec + cluster spec -> plan, pure, deterministic and free of torch.

Nothing else interprets a strategy. The canonical form is what is lowered, so equal strategy ids mean equal plans. The
order of the operations is the proof that a plan cannot deadlock: first whatever collects gradients, in the order in
which they become ready; then the barrier; then whatever updates and returns parameters, in the order of their next use.
Every operation comes after all it waits for, and each lane is a part of this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autosync.plan.builder import Builder, Piece, Slice, slices_of
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
    ParameterServer,
    Periodic,
    Sharded,
    SparseGather,
    Strategy,
    SufficientFactors,
)

SHARED_NORM = Piece(-1, 0, 1)
OWN_NORM = Piece(-1, 1, 2)

_TEMPLATES: Mapping[type, type[Template]] = {
    AllReduce: AllReduceTemplate,
    Sharded: ShardedTemplate,
    SparseGather: SparseGatherTemplate,
    SufficientFactors: FactorsTemplate,
    Periodic: PeriodicTemplate,
}


def lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """The plan of a legal strategy (see `legality.problems`)."""
    strategy = canonical(strategy, model, cluster)
    named = all_parts(strategy, model)
    parts = tuple(named.values())
    position = {name: index for index, name in enumerate(named)}
    builder = Builder(strategy, model, cluster, parts)
    templates = [_template(builder, index) for index in range(len(strategy.messages))]
    slices = [slices_of(index, message, parts, position) for index, message in enumerate(strategy.messages)]
    finished = _collect(templates, slices)
    barriers = _barriers(builder, finished)
    settled = _settle(templates, slices, finished, barriers)
    return Plan(
        model=model.fingerprint(),
        cluster=cluster.fingerprint(),
        overlap=strategy.overlap,
        backend=cluster.backend,
        ranks=cluster.ranks,
        num_workers=cluster.num_workers,
        clip_norm=model.clip_norm,
        parts=parts,
        messages=tuple(message.parts for message in strategy.messages),
        regions=tuple(builder.regions),
        operations=tuple(builder.operations),
        gates=_gates(builder, finished, settled),
    )


Settled = list[tuple[Slice, tuple[Edge, ...]]]


def _template(builder: Builder, index: int) -> Template:
    message = builder.strategy.messages[index]
    synchroniser = message.synchroniser
    if isinstance(synchroniser, ParameterServer):
        kind = SparseServerTemplate if synchroniser.sparse else ServerTemplate
        return kind(builder, index, message)
    return _TEMPLATES[type(synchroniser)](builder, index, message)


def _collect(templates: Sequence[Template], slices: Sequence[Sequence[Slice]]) -> list[list[Finished]]:
    """Collect all slices, in the order in which their last gradient becomes ready."""
    order = sorted(((piece.ready, piece.message, position) for group in slices for position, piece in enumerate(group)))
    finished: list[dict[int, Finished]] = [{} for _ in templates]
    for _, message, position in order:
        finished[message][position] = templates[message].collect(slices[message][position])
    return [[found[position] for position in range(len(found))] for found in finished]


def _barriers(builder: Builder, finished: Sequence[Sequence[Finished]]) -> list[tuple[Edge, ...]]:
    """Where the task clips or scales: for each message the norm that its updates wait for, and are scaled by.

    Shared gradients have one norm among them. Periodic averaging has no finished gradients: each of its workers has a
    norm of its own.
    """
    messages = builder.strategy.messages
    if builder.model.clip_norm is None and not builder.model.loss_scaling:
        return [()] * len(messages)
    shared = [i for i, message in enumerate(messages) if not isinstance(message.synchroniser, Periodic)]
    own = [i for i, message in enumerate(messages) if isinstance(message.synchroniser, Periodic)]
    barriers = {
        **dict.fromkeys(shared, _shared_barrier(builder, shared, finished)),
        **dict.fromkeys(own, _norm(builder, OWN_NORM, own, finished, shares=False)),
    }
    return [barriers[index] for index in range(len(messages))]


def _shared_barrier(builder: Builder, shared: list[int], finished: Sequence[Sequence[Finished]]) -> tuple[Edge, ...]:
    """The norm of all shared gradients.

    Where all workers hold all gradients, each counts for itself. Else each counts what it alone holds and a share of
    what all hold, and a scalar all-reduce makes the norm everybody's.
    """
    everywhere = all(_is_everywhere(builder, one) for index in shared for one in finished[index])
    edges = _norm(builder, SHARED_NORM, shared, finished, shares=not everywhere)
    if everywhere:
        return edges
    norm = builder.region("norm", SHARED_NORM, "float64")
    return (
        builder.transfer(
            shared[0], 1, "all_reduce", "native", builder.everyone, (norm,), edges, num_elements=1, item_bytes=8
        ),
    )


def _norm(
    builder: Builder,
    piece: Piece,
    indexes: Iterable[int],
    finished: Sequence[Sequence[Finished]],
    *,
    shares: bool,
) -> tuple[Edge, ...]:
    """Add up the squares of finished gradients where they are; each worker a share of those that all hold, if told so.

    On each rank one after the other, for they add to the same number, and in one order everywhere, so that all get the
    same. All workers and a server may share a rank, two servers do not.
    """
    norm = builder.region("norm", piece, "float64")
    last: dict[Groups, Edge] = {}
    for index in indexes:
        for one in finished[index]:
            near = last if one.holders == builder.workers else (one.holders, builder.workers)
            last[one.holders] = builder.local(
                index,
                "norm",
                one.holders,
                one.grads,
                (norm,),
                (*one.after, *[last[holders] for holders in near if holders in last]),
                num_elements=sum([builder.regions[grad].num_elements for grad in one.grads]),
                sharded=one.sharded or (shares and _is_everywhere(builder, one)),
            )
    return tuple(last.values())


def _is_everywhere(builder: Builder, one: Finished) -> bool:
    """Whether every worker holds the whole gradient."""
    return one.holders == builder.workers and not one.sharded


def _settle(
    templates: Sequence[Template],
    slices: Sequence[Sequence[Slice]],
    finished: Sequence[Sequence[Finished]],
    barriers: Sequence[tuple[Edge, ...]],
) -> Settled:
    """Update everything and bring it home, in the order of the parameters' next use."""
    order: list[tuple[int, int, int]] = []
    for index, template in enumerate(templates):
        if template.updates_by_slice:
            order.extend((piece.use, index, position) for position, piece in enumerate(slices[index]))
        else:
            order.append((min(piece.use for piece in slices[index]), index, -1))
    settled: Settled = []
    for _, index, position in sorted(order):
        chosen = slice(None) if position < 0 else slice(position, position + 1)
        pieces = slices[index][chosen]
        edges = templates[index].settle(pieces, finished[index][chosen], barriers[index])
        settled.extend((piece, edges) for piece in pieces)
    return settled


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
        done = dict.fromkeys(edge for _, edges in settled for edge in edges)
        return (Gate("backward_returns", -1, tuple(ready)), Gate("step_returns", -1, tuple(done)))
    uses: dict[int, dict[Edge, None]] = {index: {} for index in range(len(builder.model.variables))}
    for piece, edges in settled:
        for part in piece.pieces:
            waits = uses[builder.variable_of[part.part]]
            waits.update(dict.fromkeys(edge._replace(lag=edge.lag + 1) for edge in edges))
    return tuple(Gate("before_use", variable, tuple(waits)) for variable, waits in uses.items())
