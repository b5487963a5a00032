"""The input settings of a rank: how it reads the examples that it computes.

No setting changes which examples a rank gets, or their order. So the settings have no part in the plan. Reads share
links and processors with messages; how fast a step is depends on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import WrapValidator

from autosync.documents import STRICT
from autosync.errors import InputError, Problem

CacheKind = Literal["none", "memory", "disk"]
RightOfWay = Literal["shared", "gradients", "reads"]

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

    `right_of_way` says who goes first where reads and gradients share links. With `gradients`, a worker's next request
    waits while messages of autosync travel, unless the step waits for its batch. With `reads`, messages ask for little
    ahead while the step waits for its batch.
    """

    __pydantic_config__ = STRICT

    num_workers: int = 2
    prefetch_factor: int = 2
    persistent_workers: bool = True
    worker_threads: int = 1
    read_bytes: int = 2**20
    read_concurrency: int = 4
    cache: CacheKind = "none"
    cache_limit_bytes: int = 0
    cache_folder: str = ""
    right_of_way: RightOfWay = "shared"

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
    if settings.right_of_way not in get_args(RightOfWay):
        rule = f"one of {', '.join(get_args(RightOfWay))}"
        yield Problem(what=f"is {settings.right_of_way!r}", rule=rule, path=("right_of_way",))
    if settings.cache not in get_args(CacheKind):
        yield Problem(what=f"is {settings.cache!r}", rule=f"one of {', '.join(get_args(CacheKind))}", path=("cache",))
    elif settings.cache != "none" and settings.cache_limit_bytes == 0:
        yield Problem(what="is 0", rule="a cache needs a limit in bytes", path=("cache_limit_bytes",))
    if settings.cache == "disk" and not settings.cache_folder:
        yield Problem(what="is empty", rule="a cache on disk needs a folder", path=("cache_folder",))


def _as_value_error(value: Any, read: Callable[[Any], InputSettings | None]) -> InputSettings | None:
    """Turn our errors into ValueErrors, for which pydantic knows the place in the file."""
    try:
        return read(value)
    except InputError as error:
        first = error.problems[0]
        raise ValueError(f"{'.'.join(map(str, first.path))} {first.what} ({first.rule})") from error


GivenInput = Annotated[InputSettings | None, WrapValidator(_as_value_error)]
"""A field that may be None."""
