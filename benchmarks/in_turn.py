"""Strategies that a benchmark measures in turn on a cluster, under names of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.trials.compare import compare
from autosync.trials.comparison import Comparison
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService


def compared(bundles: Mapping[str, Bundle | Path], model: ModelSpec, cluster: ClusterSpec, seed: int) -> Comparison:
    """Measure bundles, or their files, in turn."""
    contestants = [Contestant(name=name, bundle=bundle) for name, bundle in bundles.items()]
    with (
        tempfile.TemporaryDirectory(prefix="autosync-in-turn-") as ranks,
        TrialService(target=model.name, model=model, cluster=cluster, folder=Path(ranks), seed=seed) as service,
    ):
        return compare(service, contestants)
