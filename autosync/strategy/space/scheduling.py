"""Draws slices, lanes and priorities of a step's messages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.drafts import StrategyDraft
from autosync.strategy.space.limits import Limits

SliceStyle = Literal["none", "one_size", "each"]
LaneStyle = Literal["round_robin", "least_bytes", "random", "by_synchroniser"]
PriorityStyle = Literal["none", "use_order", "random"]

SLICE_WEIGHTS: dict[SliceStyle, float] = {"none": 0.4, "one_size": 0.4, "each": 0.2}
LANE_WEIGHTS: dict[LaneStyle, float] = {"round_robin": 0.4, "least_bytes": 0.2, "random": 0.2, "by_synchroniser": 0.2}
PRIORITY_WEIGHTS: dict[PriorityStyle, float] = {"none": 0.3, "use_order": 0.5, "random": 0.2}

P_ONE_LANE = 0.3


def draw_slices(rng: random.Random, drafts: Sequence[StrategyDraft], limits: Limits) -> None:
    """Draw slices: none, one size for all messages, or for each message a size of its own or none."""
    style = draw_weighted(rng, SLICE_WEIGHTS)
    if style == "none" or not limits.slice_bytes:
        return
    sizes: tuple[int | None, ...] = limits.slice_bytes if style == "one_size" else (None, *limits.slice_bytes)
    one_size = rng.choice(sizes)
    for draft in drafts:
        size = one_size if style == "one_size" else rng.choice(sizes)
        if size is not None and draft.setting.slices and size < draft.num_bytes:
            draft.slice_bytes = size


def draw_lanes(rng: random.Random, drafts: Sequence[StrategyDraft], max_lanes: int) -> None:
    """Draw the lanes of messages; `drafts` are in ready order."""
    if max_lanes == 1 or rng.random() < P_ONE_LANE:
        return
    num_lanes = rng.randint(2, max_lanes)
    match draw_weighted(rng, LANE_WEIGHTS):
        case "round_robin":
            for position, draft in enumerate(drafts):
                draft.lane = position % num_lanes
        case "least_bytes":
            loads = [0.0] * num_lanes
            for draft in drafts:
                draft.lane = loads.index(min(loads))
                loads[draft.lane] += draft.num_bytes
        case "random":
            for draft in drafts:
                draft.lane = rng.randrange(num_lanes)
        case "by_synchroniser":
            lanes: dict[str, int] = {}
            for draft in drafts:
                draft.lane = lanes.setdefault(draft.setting.kind, len(lanes)) % num_lanes


def draw_priorities(rng: random.Random, drafts: Sequence[StrategyDraft], max_priorities: int) -> None:
    """Draw priorities: by the order of use in the next forward pass, at random, or all 0."""
    style = draw_weighted(rng, PRIORITY_WEIGHTS)
    if style == "none" or max_priorities == 1 or len({draft.lane for draft in drafts}) == 1:
        return
    levels = min(max_priorities, len(drafts))
    if style == "random":
        for draft in drafts:
            draft.priority = rng.randrange(levels)
    else:
        for draft, priority in zip(drafts, use_order([draft.use for draft in drafts], levels), strict=True):
            draft.priority = priority


def use_order(uses: Sequence[int], levels: int) -> list[int]:
    """Return priorities by the order of use; neighbours share a priority if there are too few levels."""
    ordered = sorted(set(uses))
    levels = min(levels, len(ordered))
    priority_of = {use: rank * levels // len(ordered) for rank, use in enumerate(ordered)}
    return [priority_of[use] for use in uses]
