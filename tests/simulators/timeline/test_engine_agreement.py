"""The timeline simulates the engine's messages with the same pieces, and stock DDP if its reducer runs the plan."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.plan.expansion import expand
from autosync.plan.lowering import lower
from autosync.plan.tables import Shape, tables_of
from autosync.plan.types import Transfer
from autosync.runtime.stock.buckets import why_not_stock
from autosync.runtime.wire import flow_control as flow
from autosync.runtime.wire import transfer_pieces as pieces
from autosync.runtime.wire.flow_control import Flow
from autosync.simulators.shared.size_exchange import CONTENT_BYTES
from autosync.simulators.timeline import transfer_sizes as made
from autosync.simulators.timeline.move_tables import move_tables_of
from autosync.simulators.timeline.plan_messages import messages_of
from autosync.simulators.timeline.scene import Scene
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.simulators.timeline.stock_ddp import is_stock
from autosync.simulators.timeline.transfer_sizes import TransferSizes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.space import Space
from tests.helpers.example_costs import GLOO
from tests.helpers.random_specs import random_cluster, random_model
from tests.helpers.random_trees import shapes
from tests.plan.reference.tree_cases import draw_over_trees


def drawn(seed: int) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    return Space(model=model, cluster=cluster).sample(rng), model, cluster


def scene_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Scene:
    scene: Scene = TimelineSimulator(model, cluster, costs=GLOO).scene(strategy, every_rank=True)
    return scene


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_messages_are_the_engines(seed: int) -> None:
    """Every member of every transfer by rounds of ours takes and sends what the engine compiles."""
    assert_messages_are_the_engines(*drawn(seed))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_messages_over_trees_are_the_engines(seed: int) -> None:
    (case,) = draw_over_trees(random.Random(seed), 1)
    assert_messages_are_the_engines(case.strategy, case.model, case.cluster, over_trees=True)


@settings(deadline=None, max_examples=25)
@given(shape=shapes(max_ranks=6), num_elements=st.integers(1, 3 * 2**20), is_short=st.booleans())
def test_long_messages_over_trees_are_the_engines(shape: TreeShape, num_elements: int, is_short: bool) -> None:
    """Shares of many pieces: each message's sender, receiver and size are the engine's, in its order."""
    n = shape.num_ranks
    tables = move_tables_of([Shape("all_reduce", shape, (tuple(range(n)),))])
    sizes = TransferSizes(
        shape=np.zeros(1, np.int64),
        num_elements=np.array([num_elements]),
        item_bytes=np.array([4]),
        is_short=np.array([is_short]),
        first_part=np.array([0, n]),
    )
    found = messages_of(tables, sizes)
    for position in range(n):
        expected = pieces.compile_pieces(
            "all_reduce", shape, num_members=n, position=position, num_elements=num_elements, item_bytes=4
        )
        takes = slice(found.first_take[position], found.first_take[position + 1])
        channels, ordinals = found.take_channel[takes], found.take_ordinal[takes]
        assert [one.source for one in expected.receives] == found.channel_source[channels].tolist()
        taken = found.message_bytes[found.first_message[channels] + ordinals]
        np.testing.assert_allclose(taken, [4 * (one.stop - one.start) for one in expected.receives], atol=4)
        assert (found.take_added_bytes[takes] > 0).tolist() == [one.adds for one in expected.receives]
        assert found.breadth[position] == max(1, expected.breadth)
        row = found.first_take[position] + position
        for step, sends in enumerate(expected.sends):
            posted = found.post_channel[found.first_post[row + step] : found.first_post[row + step + 1]]
            assert found.channel_destination[posted].tolist() == [send.destination for send in sends]


def assert_messages_are_the_engines(
    strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, *, over_trees: bool = False
) -> None:
    plan, scene = lower(strategy, model, cluster), scene_of(strategy, model, cluster)
    most_urgent = min((one.priority for one in plan.operations if isinstance(one, Transfer)), default=0)
    place = 0
    for operation in plan.operations:
        for group in operation.groups:
            for position in range(len(group)):
                part = scene.parts[place]
                place += 1
                if not isinstance(operation, Transfer) or len(group) == 1 or operation.within:
                    continue
                if over_trees and not isinstance(operation.algorithm, TreeShape):
                    continue
                # The sizes of contents are told in a transfer of their own.
                if operation.algorithm == "native" or operation.item_bytes == CONTENT_BYTES:
                    continue
                length = made.SHORT_PIECE_BYTES if operation.priority > most_urgent else made.PIECE_BYTES
                expected = pieces.compile_pieces(
                    operation.collective,
                    operation.algorithm,
                    num_members=len(group),
                    position=position,
                    num_elements=operation.num_elements,
                    item_bytes=operation.item_bytes,
                    piece_bytes=length,
                )
                assert part["num_takes"] == len(expected.receives)
                # A server that has no part in any tree has no messages to ask for.
                has_messages = bool(expected.receives) or any(expected.sends)
                assert not has_messages or not part["waits_its_turn"]
                # Gathers send contributions as long as planned, and here a buffer of that length is cut.
                if expected.receives and not operation.collective.endswith("_v"):
                    usual_bytes = expected.usual_length * operation.item_bytes
                    assert part["ahead"] == Flow(most_urgent).ahead(operation.priority, usual_bytes)
                assert part["num_posts"] == sum(map(len, expected.sends))
                row = int(part["first_take"]) + place - 1
                posts = np.diff(scene.first_post[row : row + len(expected.sends) + 1])
                assert posts.tolist() == [len(sends) for sends in expected.sends]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_contents_are_sent_as_by_the_engine_after_their_sizes(seed: int) -> None:
    """All contributions as long as planned."""
    strategy, model, cluster = drawn(seed)
    plan, scene = lower(strategy, model, cluster), scene_of(strategy, model, cluster)
    most_urgent = min((one.priority for one in plan.operations if isinstance(one, Transfer)), default=0)
    members = [
        (operation, len(group), position)
        for operation in plan.operations
        for group in operation.groups
        for position in range(len(group))
    ]
    for part, (operation, size, position) in zip(scene.parts, members, strict=True):
        if not isinstance(operation, Transfer) or operation.item_bytes != CONTENT_BYTES:
            continue
        if operation.algorithm == "native" or size == 1 or operation.num_elements == 0:
            continue
        num_contents = 1 if operation.collective == "broadcast" else size
        expected = pieces.cut_moves(
            expand(operation.collective, operation.algorithm, size),
            [number * operation.num_elements for number in range(num_contents + 1)],
            position=position,
            item_bytes=CONTENT_BYTES,
            piece_bytes=made.SHORT_PIECE_BYTES if operation.priority > most_urgent else made.PIECE_BYTES,
        )
        is_first = position == 0
        sizes = {"all_gather_v": size - 1, "gather_v": (size - 1) * is_first, "broadcast": 1 - is_first}
        assert part["num_first"] == sizes[operation.collective]
        assert part["num_takes"] == part["num_first"] + len(expected.receives)


def test_pieces_are_as_long_as_the_engines() -> None:
    ours = (made.PIECE_BYTES, made.SHORT_PIECE_BYTES, made.WHOLE_BYTES)
    assert ours == (pieces.PIECE_BYTES, pieces.SHORT_PIECE_BYTES, pieces.WHOLE_BYTES)


def test_as_much_is_asked_for_ahead_as_by_the_engine() -> None:
    ours = (made.AHEAD_BYTES, made.FREE_AHEAD_BYTES, made.LEAST_AHEAD, made.NUM_FAVOURED)
    assert ours == (flow.AHEAD_BYTES, flow.FREE_AHEAD_BYTES, flow.LEAST_AHEAD, flow.NUM_FAVOURED)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), preset=st.sampled_from(["ddp", "horovod_fusion", "all_reduce_chunks", "p3", None]))
def test_stock_plans_are_those_of_the_engine(seed: int, preset: str | None) -> None:
    strategy, model, cluster = drawn(seed)
    if preset is not None:
        try:
            strategy = build_preset(preset, model, cluster)
        except InputError:
            reject()
    plan = lower(strategy, model, cluster)
    found, is_handed_over = is_stock(tables_of(plan), plan.overlap, model), not why_not_stock(plan)
    if len({variable.dtype for variable in model.variables}) == 1:
        assert found == is_handed_over
    else:
        # Whether a list of caps makes buckets of these sizes only DDP itself can say.
        assert found or not is_handed_over
