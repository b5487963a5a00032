"""Records as a pandas table: one row for each record, in the columns that exported files have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from autosync.datasets.schema import Record, record_to_plain
from autosync.datasets.table import COLUMNS, ColumnKind, row_of_fields

_TYPES: Mapping[ColumnKind, str] = {"text": "str", "whole": "Int64", "number": "float64"}
_OF_FILES = ("schema", "checksum")


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return the records as a table.

    The columns are those of docs/records.md without `schema` and `checksum`, which only files need. `started` is a time
    in UTC, `strategy` and `environment` are dictionaries, and missing values are those of pandas.
    """
    frame = pd.DataFrame([row_of_fields(record_to_plain(record)) for record in records], columns=list(COLUMNS))
    types = {name: _TYPES[kind] for name, kind in COLUMNS.items() if kind in _TYPES}
    frame = frame.astype(types).drop(columns=list(_OF_FILES))
    frame["started"] = pd.to_datetime(frame["started"], format="ISO8601", utc=True).dt.as_unit("us")
    return frame
