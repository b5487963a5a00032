"""The examples of models learn under every order, and the page names them all."""

from pathlib import Path

import pytest
import torch

from autosync.graphs.load import load_graph_task
from autosync.graphs.policy import BatchingPolicy, OrderName
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task

ROOT = Path(__file__).parents[2]
NAMES = ["graph_network", "sequences", "tree_lstm"]


@pytest.mark.parametrize(
    ("name", "order"), [("graph_network", "depth"), ("sequences", "agenda"), ("tree_lstm", "depth")]
)
def test_an_example_learns(name: str, order: OrderName) -> None:
    task = load_graph_task(str(ROOT / f"examples/graphs/{name}.py"))
    task.model.policy = BatchingPolicy(order=order, lazy_weights=True)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    (graphs,) = task.batches(1, 16)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = task.loss(task.model(graphs), graphs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_can_be_dealt_by_cost(name: str) -> None:
    """The mean of its loss is what it declares."""
    found = profile(load_task(str(ROOT / f"examples/graphs/{name}.py")), steps=1).graphs
    assert found is not None
    assert found.undealt == ""
    assert found.dealing_factor("cost", 4) <= found.dealing_factor("count", 4)


def test_the_page_names_every_example() -> None:
    assert {path.stem for path in (ROOT / "examples/graphs").glob("*.py")} == set(NAMES)
    page = (ROOT / "docs/graphs.md").read_text(encoding="utf-8")
    assert all(f"examples/graphs/{name}.py" in page for name in NAMES)
