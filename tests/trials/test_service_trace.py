"""A traced contestant: every worker writes a timeline, with the transfers that torch's reducer would not tell of."""

from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.pictures.trace_file import read_trace, steps_of
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.trials.service import Contestant, TrialService

TARGET = "mobilenet_v2@x0.1"


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


def test_stock_ddp_tells_nothing() -> None:
    with pytest.raises(InputError, match="stock cannot be traced"):
        Contestant(name="stock", trace=Path("t.json"))
