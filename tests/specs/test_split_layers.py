"""The times of gradients of weights in a model spec: written, read, checked, and absent in older files."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.specs.batch_times import BatchTime
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, save_model
from autosync.specs.split_layers import SplitLayers
from tests.helpers.staged_models import chain

SIZES = tuple(BatchTime(num_examples=size, seconds=float(size)) for size in (1, 2, 4))


def _spec(*splits: SplitLayers) -> ModelSpec:
    spec = chain(4)
    return replace(spec, timeline=replace(spec.timeline, sizes=SIZES, splits=splits))


def test_times_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    for spec in (_spec(SplitLayers(segment=1, seconds=(0.1, 0.2, 0.4))), _spec(), chain(4)):
        save_model(spec, path)
        assert load_model(str(path)) == spec
        assert load_model(str(path)).timeline.splits == spec.timeline.splits
    # What no profile has timed is not written: the file is that of older versions.
    assert "splits" not in path.read_text()


def test_wrong_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one for each of the 3 sizes"):
        _spec(SplitLayers(segment=1, seconds=(0.1,)))
    with pytest.raises(ValueError, match=r"segments \[2, 1\] of 4"):
        _spec(*(SplitLayers(segment=segment, seconds=(0.1, 0.1, 0.1)) for segment in (2, 1)))
    with pytest.raises(ValueError, match=r"segments \[4\] of 4"):
        _spec(SplitLayers(segment=4, seconds=(0.1, 0.1, 0.1)))
    path = tmp_path / "spec.yaml"
    save_model(_spec(SplitLayers(segment=1, seconds=(0.25, 0.25, 0.25))), path)
    path.write_text(path.read_text().replace("[0.25, 0.25, 0.25]", "[0.25, -0.25, 0.25]"))
    with pytest.raises(InputError, match="are no durations"):
        load_model(str(path))
