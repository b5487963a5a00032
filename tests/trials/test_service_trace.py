"""A traced contestant: every worker writes a timeline, with the transfers that torch tells nothing of by itself."""

from pathlib import Path

import pytest

from autosync.pictures.trace_file import read_trace, steps_of
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model_file import load_model
from autosync.strategy.emit.settings import as_it_ships
from autosync.strategy.presets import build_preset
from autosync.trials.service import Contestant, TrialService

TARGET = "mobilenet_v2@x0.1"


@pytest.mark.usefixtures("forked_ranks")
def test_every_worker_writes_a_timeline(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    model = load_model(TARGET)
    strategy = build_preset("ddp", model, cluster)
    bundle = bundled(strategy, model, cluster)
    contestant = Contestant(name="ddp", bundle=bundle, trace=tmp_path / "traces" / "t.json")
    with TrialService(target=TARGET, model=model, cluster=cluster, folder=tmp_path / "f") as service:
        service.prepare(contestant)
        service.run("ddp", 3)
        service.release("ddp")
        ranks = [rank for number in range(2) for rank in read_trace(tmp_path / "traces" / f"t-rank{number}.json")]
    assert [rank.name for rank in ranks] == ["rank 0 on this", "rank 1 on this"]
    for rank in ranks:
        assert [step.iteration for step in steps_of(rank)] == [0, 1]
        assert {span.kind for span in rank.spans} >= {"compute", "transfer", "local"}
        assert len({span.name for span in rank.spans if span.kind == "transfer"}) == len(strategy.messages)


@pytest.mark.usefixtures("forked_ranks")
def test_stock_ddp_is_traced_by_a_hook(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    model = load_model(TARGET)
    stock = Contestant(name="stock", ddp=as_it_ships(model, is_replayed=True), trace=tmp_path / "t.json")
    with TrialService(target=TARGET, model=model, cluster=cluster, folder=tmp_path / "f") as service:
        service.prepare(stock)
        service.run("stock", 5)
        text = service.timeline("stock")
        assert not list(tmp_path.glob("t*.json")), "the files were removed on both ranks"
        service.release("stock")
    (tmp_path / "sent.json").write_text(text, encoding="utf-8")
    (rank,) = read_trace(tmp_path / "sent.json")
    assert rank.name == "rank 0 on this"
    assert [step.iteration for step in steps_of(rank)] == [0, 1, 2, 3]
    by_kind = {
        kind: [span for span in rank.spans if (span.kind, span.iteration) == (kind, 3)]
        for kind in ("compute", "wait", "transfer")
    }
    assert [span.name for span in by_kind["compute"]] == ["forward", "backward", "optimizer"]
    # 14 MB in the buckets that DDP has as it ships: 1 MiB, then 25 MiB.
    assert len(by_kind["transfer"]) == 2
    names = {name for span in by_kind["transfer"] for name in [span.name.removeprefix("all_reduce of ").split()[0]]}
    assert names <= {variable.name for variable in model.variables}
    (wait,) = by_kind["wait"]
    backward = by_kind["compute"][1]
    assert backward.end <= wait.start <= wait.end <= by_kind["compute"][2].start
    # When a transfer has ended, another thread writes it down, on a busy machine a while later.
    assert all(backward.start < span.start < min(span.end, wait.end) for span in by_kind["transfer"])


@pytest.mark.usefixtures("forked_ranks")
def test_a_contestant_that_is_not_traced_has_no_timeline(
    cluster: ClusterSpec, started: list[int], tmp_path: Path
) -> None:
    model = load_model(TARGET)
    stock = Contestant(name="stock", ddp=as_it_ships(model, is_replayed=True))
    with TrialService(target=TARGET, model=model, cluster=cluster, folder=tmp_path / "f") as service:
        service.prepare(stock)
        assert service.timeline("stock") == ""
