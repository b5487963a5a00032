"""The service on clusters with nodes that only serve: contestants that need them, and those that do not."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import load_model, model_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.testbed import live
from autosync.testbed.requirements import find_folders
from autosync.trials.service import Contestant, TrialService

TASK = str(Path(__file__).with_name("task.py"))
TARGET = "mobilenet_v2@x0.1"


def _nodes(rate: float, hosts: tuple[str, str, str]) -> tuple[Node, ...]:
    return (
        Node(name="n0", host=hosts[0], bandwidth_out=rate, bandwidth_in=rate),
        Node(name="n1", host=hosts[1], bandwidth_out=rate, bandwidth_in=rate),
        Node(name="s", host=hosts[2], role="server", devices=0, bandwidth_out=rate, bandwidth_in=rate),
    )


def _served(target: str, cluster: ClusterSpec, overlap: str = "backward") -> Contestant:
    model = model_of(target)
    names = tuple(variable.name for variable in model.variables)
    messages = (Message(parts=names, synchroniser=ParameterServer(server="s")),)
    strategy = Strategy(messages=messages, overlap="forward" if overlap == "forward" else "backward")
    bundle = bundled(strategy, model, cluster)
    return Contestant(name=f"served {overlap}", bundle=bundle)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_what_arrives_from_a_server_can_be_compared(started: list[int], tmp_path: Path) -> None:
    cluster = ClusterSpec(name="served", nodes=_nodes(1e9, ("localhost",) * 3))
    with TrialService(
        target=TASK, model=model_of(TASK), cluster=cluster, folder=tmp_path / "f", timeout_seconds=60.0
    ) as service:
        served = replace(_served(TASK, cluster, "forward"), plain_sgd=True)
        for contestant in (Contestant(name="exact", plain_sgd=True), served):
            service.prepare(contestant)
            losses = service.run(contestant.name, 1, settle=True).losses
            assert [len(of_worker) for of_worker in losses] == [1, 1]
        assert service.difference("exact", served.name) < 1e-6
    assert len(started) == 3


@pytest.mark.usefixtures("forked_ranks")
def test_contestants_with_and_without_servers_take_turns(started: list[int], tmp_path: Path) -> None:
    cluster = ClusterSpec(name="served", nodes=_nodes(1e9, ("localhost",) * 3))
    with TrialService(
        target=TASK, model=model_of(TASK), cluster=cluster, folder=tmp_path / "f", timeout_seconds=60.0
    ) as service:
        contestants = [_served(TASK, cluster), Contestant(name="stock"), _served(TASK, cluster, "forward")]
        for contestant in contestants:
            service.prepare(contestant)
        for contestant in contestants * 2:
            samples = service.run(contestant.name, 3)
            assert [len(steps) for steps in samples.step_seconds] == [3, 3]
            assert len(samples.peak_memory_bytes) == 2
            assert samples.server_bytes_sent is None
        for contestant in contestants:
            service.release(contestant.name)
        service.prepare(contestants[0])
        assert service.run(contestants[0].name, 1).step_seconds
    assert len(started) == 3


@pytest.fixture
def emulated() -> Iterator[ClusterSpec]:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    made = ClusterSpec(name=f"test-{secrets.token_hex(4)}", nodes=_nodes(125e6, ("h0", "h1", "h2")), launcher="testbed")
    yield made
    live.down(made, force=True)


@pytest.mark.slow
def test_on_a_testbed_the_bytes_of_servers_are_told(emulated: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    """Replayed, with the optimizer's time at the server; what goes to and from it is twice the model each way."""
    model = load_model(TARGET)
    with TrialService(target=TARGET, model=model, cluster=emulated, folder=tmp_path / "f") as service:
        served = _served(TARGET, emulated)
        service.prepare(served)
        service.run(served.name, 1)
        samples = service.run(served.name, 2)
        assert min(min(steps) for steps in samples.step_seconds) > 0.9 * model.step_seconds
        for counts in (samples.server_bytes_sent, samples.server_bytes_received):
            assert counts is not None
            (count,) = counts
            assert 2 * 2 * model.num_bytes < count < 2 * 2 * model.num_bytes * 1.1
        service.prepare(Contestant(name="stock"))
        idle = service.run("stock", 1).server_bytes_sent
        assert idle is not None
        assert idle[0] < 10_000
    assert len(started) == 3
