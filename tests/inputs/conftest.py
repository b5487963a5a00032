"""What tests of input pipelines share."""

import random

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset
from tests.helpers.random_specs import random_model


@pytest.fixture
def small_bundle() -> Bundle:
    """A bundle for two ranks."""
    nodes = tuple(Node(name=f"n{i}", host="h", devices=1, bandwidth_out=1e9, bandwidth_in=1e9) for i in range(2))
    cluster = ClusterSpec(name="two", nodes=nodes)
    model = random_model(random.Random(1), dtypes=["float32"])
    return bundled(build_preset("ddp", model, cluster), model, cluster)
