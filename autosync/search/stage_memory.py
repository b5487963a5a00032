"""The memory of ranks that compute stages: parameters, gradients, the optimizer's state, and held activations.

Every rank builds the whole model, and keeps gradients and state of what its stages train. The forward pass of a
microbatch holds activations until its backward pass, and the plan's order says how many microbatches are between both.
If backward passes are split, it holds them until the gradients of weights are there: their factors take as much. If
backward passes compute activations again, it holds what has crossed the boundary before its stage.
A backward pass also has, for a while, the gradients of the activations that it is at: as much as lies between two cuts.
Without a flush, it also has a copy of its stage's parameters for each version that passes under way need.
In the first step, each rank also runs all stages by itself on one microbatch, with the gradients of the whole model.
Then it compares gradients of a few examples, of which it has two at a time. Some later steps begin with a comparison
for the rank's own parameters. Without a flush, microbatches of earlier steps are under way then.
"""

from __future__ import annotations

import itertools

from autosync.plan.rank_passes import passes_of
from autosync.plan.types import Local, Plan, StagePass
from autosync.specs.cuts import NUM_COMPARED
from autosync.specs.model import STATE_ITEM_BYTES, ModelSpec, variables_by_name
from autosync.strategy.stages import boundary_cuts, bytes_of_microbatch, holders_of_variables


def stage_rank_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """Return the bytes that each rank of a plan with stages needs."""
    passes = [one for one in plan.operations if isinstance(one, Local) and isinstance(one.settings, StagePass)]
    share = passes[0].num_elements / model.batch_size
    of_stage = [share * num_bytes for num_bytes in _held_bytes(plan, model)]
    passing = share * _most_between_cuts(model)
    trained = _trained_bytes(plan, model)
    entering = _entering_bytes(plan, model, passes[0].num_elements)
    activations = _most_under_way(plan, passes, of_stage, entering)
    compared = min(1.0, NUM_COMPARED / passes[0].num_elements) * sum(of_stage)
    in_the_check = max(model.num_bytes + sum(of_stage), 2 * model.num_bytes + compared)
    held = _held_parameter_bytes(plan, model)
    found = []
    for rank in range(len(plan.ranks)):
        in_a_step = trained[rank] + activations[rank]
        in_a_later_check = trained[rank] + _between_steps(plan, rank, of_stage, entering) + 2 * held[rank] + compared
        most = max(in_a_step, in_the_check, in_a_later_check)
        found.append(model.num_bytes + model.untrained_bytes + most + passing)
    return found


def _held_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """Return what each stage keeps of the profiled batch until its backward pass.

    The profile counts what the pass before a cut holds; what it holds behind the last cut is taken for as much as
    between the last two.
    """
    held = {0: 0, **{cut.before: cut.held_bytes for cut in model.timeline.cuts}}
    until = list(held.values())
    end = until[-1] + (until[-1] - until[-2] if len(until) > 1 else 0)
    places = [held[stage.before] for stage in plan.stages] + [end]
    return [float(max(0, after - before)) for before, after in itertools.pairwise(places)]


def _most_between_cuts(model: ModelSpec) -> float:
    """Return the most that the profiled batch holds between two cuts."""
    held = [0, *(cut.held_bytes for cut in model.timeline.cuts)]
    return float(max((after - before for before, after in itertools.pairwise(held)), default=0))


def _trained_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """Return the bytes of gradients and state on each rank."""
    found = [0.0] * len(plan.ranks)
    more, variables = [_more_copies(plan, rank) for rank in range(plan.num_workers)], variables_by_name(model)
    for name, ranks in holders_of_variables(plan.stages, model).items():
        variable = variables[name]
        state = model.optimizer.state_slots * STATE_ITEM_BYTES * variable.num_elements
        for rank in ranks:
            found[rank] += (1 + more[rank]) * variable.num_bytes + state
    return found


def _held_parameter_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """Return the bytes of the parameters that each rank trains."""
    found, variables = [0.0] * len(plan.ranks), variables_by_name(model)
    for name, ranks in holders_of_variables(plan.stages, model).items():
        for rank in ranks:
            found[rank] += variables[name].num_bytes
    return found


def _more_copies(plan: Plan, rank: int) -> int:
    """Return how many copies of its stage's parameters and gradients a rank has, besides one of each."""
    if plan.flushes:
        return 0
    if not plan.stashes:
        # Each of the two batches under way has its own copy and its own gradient.
        return 3
    missed = max(one.misses for one in passes_of(plan, rank))
    return missed + 1 if missed else 0


def _entering_bytes(plan: Plan, model: ModelSpec, num_examples: int) -> list[float]:
    """Return the bytes of a microbatch that cross the boundary before each stage; every rank has the batch itself."""
    crossing = [bytes_of_microbatch(cut, model, num_examples) for cut in boundary_cuts(plan.stages, model)]
    return [0.0, *(float(one[0]) if one else 0.0 for one in crossing)]


def _most_under_way(plan: Plan, passes: list[Local], of_stage: list[float], entering: list[float]) -> list[float]:
    """Return the most that each rank holds at a time of microbatches between their two passes."""
    now, most = [0.0] * len(plan.ranks), [0.0] * len(plan.ranks)
    for one in passes:
        settings, rank = one.settings, one.groups[0][0]
        assert isinstance(settings, StagePass), "only passes are given"
        kept = (entering if plan.recompute else of_stage)[settings.stage]
        if one.kind == "forward":
            now[rank] += kept
        # A backward pass that computes activations again has all of one microbatch for a while.
        again = of_stage[settings.stage] if plan.recompute and one.kind == "backward" else 0.0
        most[rank] = max(most[rank], now[rank] + again)
        if one.kind == plan.gradient_pass:
            now[rank] -= kept
    if not plan.flushes:
        for rank, _ in enumerate(most[: plan.num_workers]):
            most[rank] = _unflushed_under_way(plan, rank, of_stage, entering)
    return most


def _unflushed_under_way(plan: Plan, rank: int, of_stage: list[float], entering: list[float]) -> float:
    """Return what a rank holds of microbatches after a forward pass: those of earlier steps are under way too."""
    stage = passes_of(plan, rank)[0].place.stage
    once_more = entering[stage] + of_stage[stage] if plan.recompute else of_stage[stage]
    return _between_steps(plan, rank, of_stage, entering) + once_more


def _between_steps(plan: Plan, rank: int, of_stage: list[float], entering: list[float]) -> float:
    """Return what a rank holds of microbatches between two steps."""
    if plan.flushes or rank >= plan.num_workers:
        return 0.0
    passes = passes_of(plan, rank)
    # A backward pass that is late by several steps has left a microbatch of each of them.
    return sum(one.late for one in passes) * (entering if plan.recompute else of_stage)[passes[0].place.stage]
