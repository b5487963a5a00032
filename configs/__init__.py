"""Cluster files, model specs and search settings that ship with the package."""

from importlib import resources
from pathlib import Path


def shipped_models() -> dict[str, Path]:
    """The model specs that ship with the package, by the name that stands for each."""
    folder = resources.files("autosync.configs") / "models"
    paths = [Path(str(entry)) for entry in folder.iterdir()] if folder.is_dir() else []
    return {path.stem: path for path in sorted(paths) if path.suffix == ".yaml"}
