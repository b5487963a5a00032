"""docs/presets.md says what the code does: its table has every preset with class and options, each has a section."""

import re
from pathlib import Path

import pytest

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset, preset_names, preset_options
from autosync.strategy.presets.pipelines import PIPELINES
from tests.helpers.staged_models import chain, nodes

PAGE = (Path(__file__).parents[3] / "docs" / "presets.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]+ \| ([^|]*)\|$", PAGE, re.MULTILINE)
SECTIONS = {
    name: text
    for names, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for name in names.split(", ")
}


def _class_of(name: str) -> str:
    """What a preset builds, somewhere."""
    if name in PIPELINES:
        return " and ".join(sorted(build_preset(name, chain(6), nodes(1, 1)).classes))
    for model_name, cluster_name in (
        ("ncf", "4-hosts"),
        ("resnet18", "4-hosts-2-ranks"),
        ("resnet18", "4-hosts-2-racks"),
        ("resnet18", "4-hosts-uneven"),
    ):
        try:
            built = build_preset(name, load_model(model_name), load_cluster(cluster_name))
        except DoesNotApplyError:
            continue
        return " and ".join(sorted(built.classes))
    raise AssertionError(f"{name} applies to none")


def test_the_table_is_complete() -> None:
    assert sorted(name for name, _, _ in ROWS) == list(preset_names())
    for name, _, options in ROWS:
        assert re.findall(r"`(\w+)`", options) == list(preset_options(name)), name


def test_the_table_says_what_each_preset_is() -> None:
    assert {name: word for name, word, _ in ROWS} == {name: _class_of(name) for name in preset_names()}


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_has_a_section(name: str) -> None:
    text = SECTIONS[name]
    first = re.findall(r"^\*\*(Rule|Source|Wins|Applies|Does not apply)", text, re.MULTILINE)[:3]
    assert first == ["Rule", "Source", "Wins"]
    assert re.search(r"^\*\*(Applies|Does not apply)\*\*", text, re.MULTILINE)
