"""The picture of a plan with stages: every pass is drawn once, none before what it waits for, and names are escaped."""

import itertools
import random
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.pictures.pipeline_picture import drawn_passes
from autosync.pictures.plan_picture import plan_picture
from autosync.plan.lowering import lower
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage
from tests.helpers.staged_models import chain, nodes, random_division


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_pass_is_drawn_once_and_in_order(seed: int) -> None:
    strategy, model, cluster = random_division(random.Random(seed))
    plan = lower(strategy, model, cluster)
    passes = drawn_passes(plan)
    kinds = ("forward", "backward", "weights") if plan.splits_backward else ("forward", "backward")
    assert len(passes) == len(kinds) * len(strategy.stages) * strategy.microbatches
    ends = {(one.kind, one.stage, one.microbatch): one.end for one in passes}
    assert {one.kind for one in passes} == set(kinds)
    for one in passes:
        if one.kind == "forward" and one.stage:
            assert one.begin >= ends["forward", one.stage - 1, one.microbatch]
        if one.kind == "backward" and one.stage < len(strategy.stages) - 1:
            assert one.begin >= ends["backward", one.stage + 1, one.microbatch]
        if one.kind == "weights":
            assert one.begin >= ends["backward", one.stage, one.microbatch]
    for rank in range(plan.num_workers):
        mine = sorted((one.begin, one.end) for one in passes if one.rank == rank)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))
    text = plan_picture(plan, cluster, title="<stages>", subtitle="a & b")
    root = ET.fromstring(text)
    assert sum(element.tag.endswith("rect") for element in root.iter()) >= len(passes)


def test_it_says_who_computes_and_what_is_sent() -> None:
    model, cluster = chain(5, tied=[(0, 4)]), nodes(1, 1, 1)
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1, 2))]
    text = plan_picture(lower(divided_strategy(model, stages, 6), model, cluster), cluster, title="two")
    assert "2 stages, 6 microbatches" in text
    assert "stage 1 on ranks 1, 2" in text
    assert "a microbatch sends 24 B on, and 16 B come back" in text
    assert "among ranks 0, 1, 2" in text
    assert "forward pass of microbatch 5 through stage 1" in text
