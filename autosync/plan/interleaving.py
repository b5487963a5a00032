"""The order of passes where each rank has several stages, dealt to the ranks in turn.

A rank that has one long stage works only once the first microbatch has passed all layers before it. With v short stages
instead, dealt in turn, that wait is v times shorter; activations then cross v times as many boundaries. Microbatches go
through in groups of as many as there are ranks: a rank passes a group through its first stage, then through its second,
and so on. Backward passes go the other way. After its first forward passes, a rank makes one of each in turn.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autosync.strategy.stages import ModelStage, ring_of

Direction = Literal["forward", "backward", "weights"]
"""Forward; backward; or the gradients of weights alone, where backward passes leave them for later."""
OrderedPass = tuple[Direction, int, int]
"""The direction, the stage and the microbatch of a pass."""


def interleaved_orders(stages: Sequence[ModelStage], microbatches: int, slack: int) -> dict[int, list[OrderedPass]]:
    """Return the passes of each rank in order. `slack` more microbatches are under way than the ranks need."""
    ring = [ranks[0] for ranks in ring_of(stages)]
    num_rounds = len(stages) // len(ring)
    return {rank: _order(place, len(ring), num_rounds, microbatches, slack) for place, rank in enumerate(ring)}


def _order(place: int, num_ranks: int, num_rounds: int, microbatches: int, slack: int) -> list[OrderedPass]:
    """Return the passes of the rank at a place of the ring."""
    total = num_rounds * microbatches

    def passed(number: int, direction: Direction) -> OrderedPass:
        group, within = divmod(number, num_ranks * num_rounds)
        turn = within // num_ranks
        turn = turn if direction == "forward" else num_rounds - 1 - turn
        return direction, turn * num_ranks + place, group * num_ranks + within % num_ranks

    first = min(total, 2 * (num_ranks - place - 1) + (num_rounds - 1) * num_ranks + slack)
    found = [passed(number, "forward") for number in range(first)]
    for number in range(total - first):
        found += [passed(first + number, "forward"), passed(number, "backward")]
    return found + [passed(number, "backward") for number in range(total - first, total)]
