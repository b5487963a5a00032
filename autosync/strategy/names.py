"""The names that users give strategies: files of strategies, bundles, and presets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from autosync.errors import InputError, Problem, UnknownNameError
from autosync.near_files import missing_file, near_path
from autosync.strategy.files import looks_like_file
from autosync.strategy.presets import preset_names


def check_strategy_names(names: Iterable[str], *, what: str = "preset", others: Sequence[str] = ()) -> None:
    """Raise InputError for names that are neither a file nor a preset, nor one of `others`; all are reported together.

    Call this before a model is profiled, which takes long. `what` is the word for a name in messages.
    """
    problems = [problem for name in dict.fromkeys(names) for problem in _problems(name, what, others)]
    if problems:
        raise InputError(problems)


def _problems(name: str, what: str, others: Sequence[str]) -> Iterator[Problem]:
    if name in others or name in preset_names() or Path(name).exists():
        return
    if looks_like_file(name):
        yield missing_file(name)
    else:
        yield from UnknownNameError(what, name, (*others, *preset_names()), others=[near_path(name)]).problems
