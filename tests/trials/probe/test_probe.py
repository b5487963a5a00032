"""Real probes, small ones: what they find has the right shape, and whatever happens nothing is left."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosync.cli.cluster import cluster as command
from autosync.errors import InputError, OperationError
from autosync.launchers.local import LocalLaunch
from autosync.launchers.ray import PIN, RayLauncher, bundles_of
from autosync.specs.calibration import Calibration
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.testbed.layout import cluster_key
from autosync.testbed.live import down
from autosync.testbed.requirements import find_folders
from autosync.trials import probe as room
from autosync.trials.probe import Finding, Probed, ProbeSettings, probe

TINY = ProbeSettings(
    stream_seconds=0.03,
    settle_seconds=0.01,
    num_windows=2,
    num_rounds=1,
    num_trips=2,
    num_batches=2,
    num_computations=2,
    curve_bytes=(4096, 200_000),
    point_seconds=0.01,
    num_steps=3,
    pause_seconds=0.001,
    timeout_seconds=60.0,
)


@pytest.fixture
def pair(forked_ranks: None) -> ClusterSpec:
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    return ClusterSpec(name="pair", nodes=(node,))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ids of the processes that were started; none is left at the end."""
    ids: list[int] = []
    add = LocalLaunch.add

    def watched(self: LocalLaunch, process: object) -> None:
        add(self, process)  # type: ignore[arg-type]
        ids.append(self._running[-1].pid)

    monkeypatch.setattr(LocalLaunch, "add", watched)
    yield ids
    for process in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def _check_shape(cluster: ClusterSpec, found: Calibration) -> None:
    assert [node.name for node in found.nodes] == [node.name for node in cluster.nodes]
    assert {curve.algorithm for curve in found.curves} == {"native", "ring", "tree", "halving_doubling"}
    assert all([point.num_bytes for point in curve.points] == [4096, 200_000] for curve in found.curves)
    assert found.step_seconds is not None
    assert found.step_seconds.value > TINY.pause_seconds
    assert [len(node.compute_seconds) for node in found.nodes] == [max(1, node.devices) for node in cluster.nodes]


def test_two_hosts_of_a_testbed(two_hosts: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    server = replace(two_hosts.nodes[1], role="server", devices=0, name="s")
    cluster = replace(two_hosts, nodes=(two_hosts.nodes[0], replace(two_hosts.nodes[0], name="b", host="b"), server))
    stages: list[str] = []
    probed = probe(cluster, settings=TINY, progress=stages.append)
    assert len(started) == 3
    _check_shape(cluster, probed.calibration)
    assert probed.calibration.emulated
    assert probed.calibration.num_processors == os.cpu_count()
    for node in probed.calibration.nodes:
        assert node.rate_out is not None
        assert node.rate_in is not None
        assert node.rate_out_both is not None
        assert node.latency_seconds is not None
        assert node.message_cpu_seconds is not None
        assert node.rate_within is None
        # Where a testbed's traffic has to go.
        assert node.interface == "eth0"
    assert stages[0] == "starting 3 ranks"
    assert find_folders().existing(cluster_key(cluster)) == ()
    save_cluster(tmp_path / "calibrated.yaml", probed.cluster)
    again = load_cluster(tmp_path / "calibrated.yaml")
    assert again == probed.cluster
    assert replace(again, calibration=None) == cluster


@pytest.mark.slow
def test_four_hosts_are_searched_for_shared_links(
    emulated: Callable[[int], ClusterSpec], started: list[int], tmp_path: Path
) -> None:
    stages: list[str] = []
    probed = probe(emulated(4), settings=replace(TINY, most_loads=2), progress=stages.append)
    assert [stage for stage in stages if stage.startswith("links that")] == [
        f"links that nodes may share, {number} of 2" for number in (1, 2)
    ]
    assert probed.search is not None
    assert probed.search.num_loads >= 2
    assert len(probed.cluster.racks) == len(probed.calibration.racks) or probed.search.uplinks
    save_cluster(tmp_path / "measured.yaml", probed.cluster)
    assert load_cluster(tmp_path / "measured.yaml") == probed.cluster


@pytest.mark.slow
def test_no_links_are_searched_where_the_file_states_racks(
    emulated: Callable[[int], ClusterSpec], started: list[int]
) -> None:
    cluster = emulated(4)
    nodes = tuple(replace(node, rack="east" if index < 2 else None) for index, node in enumerate(cluster.nodes))
    cluster = replace(cluster, nodes=nodes, racks=(Rack(name="east", uplink_out=12.5e6, uplink_in=12.5e6),))
    try:
        probed = probe(cluster, settings=TINY)
    finally:
        down(cluster, force=True)
    assert probed.search is None
    assert [rack.name for rack in probed.calibration.racks] == ["east"]
    assert probed.cluster.racks == cluster.racks


def test_one_node_has_ranks_but_no_links(pair: ClusterSpec, started: list[int]) -> None:
    probed = probe(pair, settings=TINY)
    _check_shape(pair, probed.calibration)
    (node,) = probed.calibration.nodes
    assert node.rate_within is not None
    assert node.rate_out is None
    assert node.interface is None
    assert not probed.calibration.emulated
    assert probed.calibration.num_processors is None


def test_a_server_may_stand_before_the_workers(pair: ClusterSpec, started: list[int]) -> None:
    server = replace(pair.nodes[0], name="store", role="server", devices=0)
    cluster = replace(pair, nodes=(server, *pair.nodes))
    probed = probe(cluster, settings=TINY)
    assert len(started) == 3
    _check_shape(cluster, probed.calibration)
    assert all(node.rate_out is not None for node in probed.calibration.nodes)


def test_no_devices_are_reserved_for_servers(pair: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[object] = []

    def hold(_launcher: RayLauncher, cluster: ClusterSpec) -> None:
        reserved.extend(bundles_of(cluster))
        raise OperationError("that is enough")

    monkeypatch.setattr(RayLauncher, "hold", hold)
    server = replace(pair.nodes[0], name="store", host="cpu-1", role="server", devices=0)
    cluster = replace(pair, nodes=(*pair.nodes, server), launcher="ray", backend="nccl")
    with pytest.raises(OperationError, match="that is enough"):
        probe(cluster, settings=TINY)
    assert reserved == [{"CPU": 2, "GPU": 2, "node:localhost": PIN}, {"CPU": 1, "node:cpu-1": PIN}]


def test_a_curve_ends_before_sizes_that_take_long(pair: ClusterSpec, started: list[int]) -> None:
    curves = probe(pair, settings=replace(TINY, most_point_seconds=0.0)).calibration.curves
    assert [[point.num_bytes for point in curve.points] for curve in curves] == [[4096]] * 4


def test_an_interrupt_ends_the_ranks(pair: ClusterSpec, started: list[int]) -> None:
    def interrupt(stage: str) -> None:
        if stage == "compute":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(pair, settings=TINY, progress=interrupt)
    assert len(started) == 2


def test_a_probe_that_takes_too_long_says_where_it_was(pair: ClusterSpec, started: list[int]) -> None:
    with pytest.raises(OperationError, match=r"not done within 0\.3 s: .*rank [01] is "):
        probe(pair, settings=replace(TINY, num_computations=10**6, timeout_seconds=0.3))


def test_a_rank_that_ends_early_is_told_with_its_last_words(
    pair: ClusterSpec, started: list[int], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no luck today\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(OperationError, match=r"rank 0 ended at its start: exit code 3: no luck today"):
        probe(replace(pair, python=str(python)), settings=TINY)


def test_what_a_rank_raises_is_the_reason(pair: ClusterSpec, started: list[int]) -> None:
    # Too many elements for any memory.
    with pytest.raises(OperationError, match=r"rank [01]: RuntimeError"):
        probe(pair, settings=replace(TINY, curve_bytes=(2**62,)))


def test_a_cluster_elsewhere_is_refused_before_anything_runs(started: list[int]) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"10.0.0.{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in (1, 2))
    with pytest.raises(InputError, match=r"n1 is on 10\.0\.0\.1"):
        probe(ClusterSpec(name="far", nodes=nodes), settings=TINY)
    assert not started


@pytest.fixture
def fast_probe(monkeypatch: pytest.MonkeyPatch, pair: ClusterSpec, tmp_path: Path) -> Path:
    """A cluster file whose probe, by the command, is a small one with a warning and with a curve that ends early."""

    def small(cluster: ClusterSpec, *, settings: ProbeSettings, **others: object) -> Probed:
        assert settings.timeout_seconds == 80.0
        probed = probe(cluster, settings=TINY, **others)  # type: ignore[arg-type]
        native, ring, *_ = probed.calibration.curves
        calibration = replace(probed.calibration, curves=(native, replace(ring, points=ring.points[:1])))
        probed = replace(probed, cluster=replace(probed.cluster, calibration=calibration))
        return replace(probed, findings=(Finding(kind="noisy", subject="this", message="hums"),))

    monkeypatch.setattr(room, "probe", small)
    save_cluster(tmp_path / "pair.yaml", pair)
    return tmp_path / "pair.yaml"


def test_json_is_one_document_and_the_file_is_calibrated(fast_probe: Path, started: list[int], tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    result = CliRunner().invoke(command, ["probe", str(fast_probe), "-o", str(output), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["warnings"] == [{"kind": "noisy", "subject": "this", "message": "hums"}]
    assert document["cluster"]["calibration"]["nodes"][0]["name"] == "this"
    assert load_cluster(output).calibration is not None
    assert f"written: {output}" in result.stderr
    again = CliRunner().invoke(command, ["probe", str(fast_probe), "-o", str(output)])
    assert isinstance(again.exception, InputError)
    assert "exists" in str(again.exception)


def test_people_see_tables_and_warnings(fast_probe: Path, started: list[int]) -> None:
    result = CliRunner().invoke(command, ["probe", str(fast_probe)])
    assert result.exit_code == 0, result.output
    for words in ("all_reduce  native", "mixed steps: ", "pair, real: probed in", "warning: this: hums"):
        assert words in result.stdout
    rows = [line[10:].split() for line in result.stdout.splitlines() if line[:10].rstrip().endswith("kB")]
    assert [len(row) for row in rows] == [4, 2], "a time and its unit from each curve that has the size"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["no-such-cluster"], "no-such-cluster"), (["2-hosts", "--timeout", "soon"], "'soon' is no time")],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], told: str, started: list[int]) -> None:
    result = CliRunner().invoke(command, ["probe", *arguments])
    assert result.exit_code != 0
    assert told in str(result.exception) + result.stderr
    assert not started
