"""What instances put on links, together, is what the plan's transfers do."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.tables import shape_of
from autosync.plan.traffic import transfer_traffic
from autosync.plan.types import Transfer
from autosync.simulators.shared.link_use import instances_of, links_of
from autosync.simulators.shared.rank_classes import apart, classes_of
from autosync.strategy.space import Space
from tests.helpers.random_specs import random_cluster, random_model


@given(seed=st.integers(0, 2**32), alone=st.booleans())
def test_links_carry_what_the_plan_says(seed: int, alone: bool) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    plan = lower(Space(model=model, cluster=cluster).sample(rng), model, cluster)
    shapes = frozenset(shape_of(operation) for operation in plan.operations)
    classes = apart(cluster) if alone else classes_of(cluster, shapes)
    links = links_of(cluster, classes)
    for operation in plan.operations:
        if not isinstance(operation, Transfer):
            continue
        traffic = transfer_traffic(operation, cluster)
        wanted = {
            "out": traffic.node_out,
            "in": traffic.node_in,
            "within": traffic.node_within,
            "rack_out": traffic.rack_out,
            "rack_in": traffic.rack_in,
        }
        found, stays = np.zeros(len(links)), 0.0
        for instance in instances_of(cluster, classes, shape_of(operation)):
            stays += instance.stays * operation.num_bytes
            for use in instance.uses:
                found[use.link] += use.share * operation.num_bytes
        # Chunks are uneven by an element each.
        slack = operation.item_bytes * 2 * len(cluster.ranks) ** 2
        assert stays == pytest.approx(traffic.node_within.sum(), rel=1e-9, abs=slack * len(cluster.nodes))
        for number, link in enumerate(links):
            assert found[number] == pytest.approx(wanted[link.kind][link.position], rel=1e-9, abs=slack)
