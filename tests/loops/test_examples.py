"""The example loops learn, and their analyses match their first lines and the documentation."""

import re
from pathlib import Path

import numpy as np
import pytest

from autosync.cli import main
from autosync.loops.choosing import choose
from autosync.loops.dependences import analyse
from autosync.loops.load import load_loop
from autosync.loops.passes import record_pass
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedules import LoopSchedule
from tests.helpers.loop_ranks import run_threads

ROOT = Path(__file__).parents[2]
KINDS = {
    "embeddings": "two_dimensions",
    "matrix_factorisation": "two_dimensions",
    "matrix_factorisation_adagrad": "two_dimensions",
    "logistic_regression": "independent",
    "topics": "two_dimensions",
}
QUICK = ("matrix_factorisation", "logistic_regression", "topics")


# To compile a loop takes seconds: one of each schedule, and the one that draws random numbers.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS]
)
def test_an_example_learns_and_is_compiled(name: str) -> None:
    loop = load_loop(str(ROOT / f"examples/loops/{name}.py"))
    records = loop.load_records()
    schedule = choose(analyse(loop, records), records, 3)
    assert isinstance(schedule, LoopSchedule)
    assert schedule.kind == KINDS[name]
    assert record_pass(loop, records.dtype, compiled=True).is_compiled
    losses = run_threads(loop, 3, LoopSettings(num_epochs=3)).losses
    assert losses[2] < losses[1] < losses[0]


def test_topics_are_counted_as_they_are_drawn() -> None:
    """Every word has one topic at all times, so the tables are the counts of the records."""
    loop = load_loop(str(ROOT / "examples/loops/topics.py"))
    result = run_threads(loop, 3, LoopSettings(num_epochs=2))
    for name, rows in (("documents", result.records["document"]), ("words", result.records["word"]), ("totals", 0)):
        counted = np.zeros_like(result.tables[name])
        np.add.at(counted, (rows, result.records["topic"]), 1)
        assert np.array_equal(counted, result.tables[name]), name


def test_words_of_a_subject_get_similar_vectors() -> None:
    loop = load_loop(str(ROOT / "examples/loops/embeddings.py"))
    words = run_threads(loop, 2, LoopSettings(num_epochs=4)).tables["words"][:200]
    directions = words / np.linalg.norm(words, axis=1, keepdims=True)
    closeness = directions @ directions.T
    numbers = np.arange(len(words))
    is_same = (numbers[:, None] - numbers) % 20 == 0
    np.fill_diagonal(closeness, np.nan)
    assert np.nanmean(closeness[is_same]) > np.nanmean(closeness[~is_same]) + 0.3


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/loops.md").read_text(encoding="utf-8")
    shown = re.search(r"\$ autosync (loop analyse .*)\n((?:.|\n)*?)```", page)
    assert shown is not None
    assert main.run(shown[1].split()) == 0
    assert capsys.readouterr().out == shown[2]
    assert set(KINDS) == {path.stem for path in (ROOT / "examples/loops").glob("*.py")}
    assert all(f"examples/loops/{name}.py" in page for name in KINDS)
