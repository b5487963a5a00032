"""The service with replayed model specs: under DDP and under our engine, and on a testbed, whose bytes count."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.graph_batching import DealingTimes, GraphBatching, GraphProfile, PolicySeconds
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, save_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.testbed import live
from autosync.testbed.requirements import find_folders
from autosync.trials.service import Contestant, TrialFailed, TrialService

TARGET = "mobilenet_v2@x0.1"
RECOMMENDER = Path(__file__).parents[2] / "tools" / "gallery" / "recommender.yaml"


def _contestants(cluster: ClusterSpec) -> list[Contestant]:
    """Stock DDP, and a strategy whose updates are at the shards' owners: the optimizer must stand for the spec's."""
    model = load_model(TARGET)
    bundle = _bundle(build_preset("sharded", model, cluster), model, cluster)
    return [Contestant(name="stock"), Contestant(name="sharded", bundle=bundle)]


def _bundle(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    return bundled(strategy, model, cluster)


@pytest.mark.usefixtures("forked_ranks")
def test_a_spec_trains_under_ddp_and_under_our_engine(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    model = load_model(TARGET)
    with TrialService(target=TARGET, model=model, cluster=cluster, folder=tmp_path / "f") as service:
        for contestant in _contestants(cluster):
            service.prepare(contestant)
            samples = service.run(contestant.name, 2)
            assert min(min(steps) for steps in samples.step_seconds) > 0.9 * model.step_seconds
            service.release(contestant.name)
    assert len(started) == 2


@pytest.mark.usefixtures("forked_ranks")
def test_a_replay_has_the_pace_of_its_batching(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    """The profile's own policy takes twice as long, and loses half a step more to the slowest rank."""
    graphs = GraphProfile(
        vertices=(1, 2, 3, 4),
        depths=(1, 2, 3, 4),
        policies=(PolicySeconds(order="depth", seconds=0.2), PolicySeconds(order="agenda", seconds=0.1)),
        dealings=(DealingTimes(num_workers=2, by_count=1.5, by_cost=1.0),),
    )
    # Long enough that a busy machine adds little.
    model = replace(load_model("mobilenet_v2@x2"), graphs=graphs)
    save_model(model, tmp_path / "model.yaml")
    strategy = replace(
        build_preset("ddp", model, cluster), batching=GraphBatching(order="agenda", dealing="cost"), overlap="forward"
    )
    with TrialService(
        target=str(tmp_path / "model.yaml"), model=model, cluster=cluster, folder=tmp_path / "f"
    ) as service:
        service.prepare(Contestant(name="stock"))
        service.prepare(Contestant(name="batched", bundle=_bundle(strategy, model, cluster)))
        stock, batched = (
            min(min(steps) for steps in service.run(name, 3).step_seconds) for name in ("stock", "batched")
        )
    assert 0.9 * model.step_seconds * 0.5 < batched < stock
    assert stock > 1.3 * model.step_seconds


@pytest.fixture
def emulated() -> Iterator[ClusterSpec]:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=125e6, bandwidth_in=125e6) for i in range(2))
    made = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")
    yield made
    live.down(made, force=True)


@pytest.mark.slow
def test_on_a_testbed_bytes_are_counted_and_it_stays_up_between_launches(
    emulated: ClusterSpec, started: list[int], tmp_path: Path
) -> None:
    model = load_model(TARGET)
    with TrialService(target=TARGET, model=model, cluster=emulated, folder=tmp_path / ("f" * 100)) as service:
        stock, sharded = _contestants(emulated)
        service.prepare(stock)
        samples = service.run("stock", 2)
        assert samples.bytes_sent is not None
        assert samples.bytes_received is not None
        # An all-reduce between two sends as many bytes as there are gradients, and headers.
        for count in (*samples.bytes_sent, *samples.bytes_received):
            assert 2 * model.num_bytes < count < 2 * model.num_bytes * 1.1
        (bed,) = [found for found, _ in live.find_all() if found.layout.name == emulated.name]
        bed.set_link("n1", up=False)
        service._timeout_seconds = 1.0
        with pytest.raises(TrialFailed) as caught:
            service.run("stock", 2)
        assert caught.value.kind in {"timeout", "raised"}
        assert emulated.name in [found.layout.name for found, _ in live.find_all()]
        # Whoever starts ranks puts the cables back.
        service._timeout_seconds = 60.0
        service.prepare(sharded)
        assert service.run("sharded", 1).step_seconds
    assert emulated.name not in [found.layout.name for found, _ in live.find_all()]


@pytest.mark.usefixtures("forked_ranks")
def test_rows_of_a_replayed_table_are_updated_at_a_server(
    cluster: ClusterSpec, started: list[int], tmp_path: Path
) -> None:
    model = load_model(str(RECOMMENDER))
    bundle = _bundle(build_preset("parallax", model, cluster), model, cluster)
    with TrialService(target=str(RECOMMENDER), model=model, cluster=cluster, folder=tmp_path / "f") as service:
        service.prepare(Contestant(name="parallax", bundle=bundle))
        assert len(service.run("parallax", 2).step_seconds) == 2
        service.release("parallax")
