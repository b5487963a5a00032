"""Describes a plan as text: the stages of each message, with the ranks that take part and what each stage waits for.

Stage `3.2` is the second stage of message 3 (messages count from 0). The slices of a message go through the same
stages and are shown together. Then follow the gates, and the bytes that a step moves over each node's interface, at
most and, where that is less, on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from autosync.plan.identity import is_rooted
from autosync.plan.traffic import Traffic, amortised_traffic
from autosync.plan.types import Edge, Gate, Groups, Local, Operation, Plan, StagePass, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shares import in_words
from autosync.strategy.wording import abbreviated, count, format_table, runs
from autosync.units import format_size

_HEADER = ("stage", "what", "who", "bytes", "lane", "priority", "when", "after")
_GATES = {"backward_returns": "backward returns", "step_returns": "step() returns"}


def describe_plan(plan: Plan, cluster: ClusterSpec, *, limit: int | None = 40, expected: Traffic | None = None) -> str:
    """Return the plan as text, with at most about `limit` stages and gates.

    `expected` are the mean bytes of a step, if they may be less than the plan's.
    """
    stages = _Stages(plan, cluster)
    blocks = [
        _summary(plan, stages),
        _listing(plan, stages, limit),
        _gates(plan, stages, limit),
        _totals(plan, cluster, expected),
    ]
    return "\n\n".join(block for block in blocks if block)


class _Stage(NamedTuple):
    """The operations of one message that do the same, each on another slice."""

    name: str
    operations: tuple[Operation, ...]


class _Stages:
    """The stages of a plan, and the names of stages, variables and groups of ranks."""

    def __init__(self, plan: Plan, cluster: ClusterSpec) -> None:
        self.by_message: list[list[_Stage]] = [[] for _ in plan.messages]
        # The passes and the sends of a divided model, which are in no message.
        self.of_passes: list[_Stage] = []
        self.name_of: list[str] = []
        self._plan = plan
        self._variables = list(dict.fromkeys(part.variable.name for part in plan.parts))
        self._people = _People(plan, cluster)
        self._group(plan)

    def _group(self, plan: Plan) -> None:
        grouped: list[dict[object, list[Operation]]] = [{} for _ in plan.messages]
        passes: dict[object, list[Operation]] = {}
        for operation in plan.operations:
            stages = passes if operation.message < 0 else grouped[operation.message]
            stages.setdefault(_manner(operation), []).append(operation)
            place = list(stages).index(_manner(operation)) + 1
            self.name_of.append(f"{'p' if operation.message < 0 else operation.message}.{place}")
        self.of_passes = [_Stage(f"p.{place}", tuple(found)) for place, found in enumerate(passes.values(), 1)]
        for message, found in enumerate(grouped):
            for place, operations in enumerate(found.values(), 1):
                self.by_message[message].append(_Stage(f"{message}.{place}", tuple(operations)))

    def row(self, stage: _Stage) -> tuple[str, ...]:
        """Return the cells of a stage's row in the table."""
        first = stage.operations[0]
        who = self._people.of(first)
        when = "" if first.every == 1 else f"every {first.every} steps"
        after = self.waits(edge for operation in stage.operations for edge in operation.after)
        if isinstance(first, Local):
            what = first.cost if first.cost.startswith(first.kind) else f"{first.kind} {first.cost}"
            if isinstance(first.settings, StagePass):
                what = f"{what} stage {first.settings.stage}, {count(len(stage.operations), 'microbatch')}"
            share = " (its shard)" if first.sharded else ""
            return (stage.name, what.replace(":", " "), who + share, "", "", "", when, after)
        return (
            stage.name,
            _crossing_in_words(self._plan, first) or f"{first.collective} {first.algorithm}",
            who + (" (its share)" if first.within else ""),
            _size(stage),
            str(self._plan.lane_of(first)),
            str(first.priority),
            when,
            after,
        )

    def waits(self, edges: Iterable[Edge]) -> str:
        """Return in words what edges wait for."""
        grads: dict[str, None] = {}
        others: dict[str, None] = {}
        for edge in edges:
            match edge.event:
                case "grad_ready":
                    grads[self._variables[edge.target]] = None
                case "operation":
                    others[self.name_of[edge.target] + _ago(edge.lag)] = None
                case "step_called":
                    others["step()" + _ago(edge.lag)] = None
        words = [f"the gradient{'s' if len(grads) > 1 else ''} of {abbreviated(list(grads))}"] if grads else []
        return "; ".join([*words, abbreviated(list(others), most=4)] if others else words)

    def variable(self, gate: Gate) -> str:
        """Return the name of a gate's variable."""
        return self._variables[gate.variable]


def _manner(operation: Operation) -> object:
    """Return a key that is equal for all operations of one stage."""
    if isinstance(operation, Transfer):
        return operation.collective, operation.algorithm, operation.groups, operation.lane, operation.every
    return operation.kind, operation.cost, operation.groups, operation.every


def _crossing_in_words(plan: Plan, transfer: Transfer) -> str:
    """Return what a send between stages carries; nothing for other transfers."""
    if transfer.collective != "send":
        return ""
    return "activations" if plan.regions[transfer.regions[0]].kind == "activations" else "their gradients"


def _ago(lag: int) -> str:
    return "" if lag == 0 else " of the last step" if lag == 1 else f" {lag} steps ago"


def _size(stage: _Stage) -> str:
    transfers = [operation for operation in stage.operations if isinstance(operation, Transfer)]
    size = format_size(sum(transfer.num_bytes for transfer in transfers))
    each = " each" if transfers[0].collective in ("gather_v", "all_gather_v") else ""
    expected = "~" if any(transfer.max_elements != transfer.num_elements for transfer in transfers) else ""
    pieces = "microbatches" if transfers[0].collective == "send" else "slices"
    slices = f" in {len(transfers)} {pieces}" if len(transfers) > 1 else ""
    return f"{expected}{size}{each}{slices}"


class _People:
    """Describes groups of ranks in words."""

    def __init__(self, plan: Plan, cluster: ClusterSpec) -> None:
        self._workers = tuple(range(plan.num_workers))
        self._nodes = cluster.worker_groups()
        self._leaders = {group[0] for group in self._nodes}
        num_ranks = [sum(rank.node == node for rank in plan.ranks) for node in range(len(cluster.nodes))]
        self._names = [
            cluster.nodes[rank.node].name + (f":{rank.local}" if num_ranks[rank.node] > 1 else "")
            for rank in plan.ranks
        ]

    def of(self, operation: Operation) -> str:
        """Return in words which ranks take part in an operation."""
        groups = operation.groups
        if is_rooted(operation) and len(groups) == 1:
            root, *others = groups[0]
            from_root = isinstance(operation, Transfer) and operation.collective in ("broadcast", "send")
            ends = (
                (self._names[root], self._crowd(others, root))
                if from_root
                else (self._crowd(others, root), self._names[root])
            )
            return " to ".join(ends)
        if len(groups) == 1:
            return self._crowd(groups[0], -1)
        return self._crowds(groups)

    def _crowd(self, ranks: Sequence[int], root: int) -> str:
        """Return ranks in words. A phrase like "all other workers" leaves out `root` (-1: no root)."""
        members = {*ranks, root} - {-1}
        servers = members - set(self._workers) - {root}
        other = "other " if root in self._workers else ""
        if len(members) > 2 and members - servers - {root} == set(self._workers) - {root}:
            return f"all {other}workers" + (" and servers" if servers else "")
        if len(ranks) > 1 and members - {root} == self._leaders - {root}:
            return f"one rank of each {other}node"
        return runs([self._names[rank] for rank in ranks])

    def _crowds(self, groups: Groups) -> str:
        if {rank for group in groups for rank in group} == set(self._workers) and all(len(g) == 1 for g in groups):
            return "each worker"
        if all(len(group) == 1 for group in groups):
            return "each of " + runs([self._names[rank] for group in groups for rank in group])
        if set(groups) <= set(self._nodes):
            return "within nodes"
        if {len(group) for group in groups} == {len(self._nodes)}:
            return "between nodes, each rank with its like"
        return "; ".join(runs([self._names[rank] for rank in group]) for group in groups)


def _summary(plan: Plan, stages: _Stages) -> str:
    transfers = sum(isinstance(operation, Transfer) for operation in plan.operations)
    facts = [
        count(len(plan.messages), "message"),
        count(len(stages.of_passes) + sum(len(found) for found in stages.by_message), "stage"),
        count(len(plan.operations), "operation"),
        f"{count(transfers, 'transfer')} among them",
        count(plan.num_lanes, "lane"),
    ]
    divided = f"; the workers compute {in_words(plan.shares)}" if plan.shares else ""
    if plan.stages:
        divided = f"; {count(len(plan.stages), 'stage')} of layers, {count(plan.microbatches, 'microbatch')} a step"
    return f"plan: {', '.join(facts)}{divided}"


def _listing(plan: Plan, stages: _Stages, limit: int | None) -> str:
    """Return text with the stages of as many whole messages as the limit allows, but of at least one."""
    shown: list[list[_Stage]] = []
    for found in stages.by_message:
        num_rows = sum(map(len, shown)) + len(found)
        if shown and limit is not None and num_rows > limit:
            break
        shown.append(found)
    rows = [stages.row(stage) for found in (stages.of_passes, *shown) for stage in found]
    header, *lines = format_table(rows, header=_HEADER).splitlines()
    text, place = [header], len(stages.of_passes)
    if stages.of_passes:
        text += ["stages of layers", *lines[:place]]
    for message, found in enumerate(shown):
        text.append(f"message {message}: {abbreviated(plan.messages[message])}")
        text.extend(lines[place : place + len(found)])
        place += len(found)
    num_more = len(plan.messages) - len(shown)
    if num_more:
        text.append(f"and {count(num_more, 'more message')}")
    return "\n".join(text)


def _gates(plan: Plan, stages: _Stages, limit: int | None) -> str:
    lines = list(_gate_lines(plan, stages))
    most = len(lines) if limit is None else limit
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(["gates:", *lines[:most], *more])


def _gate_lines(plan: Plan, stages: _Stages) -> Iterator[str]:
    for gate in plan.gates:
        waits = stages.waits(gate.after)
        if waits:
            what = f"{stages.variable(gate)} is used" if gate.kind == "before_use" else _GATES[gate.kind]
            yield f"  {what} after {waits}"


def _totals(plan: Plan, cluster: ClusterSpec, expected: Traffic | None) -> str:
    most = amortised_traffic(plan, cluster)
    if expected is None or (expected.links == most.links).all():
        return _moved("a step moves", most, cluster)
    average = _moved("a step moves on average, as not every step uses all parameters", expected, cluster)
    return "\n\n".join([average, _moved("a step that uses all parameters moves", most, cluster)])


def _moved(title: str, traffic: Traffic, cluster: ClusterSpec) -> str:
    nodes = [
        (node.name, *map(format_size, numbers))
        for node, *numbers in zip(cluster.nodes, traffic.node_out, traffic.node_in, traffic.node_within, strict=True)
    ]
    header = ("node", "out", "in", "within")
    blocks = [title, format_table(nodes, header=header, right=header[1:])]
    if cluster.racks:
        racks = [
            (rack.name, format_size(out), format_size(into))
            for rack, out, into in zip(cluster.racks, traffic.rack_out, traffic.rack_in, strict=True)
        ]
        blocks.append(format_table(racks, header=("rack", "out", "in"), right=("out", "in")))
    return "\n".join(blocks)
