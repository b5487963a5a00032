"""Records as rows: one flat row for each record, with the same columns in every table that autosync writes.

Columns are the fields of a record, including those of its measurement, plan and failure. A record with a failure has no
values in the columns of a measurement, and vice versa. A field with several values is a list or, for the strategy and
the environment, JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Literal

from autosync.datasets.schema import PlanFacts, Record, record_from_signed, signed

ColumnKind = Literal["text", "whole", "number", "texts", "wholes", "numbers_by_rank", "json"]

_MEASUREMENT: Mapping[str, ColumnKind] = {
    "median_seconds": "number",
    "low_seconds": "number",
    "high_seconds": "number",
    "num_warmup_steps": "whole",
    "exposed_seconds": "number",
    "cpu_share": "number",
    "other_cpu_share": "number",
    "flags": "texts",
    "bytes_sent": "wholes",
    "bytes_received": "wholes",
    "peak_memory_bytes": "wholes",
    "step_seconds": "numbers_by_rank",
    "input": "json",
}
_PLAN: Mapping[str, ColumnKind] = {
    f"plan_{name}": "whole" if kind == "int" else "number" for name, kind in PlanFacts.__annotations__.items()
}
_FAILURE: Mapping[str, str] = {"failure_kind": "kind", "failure_message": "message"}

# Short columns come first, so that a spreadsheet shows them; the long strategy is on the far right.
COLUMNS: Mapping[str, ColumnKind] = {
    "schema": "text",
    "study": "text",
    "trial": "whole",
    "origin": "text",
    "model_name": "text",
    "cluster_name": "text",
    "classes": "texts",
    **{name: kind for name, kind in _MEASUREMENT.items() if kind in {"number", "whole", "texts"}},
    **dict.fromkeys(_FAILURE, "text"),
    "compute": "text",
    "network": "text",
    "dilation": "number",
    "started": "text",
    "model_fingerprint": "text",
    "cluster_fingerprint": "text",
    "model_spec": "text",
    "cluster_spec": "text",
    "strategy_id": "text",
    "plan_id": "text",
    "bytes_sent": "wholes",
    "bytes_received": "wholes",
    "peak_memory_bytes": "wholes",
    "step_seconds": "numbers_by_rank",
    **_PLAN,
    "input": "json",
    "environment": "json",
    "strategy": "json",
    "checksum": "text",
}
NEEDED_COLUMNS = tuple(
    name
    for name in COLUMNS
    if name == "schema" or ((field := Record.__dataclass_fields__.get(name)) and field.default is MISSING)
)
"""The columns that have a value in every row."""


def row_of(record: Record) -> dict[str, Any]:
    """Return the values of a record by column; None if it has none."""
    return row_of_fields(signed(record))


def row_of_fields(record_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by column of a record in plain fields."""
    fields = dict(record_fields)
    measurement = fields.pop("measurement", None) or {}
    failure = fields.pop("failure", None) or {}
    plan = {f"plan_{name}": value for name, value in (fields.pop("plan", None) or {}).items()}
    found = fields | measurement | plan | {name: failure.get(field) for name, field in _FAILURE.items()}
    return {name: found.get(name) for name in COLUMNS}


def record_of(row: Mapping[str, Any], *, file: str = "", line: int = 0) -> Record:
    """Return the record of a row. Unknown columns are reported with all other mistakes."""
    fields = {name: value for name, value in row.items() if value is not None}
    measurement = {name: fields.pop(name) for name in _MEASUREMENT if name in fields}
    plan = {name.removeprefix("plan_"): fields.pop(name) for name in _PLAN if name in fields}
    failure = {field: fields.pop(name) for name, field in _FAILURE.items() if name in fields}
    if measurement:
        fields["measurement"] = measurement
    if plan:
        fields["plan"] = plan
    if failure:
        # Tables cannot distinguish an empty text from a missing one.
        fields["failure"] = {"message": "", **failure}
    return record_from_signed(fields, file=file, line=line)
