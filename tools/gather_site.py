"""Gather the pages of the documentation's site in a folder: `python tools/gather_site.py build/site-source`.

The site has the repository's own pages at their own places, so their links lead where they lead in the repository. Two
pages are made: the help of every command, and the docstrings of what Python programs call (by mkdocstrings).
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from autosync.cli import main

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "datasets/README.md")

# What Python programs call: a heading, and the objects below it.
API = {
    "Tuning": ("autosync.search.tune", "autosync.search.tuned.Tuned", "autosync.specs.task.Task"),
    "Training": ("autosync.runtime.parallelize", "autosync.runtime.checkpoints.calls"),
    "Models and clusters": (
        "autosync.specs.model_file",
        "autosync.specs.cluster_file",
        "autosync.specs.cluster.ClusterSpec",
    ),
    "Comparing and predicting": ("autosync.trials.compare.compare", "autosync.scaling.predict.predict_scaling"),
    "Input": (
        "autosync.inputs.loader",
        "autosync.specs.input_settings.InputSettings",
        "autosync.inputs.tar_shards.TarShards",
        "autosync.inputs.tuning.tune_input",
        "autosync.inputs.fairness",
    ),
    "Loops": ("autosync.loops.declarations",),
    "Models whose graph changes": (
        "autosync.graphs.vertex_function",
        "autosync.graphs.vertex_model",
        "autosync.graphs.input_graph",
        "autosync.graphs.families",
        "autosync.graphs.choose_policy",
        "autosync.graphs.dealing",
    ),
    "Testing what you add": (
        "autosync.testing.proposers",
        "autosync.testing.simulators",
        "autosync.testing.launchers",
        "autosync.testing.presets",
        "autosync.testing.synchronisers",
    ),
}
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


def gather(folder: Path) -> None:
    """Fill the folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
    pages += sorted((ROOT / "benchmarks").rglob("README.md"))
    for page in pages:
        for file in (page, *_linked(page)):
            place = folder / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    reference = folder / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(commands_page(), encoding="utf-8")
    (reference / "api.md").write_text(api_page(), encoding="utf-8")


def commands_page() -> str:
    """Return the page with the help of every command."""
    parts = ["# Commands", "What `autosync COMMAND --help` prints."]
    for name in main.COMMANDS:
        for words in _commands(main.cli, name):
            parts += [f"## autosync {' '.join(words)}", f"```text\n{_help(words)}\n```"]
    return "\n\n".join(parts) + "\n"


def api_page() -> str:
    """Return the page with the docstrings of what programs call."""
    parts = ["# Python", "[The guide](../docs/python.md) shows how these are used together."]
    for heading, objects in API.items():
        parts += [f"## {heading}", *(f"::: {name}" for name in objects)]
    return "\n\n".join(parts) + "\n"


def _linked(page: Path) -> Iterator[Path]:
    """Yield the files that a page links or shows, without other pages."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        file = (page.parent / target).resolve()
        if file.is_file() and file.suffix != ".md" and file.is_relative_to(ROOT):
            yield file


def _commands(group: click.Group, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield a command, and the commands in it if it is a group."""
    yield words
    command = group.get_command(click.Context(group), words[-1])
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield (*words, name)


def _help(words: tuple[str, ...]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main.run([*words, "--help"])
    assert code == 0, words
    return shown.getvalue().rstrip()


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
