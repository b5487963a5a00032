"""The one lowering: strategy + model spec + cluster spec -> plan, pure, deterministic and free of torch.

Nothing else interprets a strategy. The canonical form is what is lowered, so equal strategy ids mean equal plans. The order of the
operations is the proof that a plan cannot deadlock: first whatever collects gradients, in the order in which they become
ready; then the barrier; then whatever updates and returns parameters, in the order of their next use. Every operation comes after all it
waits for, and each lane is a part of this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.builder import Builder, Piece, Slice, slices_of
from autosync.plan.templates import Finished, Template, template_of
from autosync.plan.types import Edge, Gate, Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical
from autosync.strategy.parts import all_parts
from autosync.strategy.representation import Periodic, Strategy

NORM_PIECE = Piece(-1, 0, 1)


def lower(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """The plan of a legal strategy (see `legality.problems`)."""
    strategy = canonical(strategy, model, cluster)
    named = all_parts(strategy, model)
    parts = tuple(named.values())
    position = {name: index for index, name in enumerate(named)}
    builder = Builder(strategy, model, cluster, parts)
    templates = [template_of(builder, index) for index in range(len(strategy.messages))]
    slices = [slices_of(index, message, parts, position) for index, message in enumerate(strategy.messages)]
    finished = _collect(templates, slices)
    barrier = _barrier(builder, finished)
    settled = _settle(templates, slices, finished, barrier)
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


def _collect(templates: Sequence[Template], slices: Sequence[Sequence[Slice]]) -> list[list[Finished]]:
    """Collect all slices, in the order in which their last gradient becomes ready."""
    order = sorted(((piece.ready, piece.message, position) for group in slices for position, piece in enumerate(group)))
    finished: list[dict[int, Finished]] = [{} for _ in templates]
    for _, message, position in order:
        finished[message][position] = templates[message].collect(slices[message][position])
    return [[found[position] for position in range(len(found))] for found in finished]


def _barrier(builder: Builder, finished: Sequence[Sequence[Finished]]) -> tuple[Edge, ...]:
    """Where the task clips or scales: the norm of all finished gradients, which every update waits for.

    Gradients that all workers hold are counted by every worker for itself if there are no others, else by the first one; those that
    live on a server or in shards by their holders. Then a scalar all-reduce over all ranks makes it everybody's.
    Periodic averaging has no finished gradients; each of its workers clips its own.
    """
    if builder.model.clip_norm is None and not builder.model.loss_scaling:
        return ()
    messages = builder.strategy.messages
    shared = [i for i, message in enumerate(messages) if not isinstance(message.synchroniser, Periodic)]
    everywhere = all(one.holders == builder.workers and not one.sharded for i in shared for one in finished[i])
    norm = builder.region("norm", NORM_PIECE, "float64")
    edges: list[Edge] = []
    for index in shared:
        for one in finished[index]:
            replicated = one.holders == builder.workers and not one.sharded
            groups = builder.first_worker if replicated and not everywhere else one.holders
            num_elements = sum(builder.regions[grad].num_elements for grad in one.grads)
            edges.append(
                builder.local(
                    index, "norm", groups, one.grads, (norm,), one.after, num_elements=num_elements, sharded=one.sharded
                )
            )
    if everywhere or not edges:
        return tuple(edges)
    total = builder.transfer(
        shared[0],
        1,
        "all_reduce",
        "native",
        builder.everyone,
        (norm,),
        tuple(edges),
        num_elements=1,
        item_bytes=8,
    )
    return (total,)


def _settle(
    templates: Sequence[Template],
    slices: Sequence[Sequence[Slice]],
    finished: Sequence[Sequence[Finished]],
    barrier: tuple[Edge, ...],
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
        edges = templates[index].settle(pieces, finished[index][chosen], barrier)
        settled.extend((piece, edges) for piece in pieces)
    return settled


def _gates(builder: Builder, finished: Sequence[Sequence[Finished]], settled: Settled) -> tuple[Gate, ...]:
    """What compute waits for: with forward overlap each variable's use, else the return of backward and of the step."""
    if builder.strategy.overlap == "backward":
        ready = dict.fromkeys(
            edge
            for group in finished
            for one in group
            if one.holders == builder.workers and not one.sharded
            for edge in one.after
            if edge.event == "operation"
        )
        done = dict.fromkeys(edge for _, edges in settled for edge in edges)
        return (Gate("backward_returns", -1, tuple(ready)), Gate("step_returns", -1, tuple(done)))
    uses: dict[int, dict[Edge, None]] = {index: {} for index in range(len(builder.model.variables))}
    for piece, edges in settled:
        for part in piece.pieces:
            waits = uses[builder.variable_index[builder.parts[part.part].variable.name]]
            waits.update(dict.fromkeys(edge._replace(lag=edge.lag + 1) for edge in edges))
    return tuple(Gate("before_use", variable, tuple(waits)) for variable, waits in uses.items())
