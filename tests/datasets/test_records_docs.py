"""docs/records.md: its columns are the columns, its record is one, its code runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.schema import Record, record_from_plain, record_to_plain
from autosync.datasets.table import COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")


def test_the_table_of_columns_is_complete_and_in_order() -> None:
    table = PAGE.partition("## Columns")[2].partition("In JSON lines")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == list(COLUMNS)


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
