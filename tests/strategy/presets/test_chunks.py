"""AutoDist's all-reduce builders, and its parameter servers that are not balanced, on cases worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.cuts import equal_sizes, smallest_divisor, smallest_non_divisor
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sparse_gather import SparseGather

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]

ROWS = {"kind": "embedding", "touched_rows": 2.0, "max_touched_rows": 3}
CUTTING = ("partitioned_all_reduce", "random_axis_partitioned_all_reduce", "ps_uneven_partitioned")


def _groups(strategy: Strategy) -> list[tuple[str, ...]]:
    return [message.parts for message in strategy.messages]


def test_groups_of_consecutive_variables(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("a", 4),
        variable("table", 9, 2, **ROWS),
        variable("b", 4),
        variable("c", 4),
        variable("half", 4, dtype="float16"),
        variable("d", 4),
    )
    tree = AllReduce(topology="tree")
    # Three and three: the table is one of the first, and the half another's.
    assert build_preset("all_reduce_chunks", spec, cluster([1, 1, 1]), chunk_size=3, topology="tree").messages == (
        Message(parts=("table",), synchroniser=SparseGather()),
        Message(parts=("a", "b"), synchroniser=tree),
        Message(parts=("c", "d"), synchroniser=tree),
        Message(parts=("half",), synchroniser=tree),
    )


def test_groups_of_one_are_all_reduce_per_variable(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec, two = model(*(variable(name, 4) for name in "abc")), cluster([1, 1])
    one = build_preset("all_reduce_chunks", spec, two, chunk_size=1)
    assert strategy_id(one, spec, two) == strategy_id(build_preset("all_reduce_per_variable", spec, two), spec, two)


def test_parts_are_counted_when_groups_are_numbered(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("even", 8, 3), variable("prime", 5), variable("scale"), variable("one", 1))
    strategy = build_preset("partitioned_all_reduce", spec, cluster([1, 1]), chunk_size=3)
    assert strategy.partitions == {"even": Partition(sizes=(4, 4)), "prime": Partition(sizes=(1, 1, 1, 1, 1))}
    assert _groups(strategy) == [
        ("even[0]", "even[1]", "prime[0]"),
        ("prime[1]", "prime[2]", "prime[3]"),
        ("prime[4]", "scale", "one"),
    ]


def test_rows_of_parts_travel_apart(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("table", 9, 2, **ROWS), variable("b", 4))
    strategy = build_preset("partitioned_all_reduce", spec, cluster([1, 1]))
    assert strategy.partitions["table"] == Partition(sizes=(3, 3, 3))
    assert strategy.messages == (
        *(Message(parts=(f"table[{index}]",), synchroniser=SparseGather()) for index in range(3)),
        Message(parts=("b[0]", "b[1]")),
    )


def test_an_axis_longer_than_one_is_drawn(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("either", 6, 35),
        variable("second", 1, 9),
        variable("none", 1, 1),
        variable("scale"),
        variable("table", 9, 4, **ROWS),
    )
    two = cluster([1, 1])
    drawn = [build_preset("random_axis_partitioned_all_reduce", spec, two, seed=seed).partitions for seed in range(20)]
    # Two parts of six, five of thirty-five.
    assert {partitions["either"] for partitions in drawn} == {
        Partition(axis=0, sizes=(3, 3)),
        Partition(axis=1, sizes=(7, 7, 7, 7, 7)),
    }
    for partitions in drawn:
        assert partitions.keys() == {"either", "second", "table"}
        assert partitions["second"] == Partition(axis=1, sizes=(3, 3, 3))
        assert partitions["table"] == Partition(axis=0, sizes=(3, 3, 3))
    again = build_preset("random_axis_partitioned_all_reduce", spec, two, seed=7).partitions
    assert again == drawn[7]
    assert build_preset("random_axis_partitioned_all_reduce", spec, two).partitions == drawn[0]


def test_first_axis_drawn_everywhere_is_partitioned_all_reduce(
    model: Models, variable: Variables, cluster: Clusters
) -> None:
    spec, two = model(variable("a", 8), variable("b", 5)), cluster([1, 1])
    names = ("partitioned_all_reduce", "random_axis_partitioned_all_reduce")
    first, second = (strategy_id(build_preset(name, spec, two, chunk_size=2), spec, two) for name in names)
    assert first == second


def test_all_variables_at_one_server(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 4), variable("table", 9, 2, **ROWS))

    def servers(nodes: ClusterSpec, **options: Any) -> set[str]:
        strategy = build_preset("ps", spec, nodes, **options)
        assert _groups(strategy) == [("a",), ("table",)]
        assert {message.lane for message in strategy.messages} == {0}
        assert [getattr(message.synchroniser, "sparse", None) for message in strategy.messages] == [False, True]
        return {str(getattr(message.synchroniser, "server", "")) for message in strategy.messages}

    assert servers(cluster([1, 1])) == {"n0"}
    assert servers(cluster([1, 1], servers=2)) == {"s0"}
    assert servers(cluster([1, 1], servers=2, backend="nccl")) == {"n0"}
    assert servers(cluster([1, 1], servers=2), server="n1") == {"n1"}
    with pytest.raises(InputError, match=r"preset.ps.server: 'n7' is no server \(one of n0, n1\)"):
        build_preset("ps", spec, cluster([1, 1]), server="n7")


def test_a_server_that_cannot_serve_is_refused(model: Models, variable: Variables, cluster: Clusters) -> None:
    with pytest.raises(DoesNotApplyError, match="s0 has no device"):
        build_preset("ps", model(variable("a", 4)), cluster([1, 1], servers=1, backend="nccl"), server="s0")


def test_uneven_parts_by_the_smallest_number_that_does_not_divide(
    model: Models, variable: Variables, cluster: Clusters
) -> None:
    names = {"eight": 8, "seven": 7, "twelve": 12, "two": 2, "one": 1}
    spec = model(*(variable(name, size) for name, size in names.items()), variable("scale"))
    strategy = build_preset("ps_uneven_partitioned", spec, cluster([1, 1]), local_proxy=True)
    assert strategy.partitions == {
        "eight": Partition(sizes=(3, 3, 2)),
        "seven": Partition(sizes=(4, 3)),
        "twelve": Partition(sizes=(3, 3, 2, 2, 2)),
        "two": Partition(sizes=(1, 1)),
    }
    # eight: n0, n1, n0; 20 against 12 bytes: 16 to n1, 12 to n0; 32 against 28 …
    assert [getattr(m.synchroniser, "server", "") for m in strategy.messages[:5]] == ["n0", "n1", "n0", "n1", "n0"]
    assert strategy.messages[0].synchroniser == ParameterServer(server="n0", local_proxy=True)


@pytest.mark.parametrize("name", CUTTING)
def test_what_cuts_needs_an_elementwise_optimizer(
    name: str, model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset(name, model(variable("a", 4), optimizer=optimizers["lamb"]), cluster([1, 1]))


@pytest.mark.parametrize("name", CUTTING[:2])
def test_too_many_parts_are_refused(name: str, model: Models, variable: Variables, cluster: Clusters) -> None:
    with pytest.raises(DoesNotApplyError, match="big would be cut into 4099 parts"):
        build_preset(name, model(variable("big", 4099)), cluster([1, 1]))


def test_divisors() -> None:
    assert [smallest_divisor(number) for number in (1, 2, 3, 4, 9, 35, 49, 138_493)] == [1, 2, 3, 2, 3, 5, 7, 138_493]
    assert [smallest_non_divisor(number) for number in (1, 2, 3, 4, 6, 12, 60, 2520)] == [1, 2, 2, 3, 4, 5, 7, 11]
    assert equal_sizes(10, 4) == (4, 4, 2)
    assert equal_sizes(8, 4) == (4, 4)
