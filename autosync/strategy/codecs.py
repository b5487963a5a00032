"""Codecs: how gradients are encoded while they travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A codec that casts gradients to a type of half the size or less."""

    __pydantic_config__ = STRICT

    kind: Literal["cast"] = "cast"
    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    error_feedback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8:
    """A codec that sends one byte for each number, and one scale for each `block` numbers."""

    __pydantic_config__ = STRICT

    kind: Literal["int8"] = "int8"
    block: int = 256
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block of {self.block} numbers holds none (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """A codec that sends the numbers that are largest in magnitude, a share `ratio` of all, each with its position.

    With `momentum` each worker sends the largest numbers of its velocity (`momentum` times the last velocity, plus the
    gradient) instead of the gradient, and clears the numbers that it sent. This is the momentum correction and factor
    masking of Deep Gradient Compression. It replaces the optimizer's momentum.
    """

    __pydantic_config__ = STRICT

    kind: Literal["top_k"] = "top_k"
    ratio: float = 0.01
    error_feedback: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"a ratio of {self.ratio} sends nothing or more than all (0 < ratio <= 1)")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"{self.momentum} is no momentum (0 <= momentum < 1)")
        if self.momentum and not self.error_feedback:
            raise ValueError("a velocity that is not kept until it is sent (momentum needs error_feedback: true)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSGD:
    """A codec that sends the two thin factors of a matrix of rank `rank`, found by one power iteration in each step."""

    __pydantic_config__ = STRICT

    kind: Literal["power_sgd"] = "power_sgd"
    rank: int = 4
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} approximates nothing (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A codec that sends one bit for each number, and the mean magnitude as the scale of all."""

    __pydantic_config__ = STRICT

    kind: Literal["sign"] = "sign"
    error_feedback: bool = True


Codec = Annotated[Cast | Int8 | TopK | PowerSGD | Sign, Field(discriminator="kind")]
