"""Every preset on every shipped model and cluster, as it ships and on NCCL, is all that a strategy must be."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, shipped_models
from autosync.strategy.cuts import smallest_divisor
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.presets.pipelines import PIPELINES
from autosync.strategy.representation import Strategy
from autosync.strategy.stage_rules import why_undivided
from autosync.testing.presets import check_preset

# Rows, convolutions, and an encoder with both tied and untied embeddings; the others take minutes together.
QUICK = ("ncf", "resnet20", "bert_tiny")


def _clusters() -> Iterator[ClusterSpec]:
    for name in shipped_clusters():
        cluster = load_cluster(name)
        yield from (replace(cluster, backend="gloo"), replace(cluster, backend="nccl"))


def _refusal(preset: str, model: ModelSpec, cluster: ClusterSpec) -> str:
    """Why a preset does not apply where all is as it ships, as docs/presets.md has it; empty where it does."""
    if preset in PIPELINES:
        num_layers = len(model.timeline.cuts) + 1
        per_rank = {"gpipe": 1, "interleaved_1f1b": 2}.get(preset, 0)
        too_few = "layers that can be stages" if num_layers < per_rank * cluster.num_workers else ""
        unstashed = _unstashed(model) if preset == "pipedream" else ""
        return re.escape(why_undivided(model, cluster)) or too_few or unstashed
    sizes = {len(group) for group in cluster.worker_groups()}
    if preset in ("byteps", "bytescheduler", "p3") and cluster.backend == "nccl":
        return "nccl runs transfers in one static order"
    if preset == "hierarchical":
        of_ranks = "has one rank on every node" if sizes == {1} else ""
        return "has one node" if len(cluster.worker_groups()) == 1 else of_ranks
    if preset == "rack_levels":
        return "" if cluster.racks else "levels need workers in several racks"
    if preset in ("partitioned_all_reduce", "random_axis_partitioned_all_reduce"):
        # Cut by its smallest divisor, a table of a large prime of rows has as many parts.
        primes = (v.name for v in model.variables if v.shape and smallest_divisor(v.shape[0]) > MAX_PARTS)
        return next((f"{name} would be cut into" for name in primes), "")
    if preset == "uneven_batches" and not cluster.is_uneven:
        return "compute at the same speed"
    return _refusal_by_model(preset, model)


def _unstashed(model: ModelSpec) -> str:
    """Why stages of a model cannot stash parameters, wherever it is cut."""
    if model.clip_norm is not None:
        return "stashing for a task that clips"
    cuts = [set(cut.tied) for cut in model.timeline.cuts]
    return "stashing with .* in the stages" if cuts and set.intersection(*cuts) else ""


def _refusal_by_model(preset: str, model: ModelSpec) -> str:
    if preset == "poseidon" and not any(variable.kind == "linear" for variable in model.variables):
        return "has no linear variable"
    if preset == "dgc" and model.optimizer.state_slots:
        return "keeps a state of its own"
    if preset == "ssp" and model.clip_norm is not None:
        return "clips its gradients or scales its loss"
    return ""


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize(
    ("name", "on_both"),
    [
        *((name, False) for name in QUICK),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in shipped_models()),
    ],
)
def test_legal_the_same_from_a_file_and_lowered_or_refused_with_the_reason(
    preset: str, name: str, on_both: bool
) -> None:
    """On both backends, or on each cluster with one of them in turn."""
    model = load_model(name)
    turn = preset_names().index(preset) + QUICK.index(name) if not on_both else 0
    known: dict[str, Strategy] = {}
    for number, cluster in enumerate(_clusters()):
        if not on_both and (number // 2 + number + turn) % 2:
            continue
        reason = _refusal(preset, model, cluster)
        if reason:
            with pytest.raises(DoesNotApplyError, match=reason):
                check_preset(preset, model, cluster, known=known)
        else:
            assert check_preset(preset, model, cluster, known=known).name == preset


def test_each_preset_applies_somewhere_and_the_quick_models_ship() -> None:
    cases = list(itertools.product(map(load_model, QUICK), _clusters()))
    applying = [preset for preset in preset_names() if preset not in PIPELINES]
    assert all(any(not _refusal(preset, *case) for case in cases) for preset in applying)
    assert set(QUICK) <= shipped_models().keys()


def test_stock_ddp_gathers_rows_where_gradients_are_sparse() -> None:
    cluster = load_cluster("4-hosts")
    gathering = {
        name
        for name in shipped_models()
        for message in check_preset("ddp", load_model(name), cluster).messages
        if message.synchroniser.kind == "sparse_gather"
    }
    assert gathering == {"ncf", "ncf_small", "dlrm", "lstm_ptb"}


def test_what_is_not_as_it_should_be_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cluster = load_model("ncf"), load_cluster("4-hosts")
    monkeypatch.setattr("autosync.testing.presets.parse_strategy", lambda document: None)
    with pytest.raises(AssertionError, match=r"ddp reads back from s\.yaml as another strategy"):
        check_preset("ddp", model, cluster)


def test_the_same_file_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cluster = load_model("ncf"), load_cluster("4-hosts")
    known: dict[str, Strategy] = {}
    found = check_preset("ddp", model, cluster, known=known)
    monkeypatch.setattr("autosync.testing.presets.parse_strategy", lambda document: None)
    assert check_preset("ddp", model, cluster, known=known) == found
    with pytest.raises(AssertionError, match=r"ps reads back from s\.yaml as another strategy"):
        check_preset("ps", model, cluster, known=known)
    known[next(iter(known))] = build_preset("ps", model, cluster)
    with pytest.raises(AssertionError, match="ddp writes a file that reads back as another strategy"):
        check_preset("ddp", model, cluster, known=known)
