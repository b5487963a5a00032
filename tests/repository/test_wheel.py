"""The built wheel, installed outside the checkout, is a working autosync and overwrites nothing of others."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)


def _run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
    pyproject: dict[str, Any],
    package_dirs: dict[str, Path],
) -> Path:
    """An environment with the wheel in it, made through the source distribution: both must be complete."""
    work = tmp_path_factory.mktemp("wheel")
    # A copy: what an earlier build left in the checkout must not find its way into this wheel.
    source = work / "source"
    source.mkdir()
    for folder in package_dirs.values():
        shutil.copytree(folder, source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ["pyproject.toml", pyproject["project"]["readme"], *pyproject["project"]["license-files"]]:
        shutil.copy(root / name, source / name)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", source, cwd=work)

    environment = work / "environment"
    venv.create(environment, symlinks=True)
    wheel = next((work / "dist").glob("*.whl"))
    target = environment / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", target, "--quiet"]
    _run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=work)
    # The dependencies of the environment that runs this test, last on the path. The .pth files over there are
    # not read, so its editable autosync stays out of sight.
    dependencies = Path(_site_packages(target, cwd=work)) / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return environment


def _site_packages(python: Path, *, cwd: Path) -> str:
    return _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=cwd).strip()


def test_only_our_own_names_land_in_site_packages(installed: Path, pyproject: dict[str, Any], tmp_path: Path) -> None:
    site_packages = Path(_site_packages(installed / "bin" / "python", cwd=tmp_path))
    names = {path.name for path in site_packages.iterdir() if path.suffix != ".pth"}
    assert names == {"autosync", f"autosync_torch-{pyproject['project']['version']}.dist-info"}


def test_every_module_and_data_file_is_in_the_wheel(
    installed: Path, package_dirs: dict[str, Path], tmp_path: Path
) -> None:
    expected = {
        Path(*package.split(".")) / path.relative_to(folder)
        for package, folder in package_dirs.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    site_packages = Path(_site_packages(installed / "bin" / "python", cwd=tmp_path))
    found = {
        path.relative_to(site_packages)
        for path in (site_packages / "autosync").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == expected


def test_the_installed_package_is_the_one_imported(installed: Path, tmp_path: Path) -> None:
    code = "import autosync.configs; print(autosync.configs.__file__)"
    imported = Path(_run(installed / "bin" / "python", "-c", code, cwd=tmp_path).strip())
    assert imported.is_relative_to(installed)


def test_the_command_works(installed: Path, package_dirs: dict[str, Path], tmp_path: Path) -> None:
    if not (package_dirs["autosync.cli"] / "main.py").exists():
        pytest.skip("the command line is not in this checkout")
    command = installed / "bin" / "autosync"
    assert "Usage" in _run(command, "--help", cwd=tmp_path)


def test_shipped_configs_are_found(installed: Path, package_dirs: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "from importlib.resources import as_file, files\n"
        "with as_file(files('autosync.configs')) as folder:\n"
        "    print(*sorted(str(path.relative_to(folder)) for path in folder.rglob('*.yaml')), sep='\\n')"
    )
    found = _run(installed / "bin" / "python", "-c", code, cwd=tmp_path).split()
    folder = package_dirs["autosync.configs"]
    assert found == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml"))
