"""How long the passes of a step take, in whole units of time, and how much of the step waits for each of them.

Passes and sends take the units that the strategy says. Without them, a forward pass takes one unit and a backward pass
two, of which one can come later; in a stage with n ranks each takes n times as long, because each rank gets every n-th
microbatch. A backward pass that computes activations again takes a forward pass longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autosync.plan.interleaving import Direction, OrderedPass
from autosync.strategy.stages import ModelStage, PipelineSchedule, most_under_way


class PassUnits:
    """The units of a step's passes and sends, which pass needs which, and how many microbatches may be under way."""

    def __init__(
        self,
        stages: Sequence[ModelStage],
        microbatches: int,
        schedule: PipelineSchedule,
        slack: int,
        *,
        recompute: bool,
        send_units: int,
    ) -> None:
        self.stages = stages
        self.microbatches = microbatches
        self.schedule = schedule
        self.slack = slack
        self.splits = schedule == "zero_bubble"
        self._send_units = send_units
        self._units = [_units(stage, recompute=recompute, splits=self.splits) for stage in stages]

    def of(self, one: OrderedPass) -> int:
        """Return the units of a pass."""
        direction, stage, _ = one
        return self._units[stage][direction]

    def next_of(self, one: OrderedPass) -> OrderedPass | None:
        """Return the pass that needs what a pass makes, in the next stage or the one before; None if there is none."""
        direction, stage, microbatch = one
        if direction == "forward":
            is_last = stage == len(self.stages) - 1
            return ("backward", stage, microbatch) if is_last else ("forward", stage + 1, microbatch)
        return ("backward", stage - 1, microbatch) if direction == "backward" and stage else None

    def sending(self, one: OrderedPass) -> int:
        """Return the units that it takes to send what a pass makes to the rank that needs it."""
        needing = self.next_of(one)
        if needing is None:
            return 0
        ranks = {self.stages[stage].rank_of(microbatch) for _, stage, microbatch in (one, needing)}
        return self._send_units if len(ranks) > 1 else 0

    def most_under_way(self, stage: int, since: int | None = None) -> int:
        """Return how many microbatches a rank of a stage may have between their two passes, at most."""
        if self.schedule == "gpipe":
            return self.microbatches
        return most_under_way(self.stages, stage, self.slack, since=since)

    def longest_paths(self) -> Mapping[OrderedPass, int]:
        """Return for each forward and backward pass the units of the longest chain of passes that it begins."""
        found: dict[OrderedPass, int] = {}
        stages = range(len(self.stages))
        for microbatch in reversed(range(self.microbatches)):
            backward: list[OrderedPass] = [("backward", stage, microbatch) for stage in stages]
            forward: list[OrderedPass] = [("forward", stage, microbatch) for stage in reversed(stages)]
            for one in (*backward, *forward):
                # There are no passes of microbatches beyond the last one.
                found[one] = self.of(one) + max(gap + found.get(after, 0) for after, gap in self._waiting(one))
        return found

    def _waiting(self, one: OrderedPass) -> Iterator[tuple[OrderedPass, int]]:
        """Yield the passes that cannot come before a pass, each with the units between both."""
        direction, stage, microbatch = one
        width = len(self.stages[stage].ranks)
        yield (direction, stage, microbatch + width), 0
        if direction == "backward":
            # It makes room for a microbatch.
            yield ("forward", stage, microbatch + self.most_under_way(stage) * width), 0
        needing = self.next_of(one)
        if needing is not None:
            yield needing, self.sending(one)


def _units(stage: ModelStage, *, recompute: bool, splits: bool) -> Mapping[Direction, int]:
    """Return the units of each pass of a microbatch through a stage."""
    width = len(stage.ranks)
    forward, backward, later = stage.units or (width, 2 * width, width)
    backward += forward if recompute else 0
    found: Mapping[Direction, int] = {
        "forward": forward,
        "backward": backward - (later if splits else 0),
        "weights": later,
    }
    return {direction: max(1, units) for direction, units in found.items()}
