"""What an editable install forgives and a wheel does not: packages and data files that no list names."""

import os
import re
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import autosync

_GENERATED = {"__pycache__"}


def _source_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not _GENERATED.intersection(path.parts)]


def _package_of(path: Path, package_dirs: dict[str, Path]) -> str:
    """The package that owns a file: the nearest folder above it that is one."""
    package, folder = next((name, top) for name, top in package_dirs.items() if path.is_relative_to(top))
    owner = path.parent
    while owner != folder and not (owner / "__init__.py").exists():
        owner = owner.parent
    return ".".join([package, *owner.relative_to(folder).parts])


def test_packages_are_the_folders_on_disk(pyproject: dict[str, Any], package_dirs: dict[str, Path]) -> None:
    on_disk = {
        ".".join([package, *path.parent.relative_to(folder).parts])
        for package, folder in package_dirs.items()
        for path in _source_files(folder)
        if path.suffix == ".py"
    }
    listed = pyproject["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(listed)), "the list is sorted and names each package once"
    assert set(listed) == on_disk


def test_every_package_says_what_it_is_for(pyproject: dict[str, Any], modules: dict[str, Path]) -> None:
    for package in pyproject["tool"]["setuptools"]["packages"]:
        assert package in modules, f"{package} has no __init__.py"
        assert modules[package].read_text(encoding="utf-8").startswith('"""'), package


def test_every_data_file_is_named_by_package_data(
    root: Path, pyproject: dict[str, Any], package_dirs: dict[str, Path]
) -> None:
    patterns = pyproject["tool"]["setuptools"]["package-data"]
    missing = []
    for folder in package_dirs.values():
        for path in _source_files(folder):
            if path.suffix == ".py":
                continue
            package = _package_of(path, package_dirs)
            home = _home(package, package_dirs)
            if not any(path in home.glob(pattern) for pattern in patterns.get(package, [])):
                missing.append(str(path.relative_to(root)))
    assert not missing, "these files would not be in the wheel: name them in [tool.setuptools.package-data]"


def _home(package: str, package_dirs: dict[str, Path]) -> Path:
    mapped = max((name for name in package_dirs if f"{package}.".startswith(f"{name}.")), key=len)
    return package_dirs[mapped].joinpath(*package.removeprefix(mapped).split("."))


def test_version_is_the_same_in_both_places(pyproject: dict[str, Any]) -> None:
    assert autosync.__version__ == pyproject["project"]["version"]


def test_make_checks_every_source_folder(root: Path, package_dirs: dict[str, Path]) -> None:
    sources = re.search(r"^SOURCES := (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sources is not None
    assert set(sources[1].split()) == {folder.name for folder in package_dirs.values()}


def test_constraints_pin_what_the_metadata_asks_for(root: Path, pyproject: dict[str, Any]) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if line.startswith("#"):
            continue
        # No build suffix, path or address: those belong to one machine.
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line), line
        name, version = line.split("==")
        pins[_normal(name)] = version

    project = pyproject["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"sys_platform": "linux"}):
            continue
        pin = pins.get(_normal(requirement.name))
        assert pin is not None, f"constraints.txt has no pin for {requirement.name}"
        assert requirement.specifier.contains(pin), f"{requirement}, but constraints.txt pins {pin}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ci_runs_what_the_readme_tells_developers(root: Path) -> None:
    ci = root / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text(encoding="utf-8")
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
