"""The site has every page once, at its own place, and the help of every command."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from autosync.cli import main

ROOT = Path(__file__).parents[2]
HAS_MKDOCS = all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings")))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gather_site", ROOT / "tools" / "gather_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "source"
    tool.gather(folder)
    return folder


def _settings() -> dict[str, Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings: dict[str, Any] = yaml.safe_load(re.sub(r"!!python/\S+ ", "", text))
    return settings


def _listed(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from _listed(value) if isinstance(value, list) else [value]


def test_the_four_parts_list_every_page_once(site: Path) -> None:
    settings = _settings()
    assert [next(iter(part)) for part in settings["nav"]] == ["Start here", "How to", "Understand", "Reference"]
    listed = list(_listed(settings["nav"]))
    pages = [str(page.relative_to(site)) for page in site.rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_linked_files_come_along(site: Path) -> None:
    assert (site / "examples" / "tuning.ipynb").is_file()
    assert (site / "docs" / "pictures" / "dataset.svg").is_file()


def test_the_help_of_every_command_is_there(site: Path) -> None:
    page = (site / "reference" / "commands.md").read_text(encoding="utf-8")
    assert all(f"## autosync {name}\n" in page for name in main.COMMANDS)
    assert "## autosync strategy build\n" in page
    assert page.count("Usage: ") == page.count("\n## ")


def test_what_the_api_page_names_exists(tool: ModuleType) -> None:
    for names in tool.API.values():
        for name in names:
            module, _, attribute = name.rpartition(".")
            found = (
                importlib.util.find_spec(name)
                if _is_module(name)
                else getattr(importlib.import_module(module), attribute)
            )
            assert found is not None, name


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MKDOCS, reason="mkdocs is not installed (make docs)")
def test_the_site_is_built_without_a_warning(site: Path, tmp_path: Path) -> None:
    config = tmp_path / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("build/site-source", str(site)).replace("build/site", str(tmp_path / "site"))
    config.write_text(text.replace("paths: [.]", f"paths: [{ROOT}]"), encoding="utf-8")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()
