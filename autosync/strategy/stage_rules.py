"""The rules on stages: which are legal for a model on a cluster, and what is refused because it is not built."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autosync.errors import Path, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import (
    UNFLUSHED,
    ModelStage,
    are_in_turn,
    boundary_cuts,
    bytes_of_microbatch,
    holders_of_variables,
    most_under_way,
    ring_of,
    stages_of_variables,
)
from autosync.strategy.synchronisers.base import Route

STAGE_ROUTES: tuple[Route, ...] = ("native", "ring", "tree", "halving_doubling")
"""The topologies by which the ranks of a stage may all-reduce, the usual one first."""

MAX_PASSES = 65_536
"""The most forward passes of all stages in a step. A plan has an operation for each."""


def stage_problems(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    """Yield every rule that the stages of a strategy break for a model on a cluster."""
    if not strategy.stages:
        if strategy.microbatches != 1:
            rule = "microbatches pass through stages, and there are none"
            yield Problem(what=f"{strategy.microbatches} microbatches", rule=rule, path=("microbatches",))
        if strategy.recompute:
            rule = "the backward passes of stages compute activations again, and there are none"
            yield Problem(what="recompute: true", rule=rule, path=("recompute",))
        return
    if strategy.slack < 0:
        yield Problem(what=f"a slack of {strategy.slack}", rule="0 or more microbatches", path=("slack",))
    if strategy.send_units < 0:
        yield Problem(what=f"{strategy.send_units} units", rule="a send takes 0 or more", path=("send_units",))
    if len({bool(stage.units) for stage in strategy.stages}) > 1:
        rule = "all of them have units, or none"
        yield Problem(what="stages with and without units", rule=rule, path=("stages",))
    yield from _interleaved(strategy)
    yield from _unflushed(strategy)
    if strategy.schedule == "zero_bubble" and strategy.recompute:
        rule = "the gradients of weights come after the backward pass, from activations that it would drop"
        yield Problem(what="recompute: true with zero_bubble", rule=rule, path=("recompute",))
    broken = [*_places(strategy.stages, model), *_ranks(strategy.stages, cluster)]
    yield from broken
    yield from _unbuilt(strategy, model, cluster)
    if not broken:
        yield from _microbatches(strategy, model, cluster)
        yield from _stashed(strategy, model)
        yield from _messages(strategy, model)


def _places(stages: Sequence[ModelStage], model: ModelSpec) -> Iterator[Problem]:
    path: Path = ("stages",)
    cuts = [cut.before for cut in model.timeline.cuts]
    if not cuts:
        yield from _uncut(model)
        return
    if stages[0].before:
        rule = "the first stage begins before segment 0"
        yield Problem(what=f"the first stage begins before segment {stages[0].before}", rule=rule, path=(*path, 0))
    places = [stage.before for stage in stages]
    if places != sorted(set(places)):
        yield Problem(what=f"stages before the segments {places}", rule="in the order of the pass", path=path)
    for number, place in enumerate(places):
        if number and place not in cuts:
            known = ", ".join(map(str, cuts[:12])) + (" …" if len(cuts) > 12 else "")
            rule = f"the profile's cuts are before the segments {known}"
            yield Problem(what=f"no cut before segment {place}", rule=rule, path=(*path, number, "before"))


def _ranks(stages: Sequence[ModelStage], cluster: ClusterSpec) -> Iterator[Problem]:
    num_workers = cluster.num_workers
    used = {rank for stage in stages for rank in stage.ranks}
    for number, stage in enumerate(stages):
        for rank in stage.ranks:
            if rank >= num_workers:
                rule = f"the workers are ranks 0 to {num_workers - 1}"
                yield Problem(what=f"rank {rank}", rule=rule, path=("stages", number, "ranks"))
    idle = [rank for rank in range(num_workers) if rank not in used]
    if idle:
        what = f"rank {', '.join(map(str, idle[:8]))} in no stage"
        yield Problem(what=what, rule="each worker computes a stage", path=("stages",))


def _interleaved(strategy: Strategy) -> Iterator[Problem]:
    if strategy.schedule != "interleaved":
        return
    path: Path = ("schedule",)
    if not are_in_turn(strategy.stages):
        rule = "the ranks take stages in turn, one rank a stage and several stages a rank"
        ranks = ", ".join("+".join(map(str, stage.ranks)) for stage in strategy.stages)
        yield Problem(what=f"interleaved stages on ranks {ranks}", rule=rule, path=path)
        return
    num_ranks = len(ring_of(strategy.stages))
    if strategy.microbatches % num_ranks:
        rule = f"they come in groups of {num_ranks}, one for each rank"
        yield Problem(what=f"{strategy.microbatches} interleaved microbatches", rule=rule, path=("microbatches",))


def _unflushed(strategy: Strategy) -> Iterator[Problem]:
    if strategy.schedule not in UNFLUSHED:
        return
    stages, count = strategy.stages, strategy.microbatches
    ranks = [rank for stage in stages for rank in stage.ranks]
    several = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if several:
        what = f"rank {several[0]} in several stages without a flush"
        yield Problem(what=what, rule="each rank computes one stage", path=("schedule",))
    for number, stage in enumerate(stages):
        width, most = len(stage.ranks), most_under_way(stages, number, strategy.slack)
        if count % width:
            rule = f"each of a stage's {width} ranks computes equally many"
            yield Problem(what=f"{count} microbatches without a flush", rule=rule, path=("microbatches",))
        elif strategy.schedule == "2bw" and count // width < most:
            rule = f"a rank of stage {number} has {most} of its own under way, which are of one step and the next"
            yield Problem(what=f"{count} microbatches without a flush", rule=rule, path=("microbatches",))
    # What a stage passes forward before the backward pass of a microbatch (see `rank_passes`).
    ahead = [len(stage.ranks) * (most_under_way(stages, n, strategy.slack) - 1) for n, stage in enumerate(stages)]
    for number, (before, after) in enumerate(itertools.pairwise(ahead)):
        if after > before:
            what = f"a slack of {strategy.slack} with {len(stages[number + 1].ranks)} ranks in stage {number + 1}"
            rule = (
                f"before a backward pass, stage {number + 1} would need {after} later microbatches, and stage {number} "
                f"passes only {before} on before it needs this pass"
            )
            yield Problem(what=what, rule=rule, path=("slack",), hint="a slack of 0 goes with all stages")


def _stashed(strategy: Strategy, model: ModelSpec) -> Iterator[Problem]:
    """Yield why stages cannot be updated one by one."""
    if strategy.schedule != "stashing":
        return
    path: Path = ("schedule",)
    if len(strategy.stages) == 1:
        yield Problem(what="stashing with one stage", rule="no microbatch of it would miss an update", path=path)
    elsewhere = "take 2bw, which updates all stages together"
    if model.clip_norm is not None:
        rule = "a stage is updated before the gradients of the stages before it are there"
        yield Problem(what="stashing for a task that clips", rule=rule, path=path, hint=elsewhere)
    for name, uses in stages_of_variables(strategy.stages, model).items():
        if len(uses) > 1:
            what = f"stashing with {name} in the stages {' and '.join(map(str, uses))}"
            yield Problem(what=what, rule="stages are updated at different times", path=path, hint=elsewhere)


def _unbuilt(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    """Yield what stages are refused with, because the engine does not do it yet."""
    reasons = (
        (strategy.overlap == "forward", "overlap", "forward", "gradients are summed until backward returns"),
        (bool(strategy.shares), "shares", "uneven shares", "microbatches have equally many examples"),
    )
    for is_broken, field, what, rule in reasons:
        if is_broken:
            yield Problem(what=f"{what} with stages", rule=rule, path=(field,))
    yield from undivided_problems(model, cluster)


def undivided_problems(model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    """Yield the rules by which no strategy with stages is legal for a task on a cluster, wherever its model is cut."""
    of_model = (
        (model.accumulation_steps > 1, "accumulates gradients", "microbatches take the place of accumulation"),
        (model.loss_scaling, "scales its loss", "no rank sees the overflows of all stages"),
        (model.weighs, "weighs its batches", "microbatches weigh what they have of examples"),
        (
            model.clip_norm is not None and any(variable.sparse for variable in model.variables),
            "clips sparse gradients",
            "clipping is for dense gradients",
        ),
        (
            model.optimizer.per_variable is False,
            f"updates all variables together ({model.optimizer.name})",
            "no rank has the gradients of all stages",
        ),
    )
    for is_broken, what, rule in of_model:
        if is_broken:
            yield Problem(what=f"stages for a task that {what}", rule=rule, path=("stages",))
    if model.timeline.mixes:
        yield Problem(what=f"stages for {model.name}", rule=model.timeline.mixes, path=("stages",))
    if cluster.backend != "gloo":
        rule = "sends between stages need tags: gloo"
        yield Problem(what=f"stages on {cluster.backend}", rule=rule, path=("stages",))


def why_undivided(model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return why no strategy with stages is legal for a model on a cluster; empty if one may be."""
    if cluster.num_workers < 2:
        return f"{cluster.name} has one worker"
    problem = next(itertools.chain(undivided_problems(model, cluster), _uncut(model)), None)
    if problem is None:
        return ""
    hint = f"; {problem.hint}" if problem.hint else ""
    return f"{problem.what} ({problem.rule}{hint})"


def _uncut(model: ModelSpec) -> Iterator[Problem]:
    """Yield why a model has no cuts."""
    path: Path = ("stages",)
    if model.timeline.cuts:
        return
    if model.timeline.uncut:
        yield Problem(what=f"{model.name} cannot be cut", rule=model.timeline.uncut, path=path)
    else:
        what, hint = f"the profile of {model.name} has no cuts", "autosync profile MODEL.py --cuts"
        yield Problem(what=what, rule="stages begin at the profile's cuts", hint=hint, path=path)


def _microbatches(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    path: Path = ("microbatches",)
    count, num_examples = strategy.microbatches, model.batch_size * cluster.num_workers
    if count < 1 or num_examples % count:
        rule = f"they divide the global batch of {num_examples} examples evenly"
        hint = "declare the examples of a rank's batch in the task: batch_size" if model.batch_size == 1 else ""
        yield Problem(what=f"{count} microbatches", rule=rule, path=path, hint=hint)
        return
    if count * len(strategy.stages) > MAX_PASSES:
        what = f"{count} microbatches in {len(strategy.stages)} stages"
        rule = f"at most {MAX_PASSES:,} forward passes in a step: a plan has an operation for each"
        yield Problem(what=what, rule=rule, path=path)
        return
    most = max(len(stage.ranks) for stage in strategy.stages)
    if count < most:
        yield Problem(what=f"{count} microbatches", rule=f"each of a stage's {most} ranks computes one", path=path)
    for cut in boundary_cuts(strategy.stages, model):
        if bytes_of_microbatch(cut, model, num_examples // count) is None:
            what = f"{num_examples // count} examples send no whole number of bytes over the cut before {cut.before}"
            rule = f"profiled: {cut.num_bytes} B for {model.batch_size} examples"
            yield Problem(what=what, rule=rule, path=path)


def _messages(strategy: Strategy, model: ModelSpec) -> Iterator[Problem]:
    holders = holders_of_variables(strategy.stages, model)
    for position, message in enumerate(strategy.messages):
        path: Path = ("messages", position)
        synchroniser = message.synchroniser
        plain = synchroniser.kind == "all_reduce" and synchroniser.route in STAGE_ROUTES
        if not plain or getattr(synchroniser, "hierarchical", False):
            rule = f"the ranks of a stage all-reduce: {', '.join(STAGE_ROUTES)}"
            yield Problem(what=f"{synchroniser.title} with stages", rule=rule, path=(*path, "synchroniser"))
        if message.codec is not None:
            rule = "gradients of stages travel as they are"
            yield Problem(what=f"{message.codec.kind} with stages", rule=rule, path=(*path, "codec"))
        names = [PartName.parse(name).variable for name in message.parts]
        groups = {holders[name]: name for name in reversed(names) if name in holders}
        if len(groups) > 1:
            (one, first), (other, second) = list(groups.items())[:2]
            what = f"{first} is on ranks {', '.join(map(str, one))} and {second} on {', '.join(map(str, other))}"
            rule = "the same ranks hold all parts of a message"
            yield Problem(what=what, rule=rule, path=(*path, "parts"))
