"""One count of lanes: whatever tells how many lanes a strategy or its plan has says the same."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from autosync.datasets.facts import plan_facts
from autosync.errors import DoesNotApplyError
from autosync.pictures.plan_picture import plan_picture
from autosync.plan.describe import describe_plan
from autosync.plan.lowering import lower
from autosync.plan.types import Transfer
from autosync.runtime.session.description import described
from autosync.simulators.features.choices import choice_features
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.canonical import canonical
from autosync.strategy.describe import describe, summarise
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.presets.pipelines import PIPELINES
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import cluster_of

MODEL = load_model("bert_tiny")
CLUSTERS = {"flat": cluster_of(1, 1, 1), "deep": cluster_of(2, 2)}


def _applying() -> Iterator[tuple[str, str]]:
    # The picture of a pipeline shows passes, and no lanes.
    for name in sorted(set(preset_names()) - set(PIPELINES)):
        for where, cluster in CLUSTERS.items():
            with contextlib.suppress(DoesNotApplyError):
                build_preset(name, MODEL, cluster)
                yield name, where


def _told(text: str) -> set[int]:
    """All counts of lanes in a text."""
    return {int(number) for number in re.findall(r"(\d+) lanes?\b", text)}


def _counts(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> set[int]:
    plan = lower(strategy, model, cluster)
    texts = (
        describe(strategy, model, full=True),
        describe_plan(plan, cluster),
        described(plan, "the engine", (), None),
        plan_picture(plan, cluster, title="a"),
    )
    for text in texts:
        assert _told(text), f"no count of lanes in {text}"
    lanes = {plan.lane_of(one) for one in plan.operations if isinstance(one, Transfer)}
    return {
        *(number for text in texts for number in _told(text)),
        len(lanes),
        plan.num_lanes,
        plan_facts(plan, cluster).num_lanes,
        summarise(strategy).num_lanes,
        canonical(strategy, model, cluster).num_lanes,
        round(2 ** choice_features(strategy, model, cluster)["strategy.lanes"]),
    }


@pytest.mark.parametrize(("name", "where"), list(_applying()))
def test_all_count_the_lanes_of_a_preset_alike(name: str, where: str) -> None:
    strategy = build_preset(name, MODEL, CLUSTERS[where])
    assert _counts(strategy, MODEL, CLUSTERS[where]) == {strategy.num_lanes}


def test_lanes_are_counted_and_not_their_numbers() -> None:
    names = [variable.name for variable in MODEL.variables]
    strategy = Strategy(
        messages=(
            Message(parts=(names[0],), synchroniser=AllReduce(), lane=7),
            Message(parts=tuple(names[1:]), synchroniser=ParameterServer(server="n0"), lane=3),
        )
    )
    assert _counts(strategy, MODEL, CLUSTERS["flat"]) == {2}
    plan = lower(strategy, MODEL, CLUSTERS["flat"])
    assert len(plan.queues) == 4, "the lanes of two, each with two stages: all-reduces have the norm's too"


def test_the_lanes_of_a_timeline_are_those_of_the_strategy() -> None:
    cluster = CLUSTERS["flat"]
    strategy = build_preset("ps_load_balanced", MODEL, cluster)
    events = TimelineSimulator(MODEL, cluster).trace(strategy)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lanes = {name for name in threads if name.startswith("lane")}
    assert lanes == {f"lane {lane}, stage {stage}" for lane in range(strategy.num_lanes) for stage in range(2)}
