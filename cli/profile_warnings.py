"""A warning for people wherever something is built on a profile that cannot be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosync.specs.model import ModelSpec


def profile_warning_lines(model: ModelSpec, *, after: str = "") -> list[str]:
    """The warning, as a line after what is given, or none."""
    from autosync.specs.profile.quality import profile_warning

    words = profile_warning(model)
    return [] if words is None else [f"{after}{words[0].upper()}{words[1:]}."]
