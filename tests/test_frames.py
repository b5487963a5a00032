"""Results in notebooks: a sentence above a table, in which text stays text."""

from __future__ import annotations

import pandas as pd

from autosync.frames import MAX_ROWS, sentence_and_table


def test_text_stays_text() -> None:
    shown = sentence_and_table("<b> & more", pd.DataFrame({"<i>": ["<script>"], "ms": [1.23456789]}))
    assert shown.startswith("<p>&lt;b&gt; &amp; more</p><table")
    assert "<script>" not in shown
    assert "<i>" not in shown
    assert "1.235" in shown


def test_long_tables_say_what_they_leave_out() -> None:
    shown = sentence_and_table("many", pd.DataFrame({"row": range(MAX_ROWS + 3)}))
    assert shown.count("<tr") == 1 + MAX_ROWS
    assert "and 3 more rows" in shown
    assert "more rows" not in sentence_and_table("few", pd.DataFrame({"row": range(MAX_ROWS)}))
