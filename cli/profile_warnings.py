"""The warning that users see if a result depends on an unreliable profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosync.specs.model import ModelSpec


def profile_warning_lines(model: ModelSpec, *, after: str = "") -> list[str]:
    """Return the warning as a line that begins with `after`; empty if the profile is reliable."""
    from autosync.specs.profile.quality import profile_warning

    words = profile_warning(model)
    return [] if words is None else [f"{after}{words[0].upper()}{words[1:]}."]
