"""Input settings as arguments of torch's DataLoader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.emit.script import emit_ddp
from autosync.strategy.presets import build_preset
from tests.strategy.emit.test_ddp import LINEAR, THREE


def _emitted(settings: InputSettings | None, model: ModelSpec = LINEAR) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of the file that is emitted, and the fields."""
    strategy = replace(build_preset("ddp", model, THREE), input=settings)
    emitted = emit_ddp(strategy, model, THREE)
    names: dict[str, Any] = {}
    exec(compile(emitted.python, "tuned_ddp.py", "exec"), names)
    return names, emitted.fields


def test_the_file_makes_a_loader_as_tuned() -> None:
    names, fields = _emitted(InputSettings(num_workers=2, prefetch_factor=5))
    made = names["loader"](list(range(8)), batch_size=2, prefetch_factor=4)
    assert isinstance(made, DataLoader)
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers, made.batch_size) == (2, 4, True, 2)
    assert fields["loader"] == {"num_workers": 2, "prefetch_factor": 5, "persistent_workers": True}


def test_without_workers_there_is_nothing_else_to_say() -> None:
    names, fields = _emitted(InputSettings(num_workers=0, prefetch_factor=7))
    assert next(iter(names["loader"](list(range(4)), batch_size=4))).tolist() == [0, 1, 2, 3]
    assert fields["loader"] == {"num_workers": 0}


def test_a_strategy_that_leaves_input_to_the_script_says_nothing_of_it() -> None:
    names, fields = _emitted(None)
    assert "loader" not in names
    assert fields["loader"] is None


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (InputSettings(worker_threads=2), "each worker was tuned with torch.set_num_threads(2)"),
        (InputSettings(read_bytes=4096), "the tuned requests, cache and right of way need autosync.loader"),
        (InputSettings(right_of_way="reads"), "the tuned requests, cache and right of way need autosync.loader"),
        (InputSettings(), ""),
    ],
)
def test_what_a_loader_cannot_be_told_is_a_note(settings: InputSettings, note: str) -> None:
    _, fields = _emitted(settings)
    told = [one for one in fields["notes"] if "tuned" in one]
    assert told == ([note] if note else [])
