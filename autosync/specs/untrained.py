"""Parameters of a model that are not synchronised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """A parameter that is not synchronised.

    The reason is `frozen` if it needs no gradient, `unused` if it got none in the profiled steps, and `empty` if it has
    no elements.
    """

    __pydantic_config__ = STRICT

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    reason: Literal["frozen", "unused", "empty"]
