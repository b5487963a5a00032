"""The strategies of the suite, and the bundles by which `autosync launch` runs a script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy

CLUSTER = "local-2"


def _bytescheduler(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    return build_preset("bytescheduler", model, cluster, slice_bytes="64 KiB")


def _merged(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Merge gradients, and send the messages on two lanes, which torch's own reducer cannot do."""
    strategy = build_preset("horovod_fusion", model, cluster, threshold_bytes="256 KiB", cycle_time="100 ms")
    messages = tuple(replace(one, lane=number % 2) for number, one in enumerate(strategy.messages))
    return replace(strategy, messages=messages)


STRATEGIES: Mapping[str, Callable[[ModelSpec, ClusterSpec], Strategy]] = {
    # The engine updates, and transfers overlap with the next forward pass.
    "bytescheduler": _bytescheduler,
    # The script's own optimizer updates.
    "merged": _merged,
}


def write_bundles(folder: Path, strategy: str, models: Sequence[Path]) -> list[Path]:
    """Write a bundle of this strategy for each model spec; return their paths."""
    cluster, paths = load_cluster(CLUSTER), []
    for path in models:
        model = load_model(str(path))
        paths.append(folder / f"{path.stem}-{strategy}.yaml")
        save_bundle(paths[-1], bundled(STRATEGIES[strategy](model, cluster), model, cluster))
    return paths
