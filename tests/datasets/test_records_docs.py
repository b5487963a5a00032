"""docs/records.md: its columns are the columns, its record is one, its code runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.schema import (
    FAILURE_KINDS,
    FLAGS,
    Failure,
    Measurement,
    PlanFacts,
    Record,
    record_from_plain,
    record_to_plain,
)
from autosync.datasets.table import COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")


def test_the_table_of_columns_is_complete_and_in_order() -> None:
    table = PAGE.partition("## Columns")[2].partition("In JSON lines")[0]
    units = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", table, re.MULTILINE))
    assert list(units) == list(COLUMNS)
    # Every name says its unit, and the page agrees.
    for name, unit in units.items():
        if name.endswith("_seconds"):
            assert unit.startswith("s"), name
        elif "bytes" in name:
            assert unit.startswith("bytes"), name
        elif name.endswith("_share"):
            assert unit == "share, 0 to 1", name
        elif COLUMNS[name] == "whole":
            assert unit == "number", name


def test_every_field_of_a_record_is_a_column_or_has_some() -> None:
    parts = {"measurement": Measurement, "failure": Failure, "plan": PlanFacts}
    expected = {name for name in Record.__annotations__ if name not in parts}
    expected |= set(Measurement.__annotations__)
    expected |= {f"{part}_{name}" for part in ("failure", "plan") for name in parts[part].__annotations__}
    assert set(COLUMNS) == expected | {"schema", "checksum"}


@pytest.mark.parametrize(("column", "values"), [("flags", FLAGS), ("failure_kind", FAILURE_KINDS)])
def test_every_word_is_explained(column: str, values: tuple[str, ...]) -> None:
    (row,) = re.findall(rf"^\| `{column}` .*", PAGE, re.MULTILINE)
    assert all(f"`{value}`" in row for value in values)


def test_the_example_is_a_record() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    plain = json.loads(text)
    assert record_to_plain(record_from_plain(plain)) == plain


def test_the_code_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_study: Callable[..., Path],
    make_record: Callable[..., Record],
    make_failed: Callable[..., Record],
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [make_failed(), make_record(trial=1)]
    make_study(Path("autosync-studies/resnet50"), records)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/records.md", "exec"), names)
    assert names["records"] == records
    assert list(names["fastest"]["median_seconds"]) == [0.13]
