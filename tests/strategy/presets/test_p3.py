"""P3: slices dealt in turn, on a case worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, all_parts
from autosync.strategy.synchronisers.parameter_server import ParameterServer

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


def _at(server: str) -> ParameterServer:
    return ParameterServer(server=server, update="worker")


def test_slices_are_dealt_to_servers_in_turn(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("a", 5, 1024),  # five slices: n0, n1, n0, n1, n0
        variable("b", 1000),  # the sixth: n1
        variable("c", 3, 1000),  # three more: n0, n1, n0
        variable("half", 1024, dtype="float16"),  # the tenth: n1
        variable("row", 1, 2048),  # n0 and n1, but one row
        variable("scale"),  # the thirteenth: n0
    )
    strategy = build_preset("p3", spec, cluster([1, 1]), slice_parameters=1024, num_lanes=2)
    assert strategy.overlap == "forward"
    assert strategy.partitions == {"a": Partition(sizes=(3, 2)), "c": Partition(sizes=(2, 1))}
    assert strategy.messages == (
        Message(parts=("a[0]",), synchroniser=_at("n0"), priority=0, lane=0, slice_bytes=4096),
        Message(parts=("a[1]",), synchroniser=_at("n1"), priority=0, lane=1, slice_bytes=4096),
        Message(parts=("b",), synchroniser=_at("n1"), priority=1, lane=1),
        Message(parts=("c[0]",), synchroniser=_at("n0"), priority=2, lane=0, slice_bytes=4096),
        Message(parts=("c[1]",), synchroniser=_at("n1"), priority=2, lane=1),
        Message(parts=("half",), synchroniser=_at("n1"), priority=3, lane=1),
        Message(parts=("row",), synchroniser=_at("n0"), priority=4, lane=0, slice_bytes=4096),
        Message(parts=("scale",), synchroniser=_at("n0"), priority=5, lane=0),
    )


def test_each_server_has_a_lane_for_each_band(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(*(variable(f"w{index}", 4, 1024) for index in range(8)))

    def lanes(**options: Any) -> dict[str, int]:
        strategy = build_preset("p3", spec, cluster([1, 1]), slice_parameters=2048, **options)
        return {message.parts[0]: message.lane for message in strategy.messages}

    # Two servers: four bands of two variables are eight lanes.
    assert [lanes()[f"w{index}[0]"] for index in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [lanes()[f"w{index}[1]"] for index in range(8)] == [1, 1, 3, 3, 5, 5, 7, 7]
    assert [lanes(num_lanes=5)[f"w{index}[1]"] for index in range(8)] == [1, 1, 1, 1, 3, 3, 3, 3]
    assert set(lanes(num_lanes=1).values()) == {0}


def test_tables_are_dense_and_whole_under_an_optimizer_that_sees_them_whole(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    table = variable("table", 100, 64, kind="embedding", touched_rows=2.0, max_touched_rows=3)
    cut = build_preset("p3", model(table), cluster([1, 1]), slice_parameters=1024)
    assert {getattr(message.synchroniser, "sparse", None) for message in cut.messages} == {False}
    assert cut.partitions == {"table": Partition(sizes=(50, 50))}
    whole = build_preset(
        "p3", model(table, optimizer=optimizers["lamb"]), cluster([1, 1]), slice_parameters=1024, num_lanes=1
    )
    assert whole.messages == (Message(parts=("table",), synchroniser=_at("n0"), slice_bytes=4096),)


def test_servers_share_the_bytes_of_a_model() -> None:
    model, cluster = load_model("bert_small"), load_cluster("8-hosts")
    strategy = build_preset("p3", model, cluster)
    parts = all_parts(strategy, model)
    loads = dict.fromkeys((node.name for node in cluster.nodes), 0)
    for message in strategy.messages:
        assert isinstance(message.synchroniser, ParameterServer)
        loads[message.synchroniser.server] += sum(parts[name].num_bytes for name in message.parts)
        assert message.slice_bytes == 160_000 or sum(parts[name].num_bytes for name in message.parts) <= 160_000
    assert max(loads.values()) < 1.05 * model.num_bytes / 8


def test_refusals(model: Models, variable: Variables, cluster: Clusters) -> None:
    with pytest.raises(DoesNotApplyError, match="nccl runs transfers in one static order"):
        build_preset("p3", model(variable("a", 4)), cluster([1, 1], backend="nccl"))
    with pytest.raises(InputError, match=r"1000 is no slice_parameters \(a whole number, 1024 or more\)"):
        build_preset("p3", model(variable("a", 4)), cluster([1, 1]), slice_parameters=1000)
