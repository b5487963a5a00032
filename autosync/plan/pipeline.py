"""The passes of stages in a plan, and the sends between stages.

Operations are those of one step, and passes come in the order that `pass_order` gives. Without a flush (`2bw` and
`stashing`), ranks mix the passes of steps: a forward pass waits for the backward pass before which as many others are
under way as the rank may have, and this one may be of an earlier step. Forward passes come in order, and so do backward
passes; `rank_passes` says how a rank takes them in turn. Under `stashing`, a forward pass also waits for the update
whose parameters it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from autosync.plan.builder import Builder
from autosync.plan.interleaving import Direction
from autosync.plan.pass_order import TimedPass, order_of_passes
from autosync.plan.types import Edge, Local, Region, StagePass, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.stages import (
    UNFLUSHED,
    ModelStage,
    boundary_cuts,
    bytes_of_microbatch,
    late_turns,
    most_under_way,
)

_FIRST_STAGE_OF_QUEUES = 3
"""Templates use the queues of stages 0 to 2 of a lane."""


def add_passes(
    builder: Builder, stages: Sequence[ModelStage], microbatches: int, model: ModelSpec, cluster: ClusterSpec
) -> None:
    """Add a step's passes, and the sends of activations and of their gradients between stages."""
    _Writer(builder, stages, microbatches, model, cluster).write()


class _Writer:
    def __init__(
        self,
        builder: Builder,
        stages: Sequence[ModelStage],
        microbatches: int,
        model: ModelSpec,
        cluster: ClusterSpec,
    ) -> None:
        self._builder = builder
        self._stages = stages
        self._microbatches = microbatches
        self._num_examples = model.batch_size * cluster.num_workers // microbatches
        self._sizes = [
            bytes_of_microbatch(cut, model, self._num_examples) or (0, 0) for cut in boundary_cuts(stages, model)
        ]
        # By direction, stage and microbatch, the send that the pass waits for, with its region.
        self._arriving: dict[tuple[Direction, int, int], tuple[Edge, int]] = {}
        self._done: dict[tuple[Direction, int, int], Edge] = {}
        self._last: dict[int, Edge] = {}

    def write(self) -> None:
        strategy = self._builder.strategy
        order = order_of_passes(
            self._stages,
            self._microbatches,
            strategy.schedule,
            strategy.slack,
            recompute=strategy.recompute,
            send_units=strategy.send_units,
        )
        for one in order:
            self._add(one)
        if strategy.schedule in UNFLUSHED:
            self._unchain()

    def _unchain(self) -> None:
        """Let passes wait for earlier ones of their direction, and for room, instead of for the rank's last pass.

        If stages stash parameters, forward passes also wait for the update that makes theirs.
        """
        stashes = self._builder.strategy.schedule == "stashing"
        for number, stage in enumerate(self._stages):
            most = most_under_way(self._stages, number, self._builder.strategy.slack)
            for place in range(len(stage.ranks)):
                mine = range(place, self._microbatches, len(stage.ranks))
                forward = [self._done["forward", number, microbatch] for microbatch in mine]
                backward = [self._done["backward", number, microbatch] for microbatch in mine]
                chained = {*forward, *backward}
                for position, edge in enumerate(forward):
                    steps, freeing = divmod(position - most, len(mine))
                    room = backward[freeing]._replace(lag=-steps)
                    waits = [*forward[:position][-1:], room]
                    if stashes:
                        waits.append(Edge("step_called", -1, 1 + late_turns(position, most, len(mine))))
                    self._rewire(edge, chained, waits)
                for position, edge in enumerate(backward):
                    self._rewire(edge, chained, [forward[position], *backward[:position][-1:]])

    def _rewire(self, edge: Edge, chained: Collection[Edge], waits: Sequence[Edge]) -> None:
        """Let a pass wait for these passes of its rank, instead of for others of them."""
        operations = self._builder.operations
        others = [other for other in operations[edge.target].after if other not in chained]
        operations[edge.target] = operations[edge.target]._replace(after=(*others, *waits))

    def _add(self, one: TimedPass) -> None:
        key = (one.direction, one.stage, one.microbatch)
        rank = self._stages[one.stage].rank_of(one.microbatch)
        arriving = self._arriving.get(key)
        waits = [] if arriving is None else [arriving[0]]
        if one.direction != "forward":
            before: Direction = "forward" if one.direction == "backward" else "backward"
            waits.append(self._done[before, one.stage, one.microbatch])
        if rank in self._last:
            waits.append(self._last[rank])
        neighbour = one.stage + (1 if one.direction == "forward" else -1)
        is_sent = one.direction != "weights" and 0 <= neighbour < len(self._stages)
        sent = self._region(one) if is_sent else None
        done = self._builder.add(
            Local(
                kind=one.direction,
                cost=one.direction,
                groups=((rank,),),
                sharded=False,
                inputs=() if arriving is None else (arriving[1],),
                outputs=() if sent is None else (sent,),
                num_elements=self._num_examples,
                message=-1,
                after=tuple(dict.fromkeys(waits)),
                settings=StagePass(stage=one.stage, microbatch=one.microbatch),
            )
        )
        self._done[key] = self._last[rank] = done
        if sent is not None and self._stages[neighbour].rank_of(one.microbatch) == rank:
            # What stays on the rank is not sent.
            self._arriving[one.direction, neighbour, one.microbatch] = done, sent
        elif sent is not None:
            self._send(one, rank, neighbour, sent, done)

    def _send(self, one: TimedPass, rank: int, neighbour: int, region: int, done: Edge) -> None:
        builder, boundary = self._builder, min(one.stage, neighbour)
        num_bytes = self._sizes[boundary][one.direction == "backward"]
        queue = _FIRST_STAGE_OF_QUEUES + 2 * boundary + (one.direction == "backward")
        send = Transfer(
            collective="send",
            algorithm="star",
            groups=((rank, self._stages[neighbour].rank_of(one.microbatch)),),
            regions=(region,),
            num_elements=num_bytes,
            max_elements=num_bytes,
            item_bytes=1,
            within=(),
            lane=queue * builder.num_lanes,
            priority=0,
            message=-1,
            after=(done,),
        )
        self._arriving[one.direction, neighbour, one.microbatch] = builder.add(send), region

    def _region(self, one: TimedPass) -> int:
        """Add the region that a pass sends: the microbatch's place among all microbatches that cross the boundary."""
        is_forward = one.direction == "forward"
        boundary = one.stage if is_forward else one.stage - 1
        size = self._sizes[boundary][not is_forward]
        start = one.microbatch * size
        kind: Literal["activations", "activation_grads"] = "activations" if is_forward else "activation_grads"
        return self._builder.region(Region(kind, boundary, start, start + size, "uint8"))
