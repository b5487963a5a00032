"""Stages: which ranks compute which run of the model's layers.

**What a strategy says.** `stages` cut the forward pass at cuts that the profile has found (see `specs.cuts`). A stage
begins before the forward segment number `before`, as cuts are named, and ends where the next stage begins. Its `ranks`
compute it. The global batch, which is the task's `batch_size` times the number of workers, is divided into
`microbatches` of equally many examples. In a stage with several ranks, microbatch m goes to the rank at position m mod
n: these ranks are data-parallel. A rank may have several stages, as the first and the last one, so that a weight that
both use is on one rank. `schedule` sets the order of forward and backward passes on each rank. Under `1f1b`, `slack`
lets a rank have so many more microbatches between their two passes; they hide the time that sends take. Under
`interleaved`, the ranks take stages in turn, several each, and `slack` counts as under `1f1b`. Under `zero_bubble`, a
backward pass computes only what the stage before waits for; the gradients of weights come in a pass of their own, for
which ranks have time when they would wait. Under `2bw` and `stashing`, passes come as under `1f1b`, but there is no
flush: a rank makes the last backward passes of a step in its next steps, between the forward passes of those. With
`recompute`, a rank keeps of a microbatch only what has crossed the boundary before its stage; its backward pass
computes the rest again.

The order of passes is planned for passes and sends that take so long as `units` of stages and `send_units` say. Without
them, forward passes take one unit, backward passes two, and sends none.

**What it means.** All microbatches go forward and backward before the update (a flush), so a step computes the gradient
of the mean over the global batch, as without stages. A rank holds the variables that its stages use, and messages go
among the ranks that hold their variables. A weight that is used in two stages (a tied weight) belongs to the ranks of
both. A rank divides the loss of each microbatch by the number of microbatches. So its gradients are parts of the whole,
which ranks add up and do not average. If the task clips, the plan sums the squares of all of them, and every rank clips
by this norm.

Without a flush, the forward passes of a step begin before the last update is made, and strategies are `stale`. There
are two rules. Under `2bw`, all passes of a step, in all stages, take the parameters before the last update: step t adds
to the parameters what the optimizer makes of the gradient at those before step t - 1. Under `stashing`, each stage is
updated as soon as the backward passes of a step are over there. A forward pass takes the newest parameters of its
stage, and the microbatch's backward pass takes the same (see `late_turns`).

**What is refused**, because it is not built: everything in messages but plain all-reduces, transfers into the next
forward pass, accumulation, clipping of sparse gradients, loss scaling, weights of batches, uneven shares, and NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from autosync.documents import STRICT
from autosync.specs.cuts import StageCut
from autosync.specs.model import ModelSpec

PipelineSchedule: TypeAlias = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "2bw", "stashing"]
"""The order of passes: all forward passes first; or one forward pass and one backward pass in turn; or the latter with
several stages a rank; or the latter with the gradients of weights apart; or the latter without a flush, with two
versions of the parameters or with as many as each stage needs."""
SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)
UNFLUSHED: tuple[PipelineSchedule, ...] = ("2bw", "stashing")
"""The schedules without a flush, which make a strategy stale."""
FLUSHED: tuple[PipelineSchedule, ...] = tuple(one for one in SCHEDULES if one not in UNFLUSHED)
USUAL_SCHEDULE: PipelineSchedule = "1f1b"
_NUM_UNITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """A run of layers: from the forward segment number `before` to the next stage, computed by these ranks.

    `units` say how long the passes of a microbatch take, compared with those of other stages: the forward pass, the
    backward pass, and the part of the latter that can come later. They are empty if nothing is known.
    """

    __pydantic_config__ = STRICT

    before: int
    ranks: tuple[int, ...]
    units: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.before < 0:
            raise ValueError(f"a stage before segment {self.before} (segments count from 0)")
        if not self.ranks:
            raise ValueError("a stage without ranks (at least one)")
        if len(set(self.ranks)) < len(self.ranks) or min(self.ranks) < 0:
            raise ValueError(f"the ranks {list(self.ranks)} of a stage (each once, counted from 0)")
        if self.units and (len(self.units) != _NUM_UNITS or min(self.units) < 0 or self.units[2] > self.units[1]):
            raise ValueError(
                f"the units {list(self.units)} of a stage (forward, backward, and what of the latter can come later)"
            )

    def rank_of(self, microbatch: int) -> int:
        """Return the rank that computes a microbatch in this stage."""
        return self.ranks[microbatch % len(self.ranks)]


def most_under_way(stages: Sequence[ModelStage], number: int, slack: int, *, since: int | None = None) -> int:
    """Return how many microbatches a rank of a stage has between their two passes, at most, under `1f1b`.

    It is what the stages from its own on, or from `since` on, can work on, and the slack.
    """
    later = stages[number if since is None else since :]
    return -(-sum(len(stage.ranks) for stage in later) // len(stages[number].ranks)) + slack


def late_turns(turn: int, under_way: int, per_step: int) -> int:
    """Return how many steps late the backward pass is that a rank without a flush makes in a turn of a step.

    In each of the `per_step` turns of a step, a rank makes a forward pass, and then the backward pass of the oldest of
    the `under_way` microbatches between their two passes. In turn j this is the one that went forward `under_way` - 1
    turns before, and it is of an earlier step if j < `under_way` - 1.

    So when the forward pass begins, the stage lacks the updates of as many steps before. Under `stashing` they are the
    updates that the parameters of this microbatch miss.
    """
    return max(0, -((turn - under_way + 1) // per_step))


def most_missed(stages: Sequence[ModelStage], microbatches: int, schedule: PipelineSchedule, slack: int) -> int:
    """Return how many updates the parameters miss at most with which a pass computes."""
    if schedule != "stashing" or not stages:
        return int(schedule in UNFLUSHED)
    return max(
        late_turns(0, most_under_way(stages, number, slack), max(1, microbatches // len(stage.ranks)))
        for number, stage in enumerate(stages)
    )


def ring_of(stages: Sequence[ModelStage]) -> list[tuple[int, ...]]:
    """Return the ranks of the first stages, as many as there are different ones: those that take stages in turn."""
    return [stage.ranks for stage in stages[: len({stage.ranks for stage in stages})]]


def are_in_turn(stages: Sequence[ModelStage]) -> bool:
    """Whether the ranks take stages in turn, one rank a stage and several stages a rank."""
    ring = ring_of(stages)
    return (
        len(ring) < len(stages)
        and len(stages) % len(ring) == 0
        and all(len(ranks) == 1 for ranks in ring)
        and all(stage.ranks == ring[number % len(ring)] for number, stage in enumerate(stages))
    )


def boundary_cuts(stages: Sequence[ModelStage], model: ModelSpec) -> tuple[StageCut, ...]:
    """Return the cut before each stage but the first."""
    cuts = {cut.before: cut for cut in model.timeline.cuts}
    return tuple(cuts[stage.before] for stage in stages[1:])


def stages_of_variables(stages: Sequence[ModelStage], model: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    """Return the stages (by position) that use each variable.

    Modules use the variables that they own, and cuts name the variables that other modules' code uses besides.
    """
    begins = [stage.before for stage in stages]

    def stage_of(segment: int) -> int:
        return sum(begin <= segment for begin in begins) - 1

    found: dict[str, set[int]] = {variable.name: set() for variable in model.variables}
    for number, segment in enumerate(model.timeline.forward):
        for name in segment.variables:
            found[name].add(stage_of(number))
    for cut in model.timeline.cuts:
        for name in cut.uses:
            # Frozen parameters are no variables.
            if name in found:
                found[name].add(stage_of(cut.before))
    for name in model.timeline.cuts[0].tied if model.timeline.cuts else ():
        if name in found and model.timeline.cuts[0].before == 1:
            found[name].add(0)
    # What no segment names is computed with the last one, as the loss is.
    return {name: tuple(sorted(uses)) if uses else (len(stages) - 1,) for name, uses in found.items()}


def holders_of_variables(stages: Sequence[ModelStage], model: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks that hold each variable, in their order."""
    return {
        name: tuple(sorted({rank for stage in uses for rank in stages[stage].ranks}))
        for name, uses in stages_of_variables(stages, model).items()
    }


def bytes_of_microbatch(cut: StageCut, model: ModelSpec, num_examples: int) -> tuple[int, int] | None:
    """Return the bytes that a microbatch sends over a cut, forward and backward; None if they are no whole numbers."""
    growing = cut.num_bytes - cut.fixed_bytes
    constant = cut.constant_bytes - cut.fixed_constant_bytes
    if growing * num_examples % model.batch_size or constant * num_examples % model.batch_size:
        return None
    backward = cut.fixed_bytes + growing * num_examples // model.batch_size
    return backward + cut.fixed_constant_bytes + constant * num_examples // model.batch_size, backward


def in_words(
    stages: Sequence[ModelStage], microbatches: int, schedule: PipelineSchedule, slack: int, *, recompute: bool
) -> str:
    """Return how the work is divided in a phrase: `the work is divided into 2 stages on ranks 0 and 1-2, …`."""
    ranks = ", ".join("+".join(map(str, stage.ranks)) for stage in stages)
    noun = "stage" if len(stages) == 1 else "stages"
    slack = 0 if schedule == "gpipe" else slack
    return (
        f"the work is divided into {len(stages)} {noun} on ranks {ranks}, with {microbatches} microbatches in the "
        f"order {schedule}{f' and {slack} more under way' if slack else ''}"
        f"{', whose backward passes compute activations again' if recompute else ''}"
    )
