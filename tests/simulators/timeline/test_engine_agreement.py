"""The timeline simulates the engine's messages with the same pieces, and stock DDP if its reducer runs the plan."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.plan.expansion import expand
from autosync.plan.lowering import lower
from autosync.plan.tables import tables_of
from autosync.plan.types import Transfer
from autosync.runtime.stock.buckets import why_not_stock
from autosync.runtime.wire import flow_control as flow
from autosync.runtime.wire import transfer_pieces as pieces
from autosync.runtime.wire.flow_control import Flow
from autosync.simulators.shared.costs import Costs
from autosync.simulators.shared.size_exchange import CONTENT_BYTES
from autosync.simulators.timeline import messages as made
from autosync.simulators.timeline.scene import Scene
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.simulators.timeline.stock_ddp import is_stock
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from tests.helpers.random_specs import random_cluster, random_model


def drawn(seed: int) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    return Space(model=model, cluster=cluster).sample(rng), model, cluster


def scene_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Scene:
    scene: Scene = TimelineSimulator(model, cluster, costs=Costs()).scene(strategy, every_rank=True)
    return scene


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_messages_are_the_engines(seed: int) -> None:
    """Every member of every transfer by rounds of ours takes and sends what the engine compiles."""
    strategy, model, cluster = drawn(seed)
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
                assert not part["waits_its_turn"]
                # Gathers send contributions as long as planned, and here a buffer of that length is cut.
                if expected.receives and not operation.collective.endswith("_v"):
                    longest_bytes = expected.longest * operation.item_bytes
                    assert part["ahead"] == Flow(most_urgent).ahead(operation.priority, longest_bytes)
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
