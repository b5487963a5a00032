"""The settings of an input pipeline, and their file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from autosync import documents
from autosync.errors import InputError, Problem

KIND, VERSION = "input_settings", 1

CacheKind = Literal["none", "memory", "disk"]

_LIMITS = {
    "num_workers": (0, 512),
    "prefetch_factor": (1, 1024),
    "worker_threads": (1, 256),
    "read_bytes": (512, 2**30),
    "read_concurrency": (1, 256),
    "cache_limit_bytes": (0, 2**50),
}
"""The smallest and largest value of each whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """How a rank reads its examples. No setting changes which examples it gets, or their order.

    `prefetch_factor` and `worker_threads` have an effect only with workers. `read_bytes` (the largest request),
    `read_concurrency` (requests at a time, in each worker) and the cache have an effect only for datasets that read
    through autosync, such as `TarShards`. The cache's limit holds for the rank, not for each worker.
    """

    __pydantic_config__ = documents.STRICT

    num_workers: int = 2
    prefetch_factor: int = 2
    persistent_workers: bool = True
    worker_threads: int = 1
    read_bytes: int = 2**20
    read_concurrency: int = 4
    cache: CacheKind = "none"
    cache_limit_bytes: int = 0
    cache_folder: str = ""

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InputError(problems)


def _problems(settings: InputSettings) -> Iterator[Problem]:
    for name, (least, most) in _LIMITS.items():
        value: Any = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            yield Problem(what=f"is {value!r}", rule=f"a whole number from {least} to {most:,}", path=(name,))
    given: Any = settings.persistent_workers
    if not isinstance(given, bool):
        yield Problem(what=f"is {given!r}", rule="true or false", path=("persistent_workers",))
    if settings.cache not in get_args(CacheKind):
        yield Problem(what=f"is {settings.cache!r}", rule=f"one of {', '.join(get_args(CacheKind))}", path=("cache",))
    elif settings.cache != "none" and settings.cache_limit_bytes == 0:
        yield Problem(what="is 0", rule="a cache needs a limit in bytes", path=("cache_limit_bytes",))
    if settings.cache == "disk" and not settings.cache_folder:
        yield Problem(what="is empty", rule="a cache on disk needs a folder", path=("cache_folder",))


def load_settings(path: Path | str) -> InputSettings:
    """Read a file of input settings. All its mistakes are reported together, with their lines."""
    return documents.load(path, kind=KIND, version=VERSION, into=InputSettings)[0]


def save_settings(path: Path | str, settings: InputSettings) -> None:
    """Write a file of input settings: YAML, or JSON if its name ends in .json."""
    documents.write(path, documents.dump(settings, kind=KIND, version=VERSION))


def settings_of(given: InputSettings | Path | str | None) -> InputSettings:
    """Return the settings that a caller gave: an object, the path of a file, or None for the defaults."""
    if given is None:
        return InputSettings()
    if isinstance(given, InputSettings):
        return given
    if isinstance(given, Path | str):
        return load_settings(given)
    raise InputError(f"settings are of type {type(given).__name__}", rule="InputSettings, or the path of their file")
