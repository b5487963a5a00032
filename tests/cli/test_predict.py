"""`autosync predict`: sizes in words and as JSON; wrong numbers, rates and prices are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from typing import Any

    Shell = Any  # the class of the fixture in conftest.py, which tests cannot import


def test_sizes_are_predicted(shell: Shell) -> None:
    arguments = ("predict", "model.yaml", "--cluster", "2-hosts", "--nodes", "2,1", "--price", "3.20/h")
    found = shell.json(*arguments)
    assert [size["nodes"] for size in found["sizes"]] == [1, 2]
    assert found["sizes"][1]["stock_ddp"]["cost_per_million_samples"]["value"] > 0
    assert "simulating 2 nodes" in shell.err


def test_a_prediction_in_words(shell: Shell) -> None:
    assert shell.run("predict", "model.yaml", "--cluster", "2-hosts", "--nodes", "1") == 0, shell.err
    assert shell.out.startswith("tiny on 2-hosts, predicted from its file.")


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--nodes", "1,two", "'two' is no number of nodes (write numbers of nodes such as 1,2,4,8)"),
        ("--nodes", "0", "'0' is no number of nodes"),
        ("--nodes", "", "'' is no number of nodes"),
        ("--nodes", ",".join(["1"] * 65), "65 sizes are more than 64"),
        ("--link", "25", "is no rate"),
        ("--link", "25 gb/s", "could be bits or bytes"),
        ("--price", "3.20", "is no price"),
        ("--nodes", "5000", "1 to 4096 nodes"),
    ],
)
def test_wrong_values_are_refused(shell: Shell, option: str, value: str, complaint: str) -> None:
    assert shell.run("predict", "model.yaml", "--cluster", "2-hosts", option, value) == 2
    assert complaint in " ".join(shell.err.split())
    assert shell.out == ""


def test_this_machine_does_not_grow(shell: Shell) -> None:
    assert shell.run("predict", "model.yaml", "--cluster", "cluster.yaml", "--nodes", "4") == 2
    assert "all nodes are this machine" in shell.err
