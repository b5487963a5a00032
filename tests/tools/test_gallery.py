"""docs/gallery.md is what tools/make_gallery.py writes today, and all its pictures are there and safe to show."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from autosync.strategy.presets import preset_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"
MAX_BYTES = 60_000
REMEDY = "run `make gallery`"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_gallery", ROOT / "tools" / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_gallery"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_is_written_today(tool: ModuleType) -> None:
    assert PAGE.read_text(encoding="utf-8") == tool.page(), f"{REMEDY}, or tools/make_gallery.py --page for words alone"


def test_every_preset_has_a_section_and_its_pictures(tool: ModuleType) -> None:
    sections = {section.partition("\n")[0]: section for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]}
    assert tuple(sections) == preset_names(), REMEDY
    for name, section in sections.items():
        pictures = re.findall(r"!\[.+\]\((.+)\)", section)
        assert pictures == [f"gallery/{name}-{what}.svg" for what in tool.pictures_of(name)]
        assert all((PAGE.parent / picture).is_file() for picture in pictures), REMEDY


def test_links_into_the_page_of_presets_lead_somewhere() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "presets.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\(presets\.md#([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) == len(preset_names())
    assert set(links) <= anchors


def test_the_folder_has_the_pictures_and_nothing_else(tool: ModuleType) -> None:
    assert {path.name for path in tool.PICTURES.iterdir()} == set(tool.picture_names()), REMEDY


def test_pictures_are_small_well_formed_and_run_nothing(tool: ModuleType) -> None:
    for path in sorted(tool.PICTURES.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert len(text) <= MAX_BYTES, path.name
        for element in ET.fromstring(text).iter():
            assert element.tag.rpartition("}")[2] in {"svg", "title", "desc", "style", "rect", "path", "text"}, (
                path.name
            )
            assert not [name for name in element.attrib if name.startswith("on") or "href" in name], path.name


def test_plans_are_drawn_as_today(tool: ModuleType) -> None:
    for name in preset_names():
        drawn = (tool.PICTURES / f"{name}-plan.svg").read_text(encoding="utf-8")
        assert drawn == tool.plan_of(tool.show(name)), f"{name}: {REMEDY}"


def test_a_preset_without_a_section_is_named(tool: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"no section for all_reduce"):
        tool.anchors_of("# Presets\n\n## ddp\n**Source.** here\n")


def test_a_section_may_describe_several_presets(tool: ModuleType) -> None:
    page = "\n".join(f"\n## {name}\n**Rule.** R.\n" for name in preset_names())
    anchors = tool.anchors_of(page.replace("## ddp\n", "## other, ddp\n"))
    assert anchors["ddp"] == "other-ddp"
    assert anchors["ps"] == "ps"
