"""The presets of pipelines: each rank computes a stage of layers, and microbatches pass through all stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autosync.errors import DoesNotApplyError, InputError, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cuts import even_stages
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.in_turn import USUAL_STAGES, interleave
from autosync.strategy.dividing.microbatch_counts import count_for, legal_counts
from autosync.strategy.dividing.model_problem import UnderWay
from autosync.strategy.dividing.proposals import proposed_divisions
from autosync.strategy.dividing.timed import timed
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Strategy
from autosync.strategy.stage_rules import why_undivided
from autosync.strategy.stages import ModelStage

PIPELINES = ("gpipe", "interleaved_1f1b", "pipedream", "pipedream_2bw", "pipedream_flush")
"""The presets of this module: they need profiles with cuts."""
_MOST_TRIED = 100


def gpipe(
    model: ModelSpec, cluster: ClusterSpec, *, microbatches: int | None = None, recompute: bool = False
) -> Strategy:
    """A stage of equal compute for each rank; all microbatches go forward before the first goes backward, as in GPipe.

    Of all stages whose slowest takes least, those are taken over whose boundaries the fewest bytes go. By default there
    are four microbatches or more for each stage, as far as the batch allows. The original computes activations again in
    the backward pass; here that is an option. Needs a profile with cuts.

    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019,
    section 2.2 (partitions of about equal cost) and 2.3 (the bubble is negligible from 4 microbatches a partition on).
    """
    _need_stages(model, cluster)
    found = even_stages(model.timeline, cluster.num_workers)
    if found is None:
        what = f"{model.name} has {len(model.timeline.cuts) + 1} layers that can be stages"
        raise DoesNotApplyError(what, rule=f"one for each of {cluster.num_workers} ranks, or more")
    if microbatches is None:
        microbatches = count_for(legal_counts(model, cluster), cluster.num_workers)
    places = [0, *[cut.before for cut in found.cuts]]
    stages = [ModelStage(before=before, ranks=(rank,)) for rank, before in enumerate(places)]
    count_option("microbatches", microbatches)
    strategy = divided_strategy(model, stages, microbatches, "gpipe", recompute=recompute)
    legality.check(strategy, model, cluster)
    return timed(strategy, model, cluster)


def interleaved_1f1b(
    model: ModelSpec, cluster: ClusterSpec, *, stages_per_rank: int = USUAL_STAGES, microbatches: int | None = None
) -> Strategy:
    """Several short stages of equal compute on each rank, dealt in turn; forward and backward passes in turn.

    The wait for the first microbatch is so many times shorter, and activations cross so many times as many boundaries.
    Microbatches come in groups of one for each rank; by default there are four groups or more, as far as the batch
    allows. Needs a profile with cuts.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
    2021, section 2.2 (schedule with interleaved stages).
    """
    _need_stages(model, cluster)
    if microbatches is not None:
        count_option("microbatches", microbatches)
    per_rank = count_option("stages_per_rank", stages_per_rank)
    return interleave(model, cluster, stages_per_rank=per_rank, microbatches=microbatches)


def pipedream(model: ModelSpec, cluster: ClusterSpec, *, microbatches: int | None = None) -> Strategy:
    """PipeDream's stages without a flush: each is updated by itself, and stashes the parameters that passes need.

    The global batch is PipeDream's minibatch. By default it passes through the stages as a whole, or in as few
    microbatches as its widest stages have ranks. Then the first of n stages with one rank each computes with parameters
    that miss n - 1 updates, and the last one with the newest. With more microbatches fewer updates are missed. Of the
    divisions that the partitioner proposes, the first is taken in which each rank has one stage and no weight is used
    in two; if there is none, the longest pipeline of even stages with equally many ranks each. Needs a profile with
    cuts.

    Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1
    (the partitioner), 3.2 (passes in turn) and 3.3 (weight stashing). There, the ranks of a stage have a minibatch
    each, and sum their gradients as often.
    """
    _need_stages(model, cluster)
    if microbatches is not None:
        count_option("microbatches", microbatches)
    counts = legal_counts(model, cluster) if microbatches is None else [microbatches]
    reasons: list[Problem] = []
    for one in _proposed(model, cluster):
        widths = math.lcm(*(len(stage.ranks) for stage in one.stages))
        count = next((count for count in sorted(counts) if count % widths == 0), counts[-1])
        unflushed = replace(one, schedule="stashing", slack=0, microbatches=count)
        problems = legality.problems(unflushed, model, cluster)
        if not problems:
            return unflushed
        reasons += problems
    of_count = [one for one in reasons if one.path == ("microbatches",)]
    if microbatches is not None and len(of_count) == len(reasons):
        raise InputError(of_count[:1])
    # What other microbatches would not mend.
    reason = next((one for one in reasons if one not in of_count), None)
    what = f"no division of {model.name} over {cluster.name} stashes parameters"
    told = f"; {reason.what} ({reason.rule})" if reason else ""
    raise DoesNotApplyError(what + told, rule="each rank computes one stage, and each weight is used in one")


def pipedream_flush(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """PipeDream's stages, some with several ranks; forward and backward passes in turn, and a flush before the update.

    The partitioner chooses stages, ranks and microbatches for the shortest step, by the profile's times, the links'
    rates and the nodes' memory. A rank has no more microbatches under way than the stages from its own on can work on.
    Needs a profile with cuts.

    Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1
    (the partitioner), and "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1 (PipeDream-Flush).
    There, hosts are alike, and the planner's stages all have equally many ranks.
    """
    _need_stages(model, cluster)
    found = proposed_divisions(model, cluster, most=1, ways=(UnderWay(0),))
    if not found:
        what = f"{model.name} cannot be divided over {cluster.name}"
        raise DoesNotApplyError(what, rule="stages fit into the nodes' memory, and microbatches divide the batch")
    return found[0]


def pipedream_2bw(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """The stages of `pipedream_flush`, and no flush: passes of the next step begin before the last ones of this step.

    So no rank waits for the pipeline to fill, and the gradients of a step are those of the parameters before the last
    update. A rank keeps two copies of its stage's parameters. Of the divisions that the partitioner proposes, the first
    is taken in which each rank has one stage and enough microbatches; if there is none, the longest pipeline of even
    stages with equally many ranks each. Needs a profile with cuts.

    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1 (2BW) and 3.2
    (stages with equally many ranks). There, activations are computed again, and the planner tries all such pipelines.
    """
    _need_stages(model, cluster)
    for one in _proposed(model, cluster):
        unflushed = replace(one, schedule="2bw", slack=0)
        if not legality.problems(unflushed, model, cluster):
            return timed(unflushed, model, cluster)
    what = f"no division of {model.name} over {cluster.name} goes without a flush"
    raise DoesNotApplyError(what, rule="each rank computes one stage, and enough microbatches for all behind it")


def _proposed(model: ModelSpec, cluster: ClusterSpec) -> Iterator[Strategy]:
    """Yield the divisions that the partitioner proposes, and then pipelines of even stages."""
    yield from proposed_divisions(model, cluster, most=_MOST_TRIED, ways=(UnderWay(0),))
    yield from _of_equal_widths(model, cluster)


def _of_equal_widths(model: ModelSpec, cluster: ClusterSpec) -> Iterator[Strategy]:
    """Yield pipelines of even stages with equally many ranks each, the longest first."""
    num_workers = cluster.num_workers
    for num_stages in range(num_workers, 1, -1):
        width = num_workers // num_stages
        counts = [count for count in legal_counts(model, cluster) if count % width == 0 and count >= width * num_stages]
        found = even_stages(model.timeline, num_stages) if num_workers % num_stages == 0 and counts else None
        if found is not None:
            places = [0, *[cut.before for cut in found.cuts]]
            stages = [
                ModelStage(before=before, ranks=tuple(range(number * width, (number + 1) * width)))
                for number, before in enumerate(places)
            ]
            yield divided_strategy(model, stages, count_for(counts, num_workers))


def _need_stages(model: ModelSpec, cluster: ClusterSpec) -> None:
    """Raise DoesNotApplyError if no strategy with stages is legal."""
    reason = why_undivided(model, cluster)
    if reason:
        raise DoesNotApplyError(reason, rule="each rank computes a stage of layers")
