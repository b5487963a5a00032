"""Records whose strategies would be carried out otherwise today say nothing about today's plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.datasets.facts import cluster_spec, model_spec, plan_facts
from autosync.datasets.outdated import is_outdated
from autosync.datasets.schema import Record
from autosync.plan.lowering import lower
from autosync.simulators.learned.priors import lots_of_records
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.testing.simulators import record_of


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("resnet20")


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    return load_cluster("4-hosts-2-racks")


def _record(preset: str, model: ModelSpec, cluster: ClusterSpec) -> Record:
    strategy = build_preset(preset, model, cluster)
    facts = plan_facts(lower(strategy, model, cluster), cluster)
    return replace(
        record_of(strategy, model, cluster, seconds=10.0),
        plan=facts,
        plan_id="measured",
        model_spec=model_spec(model).spec_id,
        cluster_spec=cluster_spec(cluster).spec_id,
    )


def test_a_record_of_todays_plan_is_valid(model: ModelSpec, cluster: ClusterSpec) -> None:
    record = _record("ddp", model, cluster)
    assert not is_outdated(record, model, cluster)
    assert not is_outdated(replace(record, plan=None), model, cluster)


@pytest.mark.parametrize("fact", ["sent_bytes", "wire_seconds", "num_sends"])
def test_other_bytes_or_sends_make_it_outdated(fact: str, model: ModelSpec, cluster: ClusterSpec) -> None:
    record = _record("ddp", model, cluster)
    assert record.plan is not None
    other = replace(record.plan, **{fact: 1.5 * getattr(record.plan, fact)})
    assert is_outdated(replace(record, plan=other), model, cluster)


def test_a_strategy_that_is_refused_today_is_outdated(model: ModelSpec, cluster: ClusterSpec) -> None:
    record = _record("ddp", model, cluster)
    assert record.strategy is not None
    assert is_outdated(replace(record, strategy={**record.strategy, "messages": []}), model, cluster)


def test_nothing_is_learned_from_outdated_records(model: ModelSpec, cluster: ClusterSpec) -> None:
    valid, outdated = _record("ddp", model, cluster), _record("ps_load_balanced", model, cluster)
    assert outdated.plan is not None
    outdated = replace(outdated, plan=replace(outdated.plan, sent_bytes=1.0))
    specs = [model_spec(model), cluster_spec(cluster)]
    (lot,) = lots_of_records([valid, outdated], specs)
    assert [one.strategy_id for one in lot.records] == [valid.strategy_id]
    assert lots_of_records([outdated], specs) == []
