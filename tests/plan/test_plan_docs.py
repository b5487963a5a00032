"""docs/plan.md: its table of templates and its listing are what the lowering makes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.plan.describe import describe_plan
from autosync.plan.lowering import lower
from autosync.plan.types import Local
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy import legality
from autosync.strategy.codecs import Cast, Int8, PowerSGD
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

TEXT = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")


def cluster_of(*devices: int) -> ClusterSpec:
    return ClusterSpec(
        name="test",
        nodes=tuple(
            Node(
                name=f"host-{index}" if count else "server",
                host=f"host-{index}",
                role="worker" if count else "server",
                devices=count,
                bandwidth_out=1e8,
                bandwidth_in=1e8,
            )
            for index, count in enumerate(devices)
        ),
    )


def model_of(*variables: Variable) -> ModelSpec:
    return ModelSpec(
        name="test",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=variables,
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )


DENSE = model_of(Variable(name="v", shape=(100, 100), use=0, ready=0))
TABLE = model_of(
    Variable(name="v", shape=(50, 4), kind="embedding", touched_rows=5.0, max_touched_rows=9, use=0, ready=0)
)
LINEAR = model_of(Variable(name="v", shape=(50, 40), kind="linear", factor_rows=4, use=0, ready=0))
CLIPPED = replace(DENSE, clip_norm=1.0)

FLAT, EQUAL, UNEQUAL = cluster_of(1, 1, 0), cluster_of(2, 2, 0), cluster_of(1, 2, 3, 0)

TEMPLATES: Mapping[str, tuple[Message, ModelSpec, ClusterSpec]] = {
    name: (Message(parts=("v",), synchroniser=synchroniser, codec=codec), model, cluster)
    for name, synchroniser, codec, model, cluster in (
        ("all_reduce", AllReduce(), None, DENSE, FLAT),
        ("all_reduce, hierarchical", AllReduce(hierarchical=True), None, DENSE, EQUAL),
        ("all_reduce, unequal nodes", AllReduce(hierarchical=True), None, DENSE, UNEQUAL),
        ("server", ParameterServer(server="server"), None, DENSE, FLAT),
        ("server, local proxy", ParameterServer(server="server", local_proxy=True), None, DENSE, EQUAL),
        ("server, update at worker", ParameterServer(server="server", update="worker"), None, DENSE, FLAT),
        ("server, stale", ParameterServer(server="server", staleness=2), None, DENSE, FLAT),
        ("server, sparse", ParameterServer(server="server", sparse=True), None, TABLE, FLAT),
        ("server, sparse at worker", ParameterServer(server="server", sparse=True, update="worker"), None, TABLE, FLAT),
        ("server, sparse and stale", ParameterServer(server="server", sparse=True, staleness=1), None, TABLE, FLAT),
        ("sharded", Sharded(), None, DENSE, FLAT),
        ("sparse_gather", SparseGather(), None, TABLE, FLAT),
        ("sufficient_factors", SufficientFactors(), None, LINEAR, FLAT),
        ("periodic", Periodic(every=4), None, DENSE, FLAT),
        ("periodic, outer", Periodic(every=4, outer=OuterOptimizer()), None, DENSE, FLAT),
        ("cast", AllReduce(), Cast(), DENSE, FLAT),
        ("int8", AllReduce(), Int8(), DENSE, FLAT),
        ("int8, server", ParameterServer(server="server"), Int8(), DENSE, FLAT),
        ("power_sgd", AllReduce(), PowerSGD(), DENSE, FLAT),
        ("all_reduce, clipped", AllReduce(), None, CLIPPED, FLAT),
        ("sharded, clipped", Sharded(), None, CLIPPED, FLAT),
    )
}


def told() -> Mapping[str, str]:
    """The table's chains by template."""
    section = TEXT.partition("## Templates by stage")[2].partition("\n## ")[0]
    rows = [re.split(r"  +", line, maxsplit=1) for line in section.splitlines() if " > " in line]
    return {row[0]: row[1] for row in rows}


def test_every_template_is_told() -> None:
    assert set(told()) == set(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_stages_are_as_told(name: str) -> None:
    message, model, cluster = TEMPLATES[name]
    strategy = Strategy(messages=(message,))
    legality.check(strategy, model, cluster)
    operations = lower(strategy, model, cluster).operations
    assert told()[name] == " > ".join(o.kind if isinstance(o, Local) else o.collective for o in operations)


def test_the_listing_is_what_is_printed() -> None:
    variables = (Variable(name="v0", shape=(1000,), use=0, ready=1), Variable(name="v1", shape=(5000,), use=1, ready=0))
    messages = (
        Message(parts=("v0",), synchroniser=ParameterServer(server="server"), priority=0, lane=1),
        Message(parts=("v1",), synchroniser=AllReduce(hierarchical=True, topology="ring"), priority=1),
    )
    strategy = Strategy(messages=messages, overlap="forward")
    plan = lower(strategy, model_of(*variables), EQUAL)
    assert f"```text\n{describe_plan(plan, EQUAL)}\n```" in TEXT


def test_the_example_of_tables_runs() -> None:
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "tables_at" in text]
    names: dict[str, Any] = {}
    exec(example, names)
    model, cluster = names["model"], names["cluster"]
    plan = lower(build_preset("sharded", model, cluster), model, cluster)
    assert len(names["tables"].operations.kind) == len(plan.operations)
