"""Bundles: what is written reads back, nothing in them is changed by hand, and another model or cluster is refused."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import DocumentError, DoesNotApplyError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Timeline
from autosync.strategy.bundle import Bundle, dump_bundle, load_bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import load_strategy, load_strategy_for
from autosync.strategy.representation import Strategy
from tests.helpers.mutations import mutations


@pytest.fixture
def bundle(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    identity = strategy_id(strategy, model, cluster)
    return Bundle(strategy=strategy, model=model, cluster=cluster, strategy_id=identity, plan_id="0123456789abcdef")


def _differences(bundle: Bundle, model: ModelSpec, cluster: ClusterSpec) -> list[str]:
    with pytest.raises(DoesNotApplyError) as caught:
        bundle.check(model, cluster)
    return [f"{problem.what} ({problem.rule})" for problem in caught.value.problems]


@pytest.mark.parametrize("name", ["best.yaml", "best.json"])
def test_what_is_written_reads_back(name: str, bundle: Bundle, tmp_path: Path) -> None:
    save_bundle(tmp_path / name, bundle)
    assert load_bundle(tmp_path / name) == bundle


def test_a_bundle_file_opens_with_the_strategy_and_has_a_line_for_each_variable(bundle: Bundle, tmp_path: Path) -> None:
    save_bundle(tmp_path / "best.yaml", bundle)
    lines = (tmp_path / "best.yaml").read_text().splitlines()
    assert lines[:5] == [
        "schema: autosync.bundle/1",
        f"strategy_id: {bundle.strategy_id}",
        "plan_id: 0123456789abcdef",
        "strategy:",
        "  schema: autosync.strategy/1",
    ]
    assert "  - {name: bias, shape: [10], kind: dense, use: 4, ready: 1}" in lines


def test_yaml_and_json_hold_the_same(bundle: Bundle, tmp_path: Path) -> None:
    from autosync.documents import read_document

    save_bundle(tmp_path / "best.yaml", bundle)
    save_bundle(tmp_path / "best.json", bundle)
    assert read_document(tmp_path / "best.yaml").value == read_document(tmp_path / "best.json").value
    assert read_document(tmp_path / "best.yaml").value == dump_bundle(bundle)


def test_a_bundle_is_read_where_a_strategy_is_asked_for(bundle: Bundle, tmp_path: Path) -> None:
    save_bundle(tmp_path / "best.yaml", bundle)
    assert load_strategy(tmp_path / "best.yaml")[0] == bundle.strategy
    assert load_strategy_for(tmp_path / "best.yaml", bundle.model, bundle.cluster) == bundle.strategy


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lane: 1", "line: 1", "messages[1].line: unknown key"),
        ("server: node-3", "server: node-9", "messages[8].synchroniser.server: unknown node 'node-9'"),
        ("plan_id:", "plan-id:", "plan-id: unknown key"),
        ("backend: gloo", "backend: glooo", "backend: unknown value 'glooo'"),
        ("factor_rows: 4", "factor_rows: four", "variables[1].factor_rows: "),
        ("overlap: forward", "overlap: backward", "strategy_id: the strategy's id is "),
    ],
)
def test_mistakes_have_the_line_of_the_whole_file(
    old: str, new: str, expected: str, bundle: Bundle, tmp_path: Path
) -> None:
    path = tmp_path / "best.yaml"
    save_bundle(path, bundle)
    text = path.read_text()
    line = 1 + text[: text.index(old)].count("\n") if not expected.startswith("strategy_id") else 2
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_bundle(path)
    assert any(str(problem).startswith(f"{path}:{line}: {expected}") for problem in caught.value.problems)


def test_a_bundle_without_a_strategy_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text("schema: autosync.bundle/1\nplan_id: a\n")
    with pytest.raises(DocumentError, match=r"strategy: is missing \(strategy is required\)"):
        load_strategy(tmp_path / "best.yaml")


def test_a_newer_bundle_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text("schema: autosync.bundle/2\nstrategy: {}\n")
    for load in (load_bundle, load_strategy):
        with pytest.raises(DocumentError, match=r"version 2 of autosync.bundle is newer"):
            load(tmp_path / "best.yaml")


def test_the_same_model_and_cluster_pass(bundle: Bundle) -> None:
    faster = replace(bundle.cluster, nodes=tuple(replace(node, host="elsewhere") for node in bundle.cluster.nodes))
    bundle.check(bundle.model.dilated(4), faster)


def test_each_difference_of_a_model_is_named(bundle: Bundle) -> None:
    model = bundle.model
    table, fc1, *others = model.variables
    assert _differences(bundle, replace(model, clip_norm=1.0), bundle.cluster) == [
        "the model's clip_norm is 1.0 (the bundle was made for none)"
    ]
    changed = replace(model, variables=(table, replace(fc1, shape=(64, 31)), *others))
    assert _differences(bundle, changed, bundle.cluster) == [
        "the variable fc1, shape is [64, 31] (the bundle was made for [64, 32])"
    ]
    renamed = replace(model, variables=(table, replace(fc1, name="fc0"), *others), timeline=_idle(model))
    assert _differences(bundle, renamed, bundle.cluster) == [
        "the variable fc1 is missing (the bundle was made with fc1)",
        "the variable fc0 is new (the bundle was made without fc0)",
    ]
    adam = replace(model.optimizer, name="Adam", sparse=False)
    assert _differences(bundle, replace(model, optimizer=adam), bundle.cluster) == [
        "the model's optimizer, name is Adam (the bundle was made for SGD)",
        "the model's optimizer, sparse is false (the bundle was made for true)",
    ]
    assert _differences(bundle, replace(model, variables=(fc1, table, *others)), bundle.cluster) == [
        "the variables are listed in another order (the order of the bundle's model)"
    ]


def _idle(model: ModelSpec) -> Timeline:
    return replace(model.timeline, forward=(), backward=(), optimizer=())


def test_each_difference_of_a_cluster_is_named(bundle: Bundle) -> None:
    cluster = bundle.cluster
    first, *others = cluster.nodes
    assert _differences(bundle, bundle.model, replace(cluster, backend="nccl")) == [
        "the cluster's backend is nccl (the bundle was made for gloo)"
    ]
    smaller = replace(cluster, nodes=(replace(first, devices=1), *others), alike=(("node-1", "node-2", "node-3"),))
    assert "the node node-0, devices is 1 (the bundle was made for 2)" in _differences(bundle, bundle.model, smaller)
    fewer = replace(cluster, nodes=tuple(others), alike=())
    assert "the node node-0 is missing (the bundle was made with node-0)" in _differences(bundle, bundle.model, fewer)
    assert _differences(bundle, bundle.model, replace(cluster, alike=())) == [
        "which nodes are alike is [] (the bundle was made for [[node-0, node-1, node-2, node-3]])"
    ]
    other_order = replace(cluster, nodes=(*others, first))
    assert _differences(bundle, bundle.model, other_order) == [
        "the nodes are in the order node-1, node-2, node-3, node-0 (the bundle's order: node-0, node-1, node-2, node-3)"
    ]


def test_whatever_becomes_of_a_bundle_it_loads_or_says_why(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    save_bundle(path, bundle)
    text = path.read_text()
    rng = random.Random("bundles")
    refused: list[InputError] = []
    for _ in range(200):
        path.write_bytes(mutations(text, rng).encode("utf-8", "surrogatepass"))
        try:
            loaded = load_bundle(path)
        except InputError as error:
            refused.append(error)
            continue
        assert loaded.strategy_id == bundle.strategy_id
    assert len(refused) >= 50
    assert all(problem.file == str(path) and problem.line >= 1 for error in refused for problem in error.problems)
