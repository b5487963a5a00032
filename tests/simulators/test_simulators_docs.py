"""docs/simulators.md shows what the commands print, and code that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autosync.cli import main as cli
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.analytical.totals import TOTALS
from autosync.simulators.catalogue import simulator_names
from autosync.testing.simulators import small_case

PAGE = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```text\n\$ autosync ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_commands_print_what_the_page_shows(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command.split()) == 0
    printed = capsys.readouterr().out
    if "--json" in command:
        found, shown = json.loads(printed), json.loads(output)
        (predicted,), (expected,) = found.pop("predictions"), shown.pop("predictions")
        assert found == _nearly(shown)
        assert predicted == _nearly(expected)
    else:
        assert printed == output


def _nearly(fields: dict[str, Any]) -> dict[str, Any]:
    # Python 3.12 and later add up floats more exactly.
    return {key: pytest.approx(value) if isinstance(value, float) else value for key, value in fields.items()}


def test_the_page_knows_the_simulators() -> None:
    assert set(simulator_names()) <= set(re.findall(r"`(\w+)`", PAGE))


def test_the_examples_of_columns_and_learning_run() -> None:
    case = small_case()
    names = {
        "model": case.model,
        "cluster": case.cluster,
        "strategies": case.strategies,
        "strategy": case.strategies[0],
        "records": case.records,
    }
    (columns,) = (text for text in PYTHON if "predict_columns" in text)
    exec(columns, names)
    assert len(names["seconds"]) == len(case.strategies)  # type: ignore[arg-type]
    assert AnalyticalSimulator(case.model, case.cluster).totals(case.strategies).shape[1] == len(TOTALS)
