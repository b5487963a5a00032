"""The places where a model can be cut into stages, and which of them divide its compute evenly.

A cut is before a segment of the forward pass: the call of a module that owns parameters. What is computed before it and
used after it crosses the cut, also past the next modules (a skip connection). The gradients of activations cross in the
other direction and have the same bytes. The tensors of the batch do not count, because each rank can read them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from autosync.documents import STRICT

NUM_COMPARED = 2
"""The examples of a microbatch whose gradients are compared with those of several microbatches together. Two, because a
loss over several is a mean in another way than that of one. More would only take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """A cut before the forward segment number `before` (the first segment has number 0).

    With the profiled batch, `num_bytes` of activations cross it, and `constant_bytes` of tensors without a gradient.
    The forward pass before it keeps `held_bytes` for its backward pass, without parameters. `tied` are the variables
    that are used on both sides: their gradients must be added up. `uses` are the variables that the segment after the
    cut uses although its module does not own them. `fixed_bytes` and `fixed_constant_bytes` are the parts of
    `num_bytes` and `constant_bytes` that do not grow with the examples.
    """

    __pydantic_config__ = STRICT

    before: int
    num_bytes: int
    constant_bytes: int = 0
    held_bytes: int = 0
    tied: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    fixed_bytes: int = 0
    fixed_constant_bytes: int = 0

    def __post_init__(self) -> None:
        if self.before < 1 or min(self.num_bytes, self.constant_bytes, self.held_bytes) < 0:
            raise ValueError(f"a cut before segment {self.before} (1 or more, and bytes of 0 or more)")
        if not (0 <= self.fixed_bytes <= self.num_bytes and 0 <= self.fixed_constant_bytes <= self.constant_bytes):
            raise ValueError(f"fixed bytes of the cut before segment {self.before} (0 up to all bytes)")


class _Segment(Protocol):
    @property
    def module(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class _Timeline(Protocol):
    @property
    def forward(self) -> Sequence[_Segment]: ...
    @property
    def backward(self) -> Sequence[_Segment]: ...
    @property
    def cuts(self) -> Sequence[StageCut]: ...


def check_cuts(cuts: Sequence[StageCut], uncut: str, num_segments: int) -> None:
    """Raise ValueError unless cuts lie within the forward pass, in its order, and have no reason against them."""
    places = [cut.before for cut in cuts]
    if places != sorted(set(places)) or (places and places[-1] >= num_segments):
        raise ValueError(f"cuts before the segments {places} of {num_segments} (in order, each once, within the pass)")
    if cuts and uncut:
        raise ValueError("a model has cuts and a reason why it cannot be cut (one of them)")


class Stages(NamedTuple):
    """A division into stages: its cuts, and the seconds of forward and backward compute of each stage."""

    cuts: tuple[StageCut, ...]
    seconds: tuple[float, ...]

    @property
    def excess(self) -> float:
        """How much longer the slowest stage takes than an even one, as a share of the latter."""
        return max(self.seconds) * len(self.seconds) / sum(self.seconds) - 1

    @property
    def num_bytes(self) -> int:
        """The bytes that cross all its cuts in one direction."""
        return sum(cut.num_bytes + cut.constant_bytes for cut in self.cuts)


def segment_seconds(timeline: _Timeline) -> list[float]:
    """Return forward and backward time of each forward segment.

    The backward time of a module is divided over its calls by their forward times. A call without a gradient of its own
    (its weight is tied to one that is ready later, or frozen) has no segment in the backward pass: the next one ends
    when that of the module before it is there. So their time is divided in the same way.
    """
    backward: dict[str, float] = defaultdict(float)
    calls: dict[str, list[int]] = defaultdict(list)
    for segment in timeline.backward:
        backward[segment.module] += segment.seconds
    forward = [segment.seconds for segment in timeline.forward]
    for number, segment in enumerate(timeline.forward):
        calls[segment.module].append(number)
    found = list(forward)
    for module, seconds in backward.items():
        for number, share in _shares(forward, calls[module]):
            found[number] += seconds * share
    untold: list[int] = []
    for number in reversed(range(len(forward))):
        if timeline.forward[number].module not in backward:
            untold.append(number)
        elif untold:
            together = found[number] - forward[number]
            found[number] = forward[number]
            for one, share in _shares(forward, [number, *untold]):
                found[one] += together * share
            untold.clear()
    return found


def _shares(forward: Sequence[float], numbers: Sequence[int]) -> list[tuple[int, float]]:
    """Return the share of each of some segments in their forward time; equal shares if they take none."""
    total = math.fsum(forward[number] for number in numbers)
    return [(number, forward[number] / total if total > 0 else 1 / len(numbers)) for number in numbers]


def even_stages(timeline: _Timeline, num_stages: int) -> Stages | None:
    """Return the stages whose slowest is fastest, of these with the fewest bytes; None if there are too few cuts."""
    cuts = list(timeline.cuts)
    if num_stages < 1 or len(cuts) < num_stages - 1:
        return None
    until = [0.0]
    for seconds in segment_seconds(timeline):
        until.append(until[-1] + seconds)
    places = [0, *[cut.before for cut in cuts], len(until) - 1]
    sizes = [0, *[cut.num_bytes + cut.constant_bytes for cut in cuts], 0]
    ends = [until[place] for place in places]
    # How slow the slowest stage must be, and then the fewest bytes with stages that are no slower.
    limit, _ = _divided(ends, num_stages, lambda slowest, stage, _: max(slowest, stage))
    _, chosen = _divided(
        ends, num_stages, lambda num_bytes, stage, end: num_bytes + sizes[end] if stage <= limit else math.inf
    )
    parts = tuple(until[places[end]] - until[places[start]] for start, end in itertools.pairwise(chosen))
    return Stages(cuts=tuple(cuts[place - 1] for place in chosen[1:-1]), seconds=parts)


def _divided(
    ends: Sequence[float], num_stages: int, cost: Callable[[float, float, int], float]
) -> tuple[float, list[int]]:
    """Return the least cost of so many stages between the places that end at these times, and the places themselves.

    `cost` is that of the stages before, the next stage's seconds, and its last place.
    """
    best = [0.0, *[math.inf] * (len(ends) - 1)]
    befores: list[list[int]] = []
    for _ in range(num_stages):
        ways = [
            min(
                ((cost(best[start], ends[end] - ends[start], end), start) for start in range(end)),
                default=(math.inf, 0),
            )
            for end in range(len(ends))
        ]
        best = [way[0] for way in ways]
        befores.append([way[1] for way in ways])
    chosen = [len(ends) - 1]
    for before in reversed(befores):
        chosen.append(before[chosen[-1]])
    return best[-1], chosen[::-1]
