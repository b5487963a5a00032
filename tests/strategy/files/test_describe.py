"""A strategy in words and tables."""

import pytest

from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.codecs import Int8
from autosync.strategy.describe import Totals, describe, in_words, summarise
from autosync.strategy.layers import told_as_layers
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from autosync.strategy.wording import abbreviated, count, format_table, runs


def _on(server: str, *parts: str, **settings: object) -> Message:
    return Message(parts=parts, synchroniser=ParameterServer(server=server, **settings))


def _mixed() -> Strategy:
    """The fully connected layers in two parts each on servers, the rest by all-reduce."""
    cuts = {"fc1": (32, 32), "fc2": (32, 32), "fc3": (5, 5)}
    served = [_on(f"node-{i}", f"{name}[{i}]") for name in cuts for i in range(2)]
    rest = [Message(parts=("table",)), Message(parts=("bias", "norm"))]
    return Strategy(
        partitions={name: Partition(sizes=sizes) for name, sizes in cuts.items()}, messages=(*served, *rest)
    )


def test_a_mixed_strategy_in_words(model: ModelSpec) -> None:
    assert in_words(_mixed(), model) == (
        "the three fully connected layers (fc1, fc2, fc3) go to servers on node-0..1 in 2 parts each, in 6 messages; "
        "the rest is all-reduced in 2 messages"
    )
    assert in_words(_mixed()).startswith("3 variables (fc1, fc2, fc3) go to servers")


def _layered() -> ModelSpec:
    """Two layers with biases, a table, and a norm."""

    def one(position: int, name: str, shape: tuple[int, ...], **fields: object) -> Variable:
        return Variable(name=name, shape=shape, use=position, ready=5 - position, **fields)  # type: ignore[arg-type]

    rows = {"kind": "embedding", "touched_rows": 1.0, "max_touched_rows": 2}
    linear = {"kind": "linear", "factor_rows": 4}
    variables = (
        one(0, "words.weight", (9, 4), **rows),
        one(1, "norm.weight", (4,)),
        one(2, "up.weight", (8, 4), **linear),
        one(3, "up.bias", (8,)),
        one(4, "down.weight", (4, 8), **linear),
        one(5, "down.bias", (4,)),
    )
    segment = Segment(module="all", seconds=0.1, variables=tuple(variable.name for variable in variables))
    timeline = Timeline(device="cpu", source="computed", forward=(), backward=(segment,))
    return ModelSpec(name="m", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["up.weight", "up.bias", "down.weight", "down.bias"], "the two fully connected layers (up, down)"),
        (["up.weight", "up.bias"], "1 of 2 fully connected layers (up)"),
        (["up.weight", "down.bias"], "1 of 2 fully connected layers (up) and down.bias"),
        (["up.bias", "down.bias"], "2 variables (up.bias, down.bias)"),
        (["words.weight", "norm.weight"], "the embedding (words) and norm.weight"),
        (
            ["words.weight", "up.weight", "down.weight", "norm.weight"],
            "the embedding (words), the two fully connected layers (up, down) and norm.weight",
        ),
    ],
)
def test_variables_are_told_as_layers(names: list[str], words: str) -> None:
    assert told_as_layers(names, _layered()) == words


def test_a_layer_goes_with_its_bias() -> None:
    served = [_on("n", f"{name}.weight[{i}]") for name in ("up", "down") for i in range(2)]
    rest = Message(parts=("up.bias", "down.bias"), synchroniser=ParameterServer(server="n"))
    others = Message(parts=("words.weight", "norm.weight"))
    cuts = {"up.weight": Partition(sizes=(4, 4)), "down.weight": Partition(sizes=(2, 2))}
    assert in_words(Strategy(partitions=cuts, messages=(*served, rest, others)), _layered()) == (
        "the embedding (words) and norm.weight are all-reduced in 1 message; "
        "the rest goes to a server on n, 2 of 4 variables in 2 parts, in 5 messages"
    )


def test_each_synchroniser_has_its_words() -> None:
    def words(*messages: Message) -> str:
        return in_words(Strategy(messages=messages))

    def one(synchroniser: object) -> str:
        return words(Message(parts=("a", "b"), synchroniser=synchroniser))

    assert words(Message(parts=("a", "b"))) == "all variables are all-reduced in 1 message"
    assert one(Sharded()) == "all variables are reduce-scattered, updated by shard and all-gathered in 1 message"
    assert one(Periodic(every=4)) == "all variables are averaged every 4 steps in 1 message"
    assert one(SparseGather()) == "all variables gather touched rows in 1 message"
    assert one(SufficientFactors()) == "all variables gather the factors of gradients in 1 message"
    assert words(_on("n", "a", sparse=True), Message(parts=("b", "c"), codec=Int8())) == (
        "a sends touched rows to a server on n; the rest is all-reduced as int8 in 1 message"
    )
    assert words(_on("n", "a[0]"), _on("n", "a[1]"), _on("n", "b")) == (
        "all variables go to a server on n, 1 of 2 variables in 2 parts, in 3 messages"
    )


def test_totals(model: ModelSpec) -> None:
    summary = summarise(_mixed(), model)
    assert summary.total == Totals(num_messages=8, num_variables=6, num_parts=9, num_bytes=model.num_bytes)
    fc_bytes = 4 * (64 * 32 + 64 * 64 + 10 * 64)
    assert summary.by_synchroniser["parameter_server"] == Totals(
        num_messages=6, num_variables=3, num_parts=6, num_bytes=fc_bytes
    )
    assert {name: totals.num_bytes for name, totals in summary.by_server.items()} == {
        "node-0": fc_bytes // 2,
        "node-1": fc_bytes // 2,
    }
    assert summarise(_mixed()).total.num_bytes is None


def test_the_whole_description(model: ModelSpec) -> None:
    strategy = Strategy(
        name="try",
        overlap="forward",
        messages=(
            _on("node-1", "fc1", "fc2", "fc3"),
            Message(parts=("bias", "norm", "table"), lane=1, priority=2, slice_bytes=1024),
        ),
    )
    assert (
        describe(strategy, model)
        == """\
try: the three fully connected layers (fc1, fc2, fc3) go to a server on node-1 in 1 message; \
the rest is all-reduced in 1 message

class: exact; transfers may last until the next use of each parameter; 2 lanes; priorities 0 to 2; 1 message in slices

synchroniser         bytes  variables  parts  messages
parameter_server  27.14 kB          3      3         1
all_reduce        3.496 kB          3      3         1
total             30.63 kB          6      6         2

server     bytes  variables  parts  messages
node-1  27.14 kB          3      3         1

message     bytes  synchroniser                    slices  lane  priority  parts
      0  27.14 kB  parameter_server server=node-1             0         0  fc1, fc2, fc3
      1  3.496 kB  all_reduce                      1 KiB      1         2  bias, norm, table"""
    )


def test_long_strategies_are_abbreviated_unless_asked_for_in_full() -> None:
    strategy = Strategy(messages=tuple(Message(parts=(f"v{index}",)) for index in range(100)))
    assert describe(strategy).endswith("v19\n… and 80 messages more (--full shows all)")
    assert "more" not in describe(strategy, full=True)
    assert describe(strategy, full=True).endswith("v99")


def test_servers_are_listed_in_the_order_of_their_numbers() -> None:
    strategy = Strategy(messages=tuple(_on(f"node-{index}", f"v{index}") for index in (10, 9, 11, 2)))
    assert list(summarise(strategy).by_server) == ["node-2", "node-9", "node-10", "node-11"]
    assert "servers on node-2, node-9..11 in" in in_words(strategy)


def test_words_for_lists() -> None:
    assert count(1, "message") == "1 message"
    assert count(0, "message") == "0 messages"
    assert count(2, "class") == "2 classes"
    assert abbreviated(["a", "b", "c", "d"]) == "a, b, c, d"
    assert abbreviated(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert runs(["a", "n7", "n8", "n9", "m1", "n10"]) == "a, n7..9, m1, n10"


def test_tables_leave_out_empty_columns() -> None:
    assert format_table([("x", "", "1"), ("yy", "", "22")], header=("name", "note", "n"), right=("n",)) == (
        "name   n\nx      1\nyy    22"
    )
