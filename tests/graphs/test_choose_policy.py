"""The choice of a policy by measurement, its file, the costs of examples, and the command."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.cli import main
from autosync.errors import InputError
from autosync.graphs import example_costs
from autosync.graphs.choose_policy import choose_policy
from autosync.graphs.example_costs import StepCosts, compare_deals, depth_bands, fit_costs
from autosync.graphs.families import sequence, tree
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.policy import BatchingPolicy, read_policy, write_policy
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

ROOT = Path(__file__).parents[2]

SMALL = """
import torch
from autosync.graphs.families import sequence
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

class Cell(VertexFunction):
    def __init__(self):
        super().__init__()
        self.across = torch.nn.Linear(2, 2)

    def forward(self, pulled, children):
        return (pulled + self.across(children.sum(dim=1))).tanh()

def graph_task():
    graphs = [sequence(torch.ones(length, 2)) for length in (1, 2, 3, 9)]
    return GraphTask(model=VertexModel(Cell(), state_width=2), graphs=graphs, loss=LOSS, batch_size=4)

def LOSS(rows, graphs):
    return rows.sum()
"""


class Mean(VertexFunction):
    """Breaks the rule: its rows depend on each other."""

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        return pulled - pulled.mean(dim=0) + children.sum(dim=1)


class Dropping(VertexFunction):
    """Has random numbers in training."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)
        self.across = torch.nn.Linear(2, 2)

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        return self.drop(pulled + self.across(children.sum(dim=1)))


def _loss(rows: torch.Tensor, _graphs: object) -> torch.Tensor:
    return rows.sum()


def test_the_fastest_policy_is_chosen_and_the_model_is_left_as_it_was() -> None:
    model = VertexModel(Dropping(), state_width=2)
    before = model.policy
    batch = [sequence(torch.randn(length, 2)) for length in (1, 4, 2)]
    choice = choose_policy(model, [batch], _loss, num_rounds=2, also=[BatchingPolicy(order="naive")])
    assert choice.timings[0].policy.order == "naive"
    batched = choice.timings[1:]
    assert choice.policy == min(batched, key=lambda one: one.seconds).policy
    assert {one.num_groups for one in batched} == {4}
    assert all(one.num_vertices == 7 and one.schedule_share > 0 for one in batched)
    assert model.policy is before
    assert model.training
    assert all(one.training for one in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_that_depend_on_each_other_are_refused() -> None:
    model = VertexModel(Mean(), state_width=2)
    batch = [sequence(torch.randn(2, 2)) for _ in range(2)]
    with pytest.raises(InputError, match="policy depth gives other results than one vertex after the other"):
        choose_policy(model, [batch], _loss, num_rounds=1)
    with pytest.raises(InputError, match="at least one batch"):
        choose_policy(model, [], _loss)


@pytest.mark.parametrize("name", ["policy.yaml", "policy.json"])
@pytest.mark.parametrize(
    "policy",
    [
        BatchingPolicy(),
        BatchingPolicy(order="agenda", lazy_weights=True),
        BatchingPolicy(order="searched", table={"inner/2 leaf/0 | leaf/0": "leaf/0"}),
    ],
)
def test_a_policy_file_is_read_as_it_was_written(policy: BatchingPolicy, name: str, tmp_path: Path) -> None:
    write_policy(tmp_path / name, policy)
    assert read_policy(tmp_path / name) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: autosync.batching_policy/1\norder: breadth\n", "breadth"),
        ("schema: autosync.batching_policy/1\norder: depth\ntable: {a: b}\n", "a table needs order: searched"),
        ("schema: autosync.batching_policy/1\norder: naive\nlazy_weights: true\n", "nothing to add up"),
        ("schema: autosync.strategy/1\n", "no batching_policy file"),
    ],
)
def test_mistakes_in_a_policy_file_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_policy(path)
    assert words in str(caught.value)


def test_costs_are_found_in_measured_steps() -> None:
    vertices, depths = [1000, 500, 240, 100], [20, 18, 17, 12]
    seconds = [2e-5 * count + 1e-3 * depth for count, depth in zip(vertices, depths, strict=True)]
    costs = fit_costs(vertices, depths, seconds)
    assert costs.vertex_seconds == pytest.approx(2e-5)
    assert costs.level_seconds == pytest.approx(1e-3)
    only_levels = fit_costs([100, 200], [10, 5], [0.10, 0.05])
    assert only_levels == StepCosts(vertex_seconds=0.0, level_seconds=pytest.approx(0.01))
    with pytest.raises(InputError, match="positive times"):
        fit_costs([1], [1], [0.0])


def test_costs_are_measured_between_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    events = []

    def clock() -> float:
        events.append("clock")
        return float(len(events))

    monkeypatch.setattr(example_costs, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(example_costs, "wait_for_device", lambda _: events.append("wait"))
    model = VertexModel(Dropping(), state_width=2)
    example_costs.measure_costs(model, [sequence(torch.ones(length, 2)) for length in (1, 2)], _loss, num_rounds=1)
    before = [one for one, other in itertools.pairwise(events) if other == "clock"]
    assert before
    assert set(before) == {"wait"}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_bands_of_a_batch_have_all_examples_from_shallow_to_deep(lengths: list[int]) -> None:
    bands = depth_bands([sequence(torch.ones(length, 1)) for length in lengths])
    assert [graph.num_vertices for band in bands for graph in band] == sorted(lengths)
    # The last example of a band may reach over its end.
    fair = sum(lengths) / 4
    assert all(sum(graph.num_vertices for graph in band) <= fair + band[-1].num_vertices for band in bands)


def test_a_batch_is_dealt_by_its_costs() -> None:
    graphs = [sequence(torch.ones(length, 1)) for length in (40, 2, 2, 2, 40, 2, 2, 2)]
    deals = compare_deals(graphs, 4, StepCosts(vertex_seconds=1.0, level_seconds=0.0))
    assert max(deals.by_count.rank_costs) == 80
    assert max(deals.by_cost.rank_costs) == 40
    free = compare_deals(graphs, 4, StepCosts(vertex_seconds=0.0, level_seconds=1.0))
    assert max(free.by_cost.rank_costs) == pytest.approx(40, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "model: the model is of type Linear"),
        ({"graphs": []}, "graphs: the graphs cannot be used"),
        ({"graphs": [3]}, "graphs: the graphs cannot be used"),
        ({"loss": 3}, "loss: the loss is no function"),
        ({"batch_size": 0}, "batch_size: batch size 0"),
    ],
)
def test_mistakes_in_a_task_are_refused(change: dict[str, object], words: str) -> None:
    graph: InputGraph = tree([-1], torch.ones(1, 2))
    fields: dict = {"model": VertexModel(Mean(), state_width=2), "graphs": [graph], "loss": _loss, **change}
    with pytest.raises(InputError) as caught:
        GraphTask(**fields)
    assert words in str(caught.value)


def test_the_command_measures_deals_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.py"
    file.write_text(SMALL, encoding="utf-8")
    policy = tmp_path / "policy.yaml"
    assert main.run(["graph", "analyse", str(file), "--workers", "2", "--rounds", "1", "-o", str(policy)]) == 0
    shown = capsys.readouterr().out
    assert "4 examples, of which 1 batch of 4 measured" in shown
    assert "vertices by kind: 15 vertex" in shown
    assert "4 examples on 2 ranks, share of a step lost to the slowest rank:" in shown
    assert main.run(["graph", "analyse", str(file), "--workers", "2", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["structures"] == {"vertices": [1, 2, 3, 9], "depth": [1, 2, 3, 9]}
    assert [one["num_groups"] for one in found["policies"]] == [15, 9, 9, 9, 9]
    assert sorted(itertools.chain(*found["deals"]["by_cost"]["examples"])) == [0, 1, 2, 3]
    assert read_policy(policy).order in {"depth", "agenda"}


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (("LOSS(rows, graphs):", "LOSS(rows, graphs):\n    raise ValueError('no')"), [], "raised ValueError: no"),
        (("graph_task()", "task()"), [], "has no function 'graph_task'"),
        (("return GraphTask", "return 1, GraphTask"), [], "graph_task() returned a value of type tuple"),
        (("", ""), ["--workers", "5"], "a batch of 4 examples for 5 ranks"),
    ],
)
def test_the_command_names_mistakes(
    change: tuple[str, str],
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "small.py"
    file.write_text(SMALL.replace(*change) if change[0] else SMALL, encoding="utf-8")
    assert main.run(["graph", "analyse", str(file), "--rounds", "1", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert main.run(["graph", "analyse", str(tmp_path / "none.py")]) == 2
    assert main.run(["graph", "analyse", "none.txt"]) == 2
