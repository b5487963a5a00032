"""The operands of commands: a model, a cluster, and strategies given as files, bundles or names of presets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autosync.cli.output import note
from autosync.errors import InputError

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec
    from autosync.strategy.representation import Strategy

F = TypeVar("F", bound=Callable[..., Any])

MODEL_HELP = "A model spec, the name of a shipped one, or a task (FILE.py)."
CLUSTER_HELP = "A cluster file, or the name of a shipped one."

DEVICES = Path("/dev")
"""Where a machine has a file for each of its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOperand:
    """A strategy with its model and cluster: those of the options, or those of its bundle, or none."""

    name: str
    strategy: Strategy
    model: ModelSpec | None
    cluster: ClusterSpec | None

    def in_context(self, rule: str) -> tuple[Strategy, ModelSpec, ClusterSpec]:
        """Return the strategy, its model and its cluster. `rule` is the reason why the command needs all three."""
        if self.model is None or self.cluster is None:
            raise _no_context(self.name, rule)
        return self.strategy, self.model, self.cluster


def context_options(command: F) -> F:
    """Add the options `--model` and `--cluster`, which say what a strategy is for."""
    model = click.option("--model", "model_target", metavar="MODEL", help=MODEL_HELP)
    cluster = click.option("--cluster", "cluster_target", metavar="CLUSTER", help=CLUSTER_HELP)
    return model(cluster(command))


def model_and_cluster(
    model_target: str, cluster_target: str, *, is_run: bool = False, cuts: bool = False
) -> tuple[ModelSpec, ClusterSpec]:
    """Return the model and the cluster of two operands. A task is profiled in this call, with `cuts` if these are used.

    With `is_run`, ranks will be started on the cluster.
    """
    from autosync.specs.cluster_file import load_cluster
    from autosync.specs.model_file import check_model_file, model_of
    from autosync.specs.task_file import is_task

    # The cluster comes first, so that a mistake in it is reported before a task is profiled.
    cluster = load_cluster(cluster_target, is_run=is_run)
    check_model_file(model_target)
    if is_task(model_target):
        note(f"profiling {model_target}")
    return model_of(model_target, device=cluster.device_type, cuts=cuts), cluster


def tell_of_idle_gpus(cluster: ClusterSpec) -> None:
    """Note if ranks will train on the CPU although this machine has GPUs. Emulated hosts are meant to have none."""
    if cluster.backend == "gloo" and not cluster.is_emulated and any(DEVICES.glob("nvidia[0-9]*")):
        note("ranks will train on the CPU (backend: gloo); this machine has GPUs: backend: nccl trains on them")


def context_of(model_target: str | None, cluster_target: str | None) -> tuple[ModelSpec, ClusterSpec] | None:
    """Return the model and the cluster of the two options; None if neither is given."""
    if model_target is None and cluster_target is None:
        return None
    if model_target is None or cluster_target is None:
        missing = "--cluster" if cluster_target is None else "--model"
        raise InputError(f"{missing} is missing", rule="--model and --cluster go together")
    return model_and_cluster(model_target, cluster_target)


def strategy_operand(name: str, model_target: str | None, cluster_target: str | None) -> StrategyOperand:
    """Return the strategy of a file, a bundle or a preset. A preset needs both a model and a cluster."""
    from autosync import documents
    from autosync.strategy.bundle import load_bundle
    from autosync.strategy.files import is_bundle, load_strategy
    from autosync.strategy.names import check_strategy_names

    check_strategy_names([name], what="strategy file or preset")
    context = context_of(model_target, cluster_target)
    if context is not None:
        model, cluster = context
        return StrategyOperand(name=name, strategy=strategy_for(name, model, cluster), model=model, cluster=cluster)
    if _is_preset(name):
        raise _no_context(name, "a preset is built for a model on a cluster")
    if is_bundle(documents.read_document(name)):
        bundle = load_bundle(name)
        return StrategyOperand(name=name, strategy=bundle.strategy, model=bundle.model, cluster=bundle.cluster)
    return StrategyOperand(name=name, strategy=load_strategy(name)[0], model=None, cluster=None)


def strategy_for(name: str, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return the strategy of a file, a bundle or a preset for a model on a cluster."""
    from autosync.strategy.files import load_strategy_for
    from autosync.strategy.presets import build_preset

    return build_preset(name, model, cluster) if _is_preset(name) else load_strategy_for(name, model, cluster)


def _is_preset(name: str) -> bool:
    from autosync.strategy.presets import preset_names

    return name in preset_names() and not Path(name).is_file()


def _no_context(name: str, rule: str) -> InputError:
    return InputError(f"{name} names no model and no cluster", rule=rule, hint="give --model and --cluster")
