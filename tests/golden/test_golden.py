"""Identities, plans and predictions are what they were before code was moved: see `values`.

On one machine all digits of predictions are the same: whoever moves code makes the files anew and finds no difference.
Between processors the last digits may differ, so here nine are compared.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.golden import values

QUICK_MODELS = ("acoustic_mlp", "ncf_small")
NUM_QUICK = 15


def _assert_same(path: Path, lines: Iterable[str], *, of: int | None = None) -> None:
    """Line by line, so that what has moved is told first."""
    expected = path.read_text("utf-8").splitlines()[:of]
    found = list(lines)
    moved = [(old, new) for old, new in zip(expected, found, strict=False) if not _is_same(old, new)]
    assert not moved, f"{path.name}: {len(moved)} of {len(expected)} lines have moved, first {moved[0]}"
    assert len(found) == len(expected)


def _is_same(old: str, new: str) -> bool:
    if "~" not in old:
        return old == new
    before, now = old.replace("~", " ").split(), new.replace("~", " ").split()
    return before[:3] == now[:3] and [float(one) for one in before[3:]] == pytest.approx(
        [float(one) for one in now[3:]], rel=1e-9
    )


@pytest.mark.parametrize("model", QUICK_MODELS)
def test_presets_are_what_they_were(model: str) -> None:
    _assert_same(values.FOLDER / f"presets-{model}.txt", values.preset_lines(model))


def test_samples_are_what_they_were() -> None:
    _assert_same(values.FOLDER / "samples.txt", values.sample_lines(range(NUM_QUICK)), of=NUM_QUICK)


def test_predictions_are_what_they_were() -> None:
    path = values.FOLDER / "predictions.txt"
    numbers = [int(line.split()[0]) for line in path.read_text("utf-8").splitlines()[:NUM_QUICK]]
    _assert_same(path, values.prediction_lines(numbers), of=NUM_QUICK)


def test_the_ranker_orders_as_it_did() -> None:
    _assert_same(values.FOLDER / "ranker.txt", values.ranker_lines())


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path, _ in values.files()], ids=lambda path: path.stem)
def test_every_line_is_what_it_was(path: Path) -> None:
    lines = dict(values.files())[path]
    _assert_same(path, lines)
