"""Strategy files: what is written reads back, and every mistake has its line."""

import json
import random
from pathlib import Path

import pytest
import yaml

from autosync.errors import DocumentError, DoesNotApplyError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.describe import describe
from autosync.strategy.diff import diff, format_diff
from autosync.strategy.files import dump_strategy, load_strategy, load_strategy_for, save_strategy
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from tests.helpers.mutations import mutations

WRITTEN = """\
schema: autosync.strategy/1
name: all aspects
overlap: forward
partitions:
  fc1:
    sizes: [20, 44]
  fc2:
    axis: 1
    sizes: [10, 10, 20, 24]
  table:
    sizes: [60, 40]
messages:
- parts: ['fc1[0]']
  synchroniser: {kind: sufficient_factors, topology: ring}
  priority: 3
- parts: ['fc1[1]', 'fc2[2]']
  synchroniser: {kind: parameter_server, server: node-1, local_proxy: true}
  codec: {kind: cast, dtype: float16}
  lane: 1
- parts: ['fc2[0]']
  synchroniser: {kind: parameter_server, server: node-2, staleness: 2}
  codec: {kind: int8, block: 64, error_feedback: true}
- parts: ['fc2[1]']
  synchroniser: {kind: sharded, topology: halving_doubling}
  slice_bytes: 1 KiB
- parts: ['fc2[3]']
  codec: {kind: power_sgd, rank: 2}
- parts: [fc3, bias]
  synchroniser: {kind: all_reduce, topology: tree, hierarchical: true}
  lane: 2
- parts: [norm]
  synchroniser:
    kind: periodic
    every: 8
    topology: ring
    outer: {learning_rate: 0.5, momentum: 0.75}
- parts: ['table[0]']
  synchroniser: {kind: sparse_gather, topology: ring}
- parts: ['table[1]']
  synchroniser: {kind: parameter_server, server: node-3, sparse: true}
"""


def _mistakes(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        load_strategy(path)
    return [str(problem).removeprefix(f"{path.parent}/") for problem in caught.value.problems]


def test_the_strategy_of_these_tests_is_legal(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    assert legality.problems(strategy, model, cluster) == []


def test_a_file_is_what_people_would_write(strategy: Strategy, tmp_path: Path) -> None:
    save_strategy(tmp_path / "s.yaml", strategy)
    assert (tmp_path / "s.yaml").read_text() == WRITTEN


@pytest.mark.parametrize("name", ["s.yaml", "s.json"])
def test_what_is_written_reads_back(name: str, strategy: Strategy, tmp_path: Path) -> None:
    save_strategy(tmp_path / name, strategy)
    assert load_strategy(tmp_path / name)[0] == strategy


def test_yaml_and_json_hold_the_same(strategy: Strategy, tmp_path: Path) -> None:
    save_strategy(tmp_path / "s.yaml", strategy)
    save_strategy(tmp_path / "s.json", strategy)
    fields = json.loads((tmp_path / "s.json").read_text())
    assert fields == yaml.safe_load((tmp_path / "s.yaml").read_text()) == dump_strategy(strategy)


def test_long_lists_of_parts_stand_one_a_line(tmp_path: Path) -> None:
    names = tuple(f"encoder.layer.{index}.weight" for index in range(10))
    save_strategy(tmp_path / "s.yaml", Strategy(messages=(Message(parts=names), Message(parts=("head",)))))
    lines = (tmp_path / "s.yaml").read_text().splitlines()
    assert lines[1:5] == ["messages:", "- parts:", f"  - {names[0]}", f"  - {names[1]}"]
    assert lines[-1] == "- parts: [head]"
    assert max(map(len, lines)) <= 120


KNOWN = "known: parts, synchroniser, codec, priority, lane, slice_bytes"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "overlap: forward",
            "overlap: forwards",
            "3: overlap: unknown value 'forwards' (known: backward, forward); did",
        ),
        ("lane: 1", "line: 1", f"19: messages[1].line: unknown key ({KNOWN}); did you mean 'lane'?"),
        ("[fc3, bias]", "['fc3[x]', bias]", "28: messages[5].parts[0]: 'fc3[x]' names no part (VARIABLE or VARIABLE["),
        ("strategy/1", "strategy/2", "1: schema: version 2 of autosync.strategy is newer than"),
        ("rank: 2", "rank: 0", "27: messages[4].codec: rank 0 approximates nothing (1 or more)"),
        ("1 KiB", "1 KB/s", "25: messages[3].slice_bytes: '1 KB/s' is no size"),
        ("staleness: 2", "staleness: -2", "21: messages[2].synchroniser: staleness -2 looks ahead (0 or more steps)"),
    ],
)
def test_mistakes_of_form_have_their_line(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert old in WRITTEN
    found = _mistakes(tmp_path / "s.yaml", WRITTEN.replace(old, new))
    assert len(found) == 1
    assert found[0].startswith(f"s.yaml:{expected}")


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = WRITTEN.replace("lane: 1", "line: 1").replace("kind: sharded", "kind: shardet").replace("[norm]", "[]")
    assert [mistake.split(": ")[0] for mistake in _mistakes(tmp_path / "s.yaml", text)] == [
        "s.yaml:19",
        "s.yaml:24",
        "s.yaml:31",
    ]


def test_illegal_strategies_have_their_line(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(WRITTEN.replace("server: node-3", "server: node-33").replace("rank: 2", "rank: 32"))
    with pytest.raises(DoesNotApplyError) as caught:
        load_strategy_for(path, model, cluster)
    first, second = (str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems)
    assert first.startswith("s.yaml:27: messages[4].codec: rank 32 for fc2[3] of shape [64, 24] ")
    assert second.startswith("s.yaml:40: messages[8].synchroniser.server: unknown node 'node-33' (known: node-0, ")


def test_a_legal_file_is_loaded(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(WRITTEN)
    assert load_strategy_for(tmp_path / "s.yaml", model, cluster) == strategy


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (found,) = _mistakes(tmp_path / "c.yaml", "schema: autosync.cluster/1\nnodes: []\n")
    assert found.startswith("c.yaml:1: schema: this is no strategy file: its schema is 'autosync.cluster/1'")


def test_names_of_any_kind_read_back(tmp_path: Path) -> None:
    names = (
        "null",
        "12",
        "1.5",
        "yes",
        "a: b",
        "- x",
        "# y",
        "naïve",
        "a'b\"c",
        " padded ",
        "x, y",
        "{z}",
        "0x10",
        "~",
    )
    strategy = Strategy(partitions={"12": Partition(sizes=(1,))}, messages=(Message(parts=names),))
    save_strategy(tmp_path / "s.yaml", strategy)
    assert load_strategy(tmp_path / "s.yaml")[0] == strategy


def test_whatever_becomes_of_a_file_it_loads_or_says_why(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path
) -> None:
    assert _load_mutants(300, model, cluster, tmp_path) >= 50


def test_whatever_loads_can_be_shown_compared_and_written(strategy: Strategy, tmp_path: Path) -> None:
    rng = random.Random("forms")
    num_loaded = 0
    for _ in range(500):
        (tmp_path / "mutant.yaml").write_bytes(mutations(WRITTEN, rng).encode("utf-8", "surrogatepass"))
        try:
            loaded, _ = load_strategy(tmp_path / "mutant.yaml")
        except InputError:
            continue
        num_loaded += 1
        assert describe(loaded)
        assert diff(loaded, loaded) == []
        assert format_diff(diff(loaded, strategy))
        save_strategy(tmp_path / "copy.yaml", loaded)
        assert load_strategy(tmp_path / "copy.yaml")[0] == loaded
    assert num_loaded >= 30


@pytest.mark.slow
def test_five_thousand_mutants_load_or_say_why(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> None:
    assert _load_mutants(5000, model, cluster, tmp_path) >= 1000


def _load_mutants(num_mutants: int, model: ModelSpec, cluster: ClusterSpec, folder: Path) -> int:
    """The number of mutants that were refused; the others are legal."""
    rng = random.Random("strategy files")
    path = folder / "mutant.yaml"
    refused: list[InputError] = []
    for _ in range(num_mutants):
        path.write_bytes(mutations(WRITTEN, rng).encode("utf-8", "surrogatepass"))
        try:
            loaded = load_strategy_for(path, model, cluster)
        except InputError as error:
            refused.append(error)
            continue
        assert legality.problems(loaded, model, cluster) == []
    for refusal in refused:
        assert refusal.problems
        assert all(problem.file == str(path) and problem.line >= 1 for problem in refusal.problems)
        assert all(len(str(problem).splitlines()) == 1 for problem in refusal.problems)
    return len(refused)
