"""The rules of the presets beside DDP, each on a case worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.poseidon import factors_are_fewer
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


def _servers(strategy: Strategy) -> dict[str, str]:
    """The server of each part."""
    found: dict[str, str] = {}
    for message in strategy.messages:
        assert isinstance(message.synchroniser, ParameterServer)
        (part,) = message.parts
        found[part] = message.synchroniser.server
    return found


def test_all_reduce_per_variable(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("a", 3),
        variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3),
        variable("b", 3),
    )
    ring = AllReduce(topology="ring")
    assert build_preset("all_reduce_per_variable", spec, cluster([1, 1, 1]), topology="ring").messages == (
        Message(parts=("b",), synchroniser=ring),
        Message(parts=("table",), synchroniser=SparseGather()),
        Message(parts=("a",), synchroniser=ring),
    )


def test_hierarchical(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 10), variable("b", 10), variable("c", 10))
    synchroniser = AllReduce(hierarchical=True)
    assert build_preset("hierarchical", spec, cluster([2, 1]), cap_bytes=60).messages == (
        Message(parts=("c", "b"), synchroniser=synchroniser),
        Message(parts=("a",), synchroniser=synchroniser),
    )
    with pytest.raises(DoesNotApplyError, match="small has one rank on every node"):
        build_preset("hierarchical", spec, cluster([1, 1, 1]))
    with pytest.raises(DoesNotApplyError, match="small has one node"):
        build_preset("hierarchical", spec, cluster([4]))


def test_sharded(model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]) -> None:
    variables = (
        variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3),
        variable("a", 10),
        variable("b", 10),
    )
    assert build_preset("sharded", model(*variables), cluster([1, 1]), cap_bytes=60).messages == (
        Message(parts=("b", "a"), synchroniser=Sharded()),
        Message(parts=("table",), synchroniser=Sharded()),
    )
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset("sharded", model(*variables, optimizer=optimizers["lamb"]), cluster([1, 1]))


def test_variables_go_to_the_server_that_is_done_first(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(*(variable(name, size) for name, size in {"a": 40, "b": 30, "c": 20, "d": 10, "e": 10}.items()))
    equal = build_preset("ps_load_balanced", spec, cluster([1, 1]))
    # a|b, then c to n1 (30 + 20 against 40 + 20), d to n0 (50 against 60), e to n0 (60 each: the first of equals).
    assert _servers(equal) == {"a": "n0", "b": "n1", "c": "n1", "d": "n0", "e": "n0"}
    # n1 is three times as fast: a 40/3, b 70/3, c 20 on n0, d 80/3 on n1, e 30 on either.
    unequal = build_preset("ps_load_balanced", spec, cluster([1, 1], gigabits=[1, 3]))
    assert _servers(unequal) == {"a": "n1", "b": "n1", "c": "n0", "d": "n1", "e": "n0"}


def test_nodes_without_devices_serve_where_there_are_any(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 4), variable("b", 4), variable("c", 4))
    strategy = build_preset("ps_load_balanced", spec, cluster([1, 1, 1], servers=2))
    assert _servers(strategy) == {"a": "s0", "b": "s1", "c": "s0"}
    on_nccl = build_preset("ps_load_balanced", spec, cluster([1, 1], servers=2, backend="nccl"))
    assert _servers(on_nccl) == {"a": "n0", "b": "n1", "c": "n0"}, "nccl knows devices only"


@pytest.mark.parametrize("name", ["ps_load_balanced", "ps_partitioned", "ps_uneven_partitioned", "poseidon", "ssp"])
def test_each_server_has_a_lane_as_far_as_eight_go(
    name: str, model: Models, variable: Variables, cluster: Clusters
) -> None:
    """So that no server waits for another, save where there are more servers than lanes."""
    # A linear variable, for Poseidon needs one, but with so many factors that it goes through servers.
    spec = model(variable("fc", 8, 8, kind="linear", factor_rows=9000), *(variable(f"w{i}", 64) for i in range(12)))
    for nodes, num_servers, prefix in (
        (cluster([1, 1, 1]), 3, "n"),
        (cluster([1, 1], servers=2), 2, "s"),
        (cluster([1] * 10), 10, "n"),
        (cluster([1] * 10, backend="nccl"), 10, "n"),
    ):
        strategy = build_preset(name, spec, nodes)
        lanes = {*zip(_servers(strategy).values(), (message.lane for message in strategy.messages), strict=True)}
        assert lanes == {(f"{prefix}{position}", position % 8) for position in range(num_servers)}


def test_tables_at_two_servers_have_two_lanes(model: Models, variable: Variables, cluster: Clusters) -> None:
    tables = (variable(name, 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3) for name in ("one", "two"))
    messages = build_preset("parallax", model(*tables, variable("w", 4)), cluster([1, 1])).messages
    assert [(message.parts, message.lane) for message in messages] == [(("one",), 0), (("two",), 1), (("w",), 0)]


def test_a_table_counts_by_the_rows_that_travel(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("table", 10_000, 16, kind="embedding", touched_rows=3.0, max_touched_rows=4),
        variable("a", 40),
        variable("b", 40),
    )
    strategy = build_preset("ps_load_balanced", spec, cluster([1, 1]))
    # Three rows of 64 bytes and an index of 8 are 216 bytes; a and b are 160 each.
    assert _servers(strategy) == {"table": "n0", "a": "n1", "b": "n1"}
    assert strategy.messages[0].synchroniser == ParameterServer(server="n0", sparse=True)
    assert strategy.messages[1].synchroniser == ParameterServer(server="n1", sparse=False)


def test_an_optimizer_that_sees_whole_parameters_stays_with_the_workers(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    spec = model(variable("a", 4), optimizer=optimizers["lamb"])
    strategy = build_preset("ps_load_balanced", spec, cluster([1, 1]), local_proxy=True)
    assert strategy.messages[0].synchroniser == ParameterServer(server="n0", update="worker", local_proxy=True)
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset("ps_partitioned", spec, cluster([1, 1]))


def test_variables_are_cut_evenly_over_the_servers(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("w", 8, 3), variable("b", 2), variable("scale"))
    strategy = build_preset("ps_partitioned", spec, cluster([1, 1, 1]))
    assert strategy.partitions == {"w": Partition(sizes=(3, 3, 2)), "b": Partition(sizes=(1, 1))}
    assert _servers(strategy) == {"w[0]": "n0", "w[1]": "n1", "w[2]": "n2", "b[0]": "n2", "b[1]": "n2", "scale": "n2"}


def test_autodist_cuts_by_the_smallest_divisor(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("even", 8), variable("prime", 5), variable("nine", 9), variable("one", 1), variable("s"))
    strategy = build_preset("ps_partitioned", spec, cluster([1, 1]), parts="smallest_divisor")
    assert strategy.partitions == {
        "even": Partition(sizes=(4, 4)),
        "prime": Partition(sizes=(1, 1, 1, 1, 1)),
        "nine": Partition(sizes=(3, 3, 3)),
    }
    with pytest.raises(DoesNotApplyError, match="big would be cut into 4099 parts"):
        build_preset("ps_partitioned", model(variable("big", 4099)), cluster([1, 1]), parts="smallest_divisor")


def test_parallax(model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]) -> None:
    variables = (
        variable("a", 4),
        variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3),
        variable("b", 4),
        variable("c", 4),
        variable("half", 4, dtype="float16"),
    )
    assert build_preset("parallax", model(*variables), cluster([1, 1]), chunk_size=3).messages == (
        Message(parts=("table",), synchroniser=ParameterServer(server="n0", sparse=True)),
        Message(parts=("a", "b")),
        Message(parts=("c",)),
        Message(parts=("half",)),
    )
    dense = build_preset("parallax", model(*variables, optimizer=optimizers["adam"]), cluster([1, 1]))
    assert [message.parts for message in dense.messages] == [("a", "table", "b", "c"), ("half",)]
    assert {message.synchroniser for message in dense.messages} == {AllReduce()}


@pytest.mark.parametrize(
    ("factor_rows", "num_workers", "num_servers", "expected"),
    [
        # The paper's example: 4096 x 4096, batches of 32, 8 nodes that work and serve: 3.7 M against 58.7 M.
        (32, 8, 8, True),
        # 2 * 512 * 7 * 8192 = 58,720,256 = 2 * 4096 * 4096 * 14 / 8: as many is few enough, one row more is not.
        (512, 8, 8, True),
        (513, 8, 8, False),
        # One server has all of the traffic: 2 * 4096 * 4096 * 7.
        (2048, 8, 1, True),
        (2049, 8, 1, False),
        (10**6, 1, 1, True),
    ],
)
def test_the_formula_of_poseidon(*, factor_rows: int, num_workers: int, num_servers: int, expected: bool) -> None:
    matrix = Variable(name="fc", shape=(4096, 4096), kind="linear", use=0, ready=0, factor_rows=factor_rows)
    assert factors_are_fewer(matrix, num_workers=num_workers, num_servers=num_servers) is expected


def test_poseidon(model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]) -> None:
    variables = (
        variable("conv", 4, 4),
        variable("fc", 64, 64, kind="linear", factor_rows=2),
        variable("small", 2, 2, kind="linear", factor_rows=8),
    )
    strategy = build_preset("poseidon", model(*variables), cluster([1, 1, 1]), pair_bytes=30)
    assert strategy.partitions == {"conv": Partition(sizes=(2, 1, 1))}
    assert [(m.parts, m.synchroniser) for m in strategy.messages] == [
        (("conv[0]",), ParameterServer(server="n0")),
        (("conv[1]",), ParameterServer(server="n1")),
        (("conv[2]",), ParameterServer(server="n2")),
        (("fc",), SufficientFactors()),
        (("small",), ParameterServer(server="n1")),
    ]
    whole = build_preset("poseidon", model(*variables, optimizer=optimizers["lamb"]), cluster([1, 1, 1]), pair_bytes=30)
    assert whole.partitions == {}
    with pytest.raises(DoesNotApplyError, match="small has no linear variable"):
        build_preset("poseidon", model(variables[0]), cluster([1, 1]))
    with pytest.raises(DoesNotApplyError, match="small accumulates 2 microsteps"):
        build_preset("poseidon", model(*variables, accumulation_steps=2), cluster([1, 1]))


def test_bytescheduler(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("table", 50, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3),  # 400 B
        variable("a.weight", 500, use=1),  # 2000 B
        variable("a.bias", 50, use=1),  # 200 B
        variable("b", 650, use=2),  # 2600 B
    )
    strategy = build_preset("bytescheduler", spec, cluster([1, 1]), slice_bytes=1024, num_lanes=2)
    assert strategy.overlap == "forward"
    # Of 5200 B the first half is the table and a; priority is the module's turn in the next forward pass.
    assert strategy.messages == (
        Message(parts=("b",), priority=2, lane=1, slice_bytes=1024),
        Message(parts=("a.bias",), priority=1, lane=0, slice_bytes=1024),
        Message(parts=("a.weight",), priority=1, lane=0, slice_bytes=1024),
        Message(parts=("table",), synchroniser=SparseGather(), priority=0, lane=0),
    )


def test_bytescheduler_fills_its_lanes_evenly(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(*(variable(f"w{index}", 100) for index in range(8)))
    strategy = build_preset("bytescheduler", spec, cluster([1, 1]))
    lanes = {message.parts[0]: message.lane for message in strategy.messages}
    assert [lanes[f"w{index}"] for index in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
