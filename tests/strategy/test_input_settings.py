"""The input aspect of a strategy: its file, its canonical form, and its words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical, strategy_id
from autosync.strategy.describe import describe
from autosync.strategy.diff import diff, format_diff
from autosync.strategy.files import load_strategy, save_strategy
from autosync.strategy.input_settings import canonical_input
from autosync.strategy.representation import Strategy

READS = InputSettings(num_workers=4, read_bytes=8 * 2**20)


@pytest.mark.parametrize("name", ["s.yaml", "s.json"])
@pytest.mark.parametrize("settings", [None, InputSettings(), READS])
def test_a_strategy_keeps_its_input_settings(
    settings: InputSettings | None, name: str, strategy: Strategy, tmp_path: Path
) -> None:
    written = replace(strategy, input=settings)
    save_strategy(tmp_path / name, written)
    assert load_strategy(tmp_path / name)[0] == written


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{num_workers: -3}", r"s\.yaml:\d+: input: num_workers is -3 \(a whole number from 0 to 512\)"),
        ("{cache: disk, cache_limit_bytes: 9}", r"input: cache_folder is empty \(a cache on disk needs a folder\)"),
        ("{right_of_way: none}", r"input\.right_of_way: unknown value 'none' \(known: shared, gradients, reads\)"),
        ("{workers: 3}", r"input\.workers: unknown key"),
        ("fast", "input: 'fast' is not allowed here"),
    ],
)
def test_mistakes_are_told_with_their_line(text: str, words: str, strategy: Strategy, tmp_path: Path) -> None:
    save_strategy(tmp_path / "s.yaml", strategy)
    with (tmp_path / "s.yaml").open("a") as file:
        file.write(f"input: {text}\n")
    with pytest.raises(InputError, match=words):
        load_strategy(tmp_path / "s.yaml")


def test_settings_without_effect_are_left_out() -> None:
    alone = InputSettings(num_workers=0, prefetch_factor=7, worker_threads=2, persistent_workers=False)
    assert canonical_input(alone) == InputSettings(num_workers=0)
    assert canonical_input(InputSettings(cache_limit_bytes=5, cache_folder="/x")) == InputSettings()
    memory = InputSettings(cache="memory", cache_limit_bytes=5, cache_folder="/x")
    assert canonical_input(memory) == replace(memory, cache_folder="")
    assert canonical_input(None) is None
    # Without workers a rank reads only while its step waits, and then no read gives way.
    assert canonical_input(InputSettings(num_workers=0, right_of_way="gradients")) == InputSettings(num_workers=0)
    for kept in (InputSettings(num_workers=0, right_of_way="reads"), InputSettings(right_of_way="gradients")):
        assert canonical_input(kept) == kept


def test_other_settings_make_another_strategy(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    with_input = replace(strategy, input=READS)
    assert canonical(with_input, model, cluster).input == READS
    assert strategy_id(with_input, model, cluster) != strategy_id(strategy, model, cluster)


def test_the_settings_are_told(strategy: Strategy) -> None:
    with_input = replace(strategy, input=READS)
    assert "input: 4 workers, prefetch 2" in describe(with_input)
    assert "input" not in describe(strategy).partition("\n\n")[2].partition("\n")[0]
    changed = format_diff(diff(strategy, with_input))
    assert changed == "the whole step: input: left to the script -> num_workers=4 read_bytes=8388608"
    assert format_diff(diff(with_input, replace(strategy, input=InputSettings()))).endswith("-> the defaults")
