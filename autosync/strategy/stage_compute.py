"""The compute of strategies, with and without stages: the passes of microbatches, and the busiest rank's step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import compute_seconds, seconds_at, share_factor
from autosync.specs.cuts import segment_seconds
from autosync.specs.model import ModelSpec, Variable, variables_by_name
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import ModelStage, holders_of_variables


def pass_seconds(
    stages: Sequence[ModelStage], model: ModelSpec, num_examples: int, *, recompute: bool, splits_backward: bool
) -> Mapping[tuple[str, int], float]:
    """Return the seconds of a microbatch's passes through each stage, on a device of speed 1.

    The keys are `forward`, `backward` or `weights`, and the stage's number. With `recompute`, a backward pass begins
    with another forward pass. If it is not split, `weights` takes no time.
    """
    factor = share_factor(model, num_examples)
    both = segment_seconds(model.timeline)
    forward = [segment.seconds for segment in model.timeline.forward]
    apart = weight_seconds(model, num_examples) if splits_backward else [0.0] * len(forward)
    begins = [stage.before for stage in stages]
    found: dict[tuple[str, int], float] = {}
    for stage, (begin, end) in enumerate(zip(begins, [*begins[1:], len(forward)], strict=True)):
        found["forward", stage] = factor * math.fsum(forward[begin:end])
        again = 0.0 if recompute else math.fsum(forward[begin:end])
        found["weights", stage] = math.fsum(apart[begin:end])
        found["backward", stage] = factor * (math.fsum(both[begin:end]) - again) - found["weights", stage]
    return found


def weight_seconds(model: ModelSpec, num_examples: int) -> list[float]:
    """Return the time of each forward segment that its gradients of weights take, where they can come later.

    The profile says it for some batch sizes. If it does not, the times are assumed: see `_assumed_shares`.
    """
    factor, both = share_factor(model, num_examples), segment_seconds(model.timeline)
    forward = [segment.seconds for segment in model.timeline.forward]
    backward = [factor * (one - other) for one, other in zip(both, forward, strict=True)]
    splits = model.timeline.splits
    if splits is None:
        return [share * seconds for share, seconds in zip(_assumed_shares(model), backward, strict=True)]
    found = [0.0] * len(backward)
    for one in splits:
        found[one.segment] = min(seconds_at(model, one.seconds, num_examples), backward[one.segment])
    return found


def _assumed_shares(model: ModelSpec) -> list[float]:
    """Return the share of each segment's backward pass that gradients of weights are taken for.

    Linear layers can leave them for later. Their backward pass has two products of equally many multiplications, one
    for the gradients of weights. So that is half of the module's backward pass, or less if it owns other variables too.
    A matrix that another module owns as well, such as an embedding, is taken for the weight of a linear layer there.
    """
    variables, found = variables_by_name(model), []
    for segment in model.timeline.forward:
        own = [variables[name] for name in segment.variables]
        linear = sum(one.num_bytes for one in own if one.kind == "linear" or _is_tied_in(one, segment.module))
        found.append(0.5 * linear / sum(one.num_bytes for one in own) if linear else 0.0)
    return found


def _is_tied_in(variable: Variable, module: str) -> bool:
    return len(variable.shape) == 2 and any(name.rpartition(".")[0] == module for name in variable.aliases)


def update_seconds(stages: Sequence[ModelStage], model: ModelSpec, num_workers: int) -> list[float]:
    """Return the seconds of each rank's update: its share of the whole model's, by the bytes that it holds."""
    whole = math.fsum(segment.seconds for segment in model.timeline.optimizer)
    held, variables = [0.0] * num_workers, variables_by_name(model)
    for name, ranks in holders_of_variables(stages, model).items():
        for rank in ranks:
            held[rank] += variables[name].num_bytes
    return [whole * num_bytes / model.num_bytes for num_bytes in held]


def strategy_compute_seconds(strategy: Strategy | None, model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the compute time of a step on its busiest rank; None stands for stock DDP."""
    if strategy is None:
        return compute_seconds(model, cluster)
    if not strategy.stages:
        return compute_seconds(model, cluster, strategy.shares, strategy.batching)
    num_examples = model.batch_size * cluster.num_workers // strategy.microbatches
    passes = pass_seconds(strategy.stages, model, num_examples, recompute=strategy.recompute, splits_backward=False)
    seconds = update_seconds(strategy.stages, model, cluster.num_workers)
    for number, stage in enumerate(strategy.stages):
        for microbatch in range(strategy.microbatches):
            seconds[stage.rank_of(microbatch)] += passes["forward", number] + passes["backward", number]
    speeds = [cluster.nodes[rank.node].compute for rank in cluster.ranks]
    return max(one / speed for one, speed in zip(seconds, speeds, strict=False))
