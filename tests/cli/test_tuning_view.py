"""Tuning is a table that is drawn anew on a terminal; elsewhere every report is a line."""

from __future__ import annotations

import io
import re

import pytest

from autosync.cli.tune_script import ShownTuning
from autosync.cli.tuning_view import NUM_SHOWN, TuningView, sparkline
from autosync.datasets.schema import Failure, Measurement, Record
from autosync.search.candidates import STOCK_DDP
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.search.progress import FinishedTrial, SearchStatus

COLUMNS = 60


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _of_sixty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "24"}.items():
        monkeypatch.setenv(name, value)


def _tuned(stream: io.StringIO, seconds: list[float | None]) -> str:
    """Report trials that took so long, or failed, and return what was written."""
    with TuningView(stream) as view:
        view.note("profiling")
        _try(view, seconds)
        view.now("round 1 of 8 (2 of each; about 5 s left)")
        view.note("the proof was interrupted " * 5)
    return stream.getvalue()


def _try(view: TuningView, seconds: list[float | None]) -> None:
    status = SearchStatus(num_trials=50, budget_seconds=None, effort=NORMAL_EFFORT, clock=lambda: 0.0)
    for number, one in enumerate(seconds):
        view.now(f"trying number {number}")
        status.tried.append(FinishedTrial(candidate=STOCK_DDP, record=_record(number, one)))
        view.tried(status, number)


def test_the_table_ends_where_a_script_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with TuningView(stream) as view:
        _try(view, [0.3])
        shown = ShownTuning(None, view, as_json=False)
        shown.wrote("epoch 1")
        before = stream.getvalue()
        view.note("the script has ended")
    assert capsys.readouterr().out == "epoch 1\n"
    assert _screen(stream.getvalue()[len(before) :]) == ["the script has ended", ""]


def _screen(written: str) -> list[str]:
    """Return the lines of the screen in the end: a screen that only knows cursor up, erased lines and returns."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token == "\r":
            pass
        elif not token.startswith("\x1b"):
            lines[row] += token
    return [line.rstrip() for line in lines]


def test_elsewhere_everything_is_a_line() -> None:
    lines = _tuned(io.StringIO(), [0.2, None, 0.1]).splitlines()
    assert lines[0] == "profiling"
    assert [line.split(":")[0] for line in lines if line.startswith("trial ")] == [
        f"trial {n} of 50" for n in (1, 2, 3)
    ]
    assert "\x1b" not in "".join(lines)


def test_the_table_has_the_latest_trials_and_marks_the_best() -> None:
    screen = _screen(_tuned(Terminal(), [0.3, 0.1, None, *[0.2] * NUM_SHOWN]))
    rows = [line for line in screen if re.match(r" *\d+  ", line)]
    assert [int(row.split()[0]) for row in rows] == [2, *range(4, 4 + NUM_SHOWN)]
    assert rows[0].endswith("100.00  best")
    assert sum(row.endswith("best") for row in rows) == 1
    assert any(line.startswith("best so far: █▁▁▁") and line.endswith("100.00 ms a step") for line in screen)
    # What was under way is over when the view is closed.
    assert not any("round 1 of 8" in line or "trying" in line for line in screen)


def test_what_goes_on_is_shown_with_the_time_left() -> None:
    written = _tuned(Terminal(), [0.3, 0.1])
    assert re.search(r"trying number 1 \(about .* left\)", written)
    assert "round 1 of 8 (2 of each; about 5 s left)" in written


def test_a_failure_is_named_and_no_line_is_wider_than_the_terminal() -> None:
    screen = _screen(_tuned(Terminal(), [0.3, None]))
    assert any("raised: no luck" in line for line in screen)
    assert max(map(len, screen)) <= COLUMNS


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in _tuned(Terminal(), [0.3, 0.1])


@pytest.mark.parametrize(
    ("values", "drawn"), [([1.0], "▁"), ([2.0, 1.0], "█▁"), ([4.0, 4.0], "▁▁"), ([8.0, 4.5, 1.0], "█▅▁")]
)
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def _record(number: int, seconds: float | None) -> Record:
    """A record of stock DDP, which took so long or failed."""
    measured = seconds and Measurement(
        step_seconds=((seconds,),),
        median_seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        num_warmup_steps=4,
        peak_memory_bytes=(1,),
    )
    return Record(
        study="s",
        trial=number,
        origin="baseline:torch_ddp",
        model_name="m",
        model_fingerprint="0123456789abcdef",
        cluster_name="c",
        cluster_fingerprint="fedcba9876543210",
        classes=("exact",),
        measurement=measured or None,
        failure=None if measured else Failure(kind="raised", message="no luck"),
        environment={},
        compute="replayed",
        network="emulated",
        started="2026-01-31T12:00:00+00:00",
    )
