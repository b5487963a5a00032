"""Differences between strategies: each told once, none told of what has no meaning."""

from dataclasses import replace

import pytest

from autosync.strategy.codecs import Cast
from autosync.strategy.diff import Difference, diff, format_diff
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors


def _with(strategy: Strategy, position: int, **changes: object) -> Strategy:
    messages = list(strategy.messages)
    messages[position] = replace(messages[position], **changes)
    return replace(strategy, messages=tuple(messages))


def _lines(a: Strategy, b: Strategy) -> list[str]:
    return format_diff(diff(a, b)).splitlines()


def test_a_strategy_does_not_differ_from_itself(strategy: Strategy) -> None:
    assert diff(strategy, strategy) == []
    assert format_diff([]) == "no difference"


def test_order_and_name_are_no_difference(strategy: Strategy) -> None:
    messages = tuple(replace(message, parts=message.parts[::-1]) for message in strategy.messages[::-1])
    partitions = dict(reversed(strategy.partitions.items()))
    assert diff(strategy, Strategy(overlap="forward", partitions=partitions, messages=messages)) == []


@pytest.mark.parametrize(
    ("position", "changes", "line"),
    [
        (1, {"synchroniser": ParameterServer(server="node-0", local_proxy=True)}, "server: node-1 -> node-0"),
        (1, {"synchroniser": ParameterServer(server="node-1")}, "local proxy: yes -> no"),
        (1, {"codec": None}, "codec: cast dtype=float16 -> none"),
        (1, {"codec": Cast()}, "codec: cast dtype=float16 -> cast"),
        (1, {"lane": 0}, "lane: 1 -> 0"),
        (1, {"priority": 5}, "priority: 0 -> 5"),
        (3, {"slice_bytes": None}, "slice bytes: 1 KiB -> none"),
        (3, {"slice_bytes": 1500}, "slice bytes: 1 KiB -> 1500 B"),
        (3, {"synchroniser": Sharded()}, "topology: halving_doubling -> native"),
        (5, {"synchroniser": AllReduce(topology="tree")}, "hierarchical: yes -> no"),
        (0, {"synchroniser": AllReduce(topology="ring")}, "synchroniser: sufficient_factors -> all_reduce"),
    ],
)
def test_each_aspect_is_told_by_its_name(
    position: int, changes: dict[str, object], line: str, strategy: Strategy
) -> None:
    places = ", ".join(strategy.messages[position].parts)
    assert _lines(strategy, _with(strategy, position, **changes)) == [f"{places}: {line}"]


def test_what_only_one_synchroniser_has_is_told_unless_it_is_at_its_default(strategy: Strategy) -> None:
    server = ParameterServer(server="node-0", staleness=1)
    assert _lines(_with(strategy, 8, synchroniser=AllReduce()), _with(strategy, 8, synchroniser=server)) == [
        "table[1]: synchroniser: all_reduce -> parameter_server",
        "table[1]: server: none -> node-0",
        "table[1]: staleness: none -> 1",
    ]


def test_overlap_is_of_the_whole_step(strategy: Strategy) -> None:
    assert _lines(strategy, replace(strategy, overlap="backward")) == ["the whole step: overlap: forward -> backward"]


def test_equal_changes_are_told_once() -> None:
    parts = [f"layer.{index}" for index in range(6)]
    before = Strategy(messages=tuple(Message(parts=(name,)) for name in parts))
    after = Strategy(messages=tuple(Message(parts=(name,), synchroniser=Sharded()) for name in parts))
    change = {"aspect": "synchroniser", "before": "all_reduce", "after": "sharded"}
    assert diff(before, after) == [Difference(**change, places=tuple(parts))]
    assert _lines(before, after) == ["layer.0, layer.1, layer.2 and 3 more: synchroniser: all_reduce -> sharded"]


def test_another_cut_compares_the_variable_as_a_whole() -> None:
    def cut(*servers: str) -> Strategy:
        parts = ["w"] if len(servers) == 1 else [f"w[{index}]" for index in range(len(servers))]
        sizes = tuple(10 for _ in servers)
        return Strategy(
            partitions={"w": Partition(sizes=sizes, axis=1)} if len(servers) > 1 else {},
            messages=tuple(
                Message(parts=(part,), synchroniser=ParameterServer(server=server))
                for part, server in zip(parts, servers, strict=True)
            ),
        )

    assert _lines(cut("a"), cut("b", "a", "b")) == [
        "w: partition: whole -> 3 parts of 10 along axis 1",
        "w: server: a -> [a, b]",
    ]


def test_merging_is_told_by_the_messages_that_share_parts() -> None:
    def grouped(*groups: str) -> Strategy:
        return Strategy(messages=tuple(Message(parts=tuple(group)) for group in groups))

    split, merged = diff(grouped("abc", "de", "fg", "hi"), grouped("a", "bc", "de", "fghi"))
    assert (split.aspect, split.places) == ("messages", ("a", "b", "c"))
    assert (split.before, split.after) == ([["a", "b", "c"]], [["a"], ["b", "c"]])
    assert str(split) == "a, b, c: 1 message -> 2 messages"
    assert str(merged) == "f, g, h, i: 2 messages -> 1 message"
    assert _lines(grouped("ab", "cd"), grouped("ac", "bd")) == [
        "a, b, c, d: 2 messages -> 2 messages, grouped otherwise"
    ]


def test_many_priorities_are_one_line() -> None:
    def ordered(*priorities: int) -> Strategy:
        return Strategy(messages=tuple(Message(parts=(f"v{i}",), priority=p) for i, p in enumerate(priorities)))

    assert _lines(ordered(1, 2, 3, 4, 5, 6), ordered(0, 0, 0, 0, 0, 6)) == [
        "v0, v1, v2 and 2 more: priority: 1 to 5 -> 0"
    ]
    assert len(diff(ordered(1, 2, 3, 4, 5, 6), ordered(0, 0, 0, 0, 0, 6))) == 5
    assert _lines(ordered(1, 2), ordered(2, 2)) == ["v0: priority: 1 -> 2"]


def test_variables_of_one_strategy_only() -> None:
    before = Strategy(messages=(Message(parts=("a",)), Message(parts=("b",), synchroniser=SufficientFactors())))
    after = Strategy(messages=(Message(parts=("b",), synchroniser=SufficientFactors()), Message(parts=("c",))))
    assert _lines(before, after) == ["a: variable: present -> absent", "c: variable: absent -> present"]
