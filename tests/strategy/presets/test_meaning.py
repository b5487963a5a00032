"""Exact presets, lowered and interpreted: every rank gets what one process would have made, in whatever order."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.reference import Workload, interpret, single_process
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.presets.pipelines import PIPELINES
from autosync.strategy.representation import Strategy
from tests.helpers.random_specs import random_model

# Of models of a few kilobytes: more than one piece, slice or group.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "all_reduce_chunks": {"chunk_size": 2},
    "byteps": {"partition_bytes": 1024},
    "bytescheduler": {"slice_bytes": 1024},
    "ddp_cap": {"cap_bytes": 500},
    "hierarchical": {"cap_bytes": 500},
    "horovod_fusion": {"threshold_bytes": 512},
    "p3": {"slice_parameters": 1024},
    "parallax": {"chunk_size": 2},
    "partitioned_all_reduce": {"chunk_size": 1},
    "poseidon": {"pair_bytes": 500},
    "random_axis_partitioned_all_reduce": {"chunk_size": 1},
    "sharded": {"cap_bytes": 500},
}
MAX_WORKERS = 8
NUM_STEPS = 3


def _clusters() -> list[ClusterSpec]:
    found = [load_cluster(name) for name in shipped_clusters()]
    return [cluster for cluster in found if cluster.num_workers <= MAX_WORKERS]


def _built(name: str, model: ModelSpec, cluster: ClusterSpec) -> Strategy | None:
    try:
        return build_preset(name, model, cluster, **SMALL.get(name, {}))
    except DoesNotApplyError:
        return None


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in PIPELINES])
def test_exact_presets_make_what_one_process_makes_on_every_shipped_cluster(name: str) -> None:
    tried = 0
    for cluster in _clusters():
        model = random_model(random.Random(f"{name} on {cluster.name}"))
        strategy = _built(name, model, cluster)
        if strategy is None or not strategy.is_exact:
            continue
        workload = Workload(model=model, seed=tried)
        plan = lower(strategy, model, cluster)
        outcome = interpret(plan, workload, num_steps=NUM_STEPS, rng=random.Random(tried))
        expected = single_process(workload, num_workers=cluster.num_workers, num_steps=NUM_STEPS, shares=plan.shares)
        for parameters in outcome.parameters:
            for variable, value in parameters.items():
                np.testing.assert_allclose(value, expected[variable], rtol=1e-9, atol=1e-12)
        tried += 1
    assert tried or not _is_exact(name)


def _is_exact(name: str) -> bool:
    """What a preset builds is of one class wherever it applies."""
    for seed in range(100):
        strategy = _built(name, random_model(random.Random(seed)), load_cluster("4-hosts-2-ranks"))
        if strategy is not None:
            return strategy.is_exact
    raise AssertionError(f"{name} applies to none of these models")
