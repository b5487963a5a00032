"""What instances put on links, together, is what the plan's transfers do."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.tables import Shape, shape_of
from autosync.plan.traffic import transfer_traffic
from autosync.plan.types import Transfer
from autosync.simulators.shared.link_use import instances_of, links_of
from autosync.simulators.shared.rank_classes import apart, classes_of
from autosync.specs.cluster import Rack
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.space import Space
from tests.helpers.example_plans import cluster_of
from tests.helpers.random_specs import random_cluster, random_model


def _with_even_chunks(operation: Transfer) -> Transfer:
    """The same transfer, if over trees then of so many elements that their shares are just as their weights say."""
    if not isinstance(operation.algorithm, TreeShape):
        return operation
    return operation._replace(num_elements=operation.num_elements * operation.algorithm.num_units)


@given(seed=st.integers(0, 2**32), alone=st.booleans())
@example(seed=577, alone=False)
def test_links_carry_what_the_plan_says(seed: int, alone: bool) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    plan = lower(Space(model=model, cluster=cluster).sample(rng), model, cluster)
    shapes = frozenset(shape_of(operation) for operation in plan.operations)
    classes = apart(cluster) if alone else classes_of(cluster, shapes)
    links = links_of(cluster, classes)
    for operation in [_with_even_chunks(one) for one in plan.operations if isinstance(one, Transfer)]:
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


@pytest.mark.parametrize(("racks", "passing"), [((None, None), 4.5), (("r0", "r0"), 4.5), (("r0", "r1"), 1.5)])
def test_what_ranks_share_inside_a_node_carries_what_leaves_no_rack(
    racks: tuple[str | None, str | None], passing: float
) -> None:
    """Of a ring of four on two nodes, each link carries three halves of the buffer: out, in, and within the node."""
    pairs = zip(cluster_of(2, 2).nodes, racks, strict=True)
    nodes = tuple(replace(node, rack=rack, intra_total=1e9) for node, rack in pairs)
    names = sorted({rack for rack in racks if rack is not None})
    uplinks = tuple(Rack(name=name, uplink_out=1e9, uplink_in=1e9) for name in names)
    cluster = replace(cluster_of(2, 2), nodes=nodes, racks=uplinks)
    ring = Shape("all_reduce", "ring", ((0, 1, 2, 3),))
    for classes in (apart(cluster), classes_of(cluster, [ring])):
        (instance,) = instances_of(cluster, classes, ring)
        inside = [number for number, link in enumerate(links_of(cluster, classes)) if link.kind == "inside"]
        assert len(inside) == len(classes.num_nodes)
        found = {use.link: use.share for use in instance.uses}
        assert [found[number] for number in inside] == pytest.approx([passing] * len(inside))
