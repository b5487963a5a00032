"""Shows results in notebooks, as a sentence above a table."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 60
"""The number of rows that a notebook shows; `to_frame()` returns all rows."""


def sentence_and_table(sentence: str, frame: pd.DataFrame) -> str:
    """Return the HTML; all text is escaped."""
    more = len(frame) - MAX_ROWS
    below = f"<p>and {more} more rows: see to_frame()</p>" if more > 0 else ""
    table = frame.head(MAX_ROWS).to_html(index=False, na_rep="", float_format="{:.4g}".format, border=0)
    return f"<p>{html.escape(sentence)}</p>{table}{below}"
