"""Decides whether a study searches strategies with stages, and says why if it does not.

A profile may have cuts, and stages may still train something else: layers that mix examples, a loss that is no mean,
random numbers. The ranks refuse that in their first step. So before a search, the tuner makes the same check once on a
division into two, in its own process.
"""

from __future__ import annotations

from dataclasses import replace

from autosync.errors import AutosyncError
from autosync.search.study_folder import StudySettings
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.task import Task
from autosync.specs.task_file import load_task
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.representation import Strategy
from autosync.strategy.stage_rules import why_undivided
from autosync.strategy.stages import ModelStage


def needs_cuts(target: str, cluster: ClusterSpec) -> bool:
    """Return whether the profile of a task has to have cuts: whether a search on this cluster might divide it."""
    return target == "autosync" and cluster.num_workers > 1 and cluster.backend == "gloo"


def why_undivided_study(settings: StudySettings, model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return why a study searches no strategies with stages; empty if it does."""
    if settings.target != "autosync":
        return "stock DDP has no stages"
    if settings.is_script:
        return "a pipeline cannot live behind a script's loss.backward()"
    if model.input is not None and model.input.by_loader:
        return "trials with stages draw batches without the loader that reads the task's dataset"
    return why_undivided(model, cluster)


def checked_cuts(name: str, model: ModelSpec, cluster: ClusterSpec) -> ModelSpec:
    """Return the spec of a task's model with its cuts, or without them and with the reason why stages are refused."""
    if why_undivided(model, cluster):
        return model
    try:
        _check(load_task(name), model, cluster)
    except AutosyncError as error:
        return _uncut(model, str(error))
    except Exception as error:  # noqa: BLE001 - a task that trains without stages may fail in any way here
        return _uncut(model, f"its first step cannot be checked ({type(error).__name__}: {error})")
    return model


def _uncut(model: ModelSpec, reason: str) -> ModelSpec:
    return replace(model, timeline=replace(model.timeline, cuts=(), uncut=reason))


def _check(task: Task, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Raise if the ranks would refuse to train a task with stages."""
    # These imports load torch.
    import torch

    from autosync.plan.bundling import bundle_of_plan
    from autosync.plan.lowering import lower
    from autosync.runtime.stages.batch_form import microbatches_of
    from autosync.runtime.stages.recorded_model import num_examples_of, record_stages
    from autosync.runtime.trainer import refuse_stages
    from autosync.specs.examples import join_batches
    from autosync.specs.task_run import build_model, build_optimizer, draw_batch

    strategy = _in_two(model, cluster)
    plan = lower(strategy, model, cluster)
    bundle = bundle_of_plan(plan, strategy, model, cluster)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        network = build_model(task)
        optimizer = build_optimizer(task, network.parameters())
        refuse_stages(task, network, optimizer, bundle, plan, num_ranks=plan.num_workers)
        generator = torch.Generator().manual_seed(0)
        batch = join_batches([draw_batch(task, generator) for _ in range(cluster.num_workers)])
        microbatches = microbatches_of(batch, plan.microbatches, num_examples_of(plan))
        record_stages(task, network, bundle, plan, microbatches)


def _in_two(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return a strategy with two stages, and microbatches about as small as a search would have them."""
    num_examples = model.batch_size * cluster.num_workers
    counts = [count for count in legal_counts(model, cluster) if count >= cluster.num_workers]
    # Two examples or more, because a loss over several is a mean in another way.
    several = [count for count in counts if num_examples // count > 1]
    count = (several or counts or [cluster.num_workers])[-1]
    cuts = model.timeline.cuts
    stages = [
        ModelStage(before=0, ranks=(0,)),
        ModelStage(before=cuts[len(cuts) // 2].before, ranks=tuple(range(1, cluster.num_workers))),
    ]
    return divided_strategy(model, stages, count)
