"""The variables of the environment by which launchers tell ranks what torch has no variable for."""

from __future__ import annotations

NODE_VARIABLE = "AUTOSYNC_NODE"
"""The name of the rank's node in the cluster file."""

BUNDLE_VARIABLE = "AUTOSYNC_BUNDLE"
"""The path of the bundle; see `bundle_variable`."""


def bundle_variable(number: int) -> str:
    """Return the variable of a script's bundle by its number from 0: `AUTOSYNC_BUNDLE`, `AUTOSYNC_BUNDLE_2` …"""
    return BUNDLE_VARIABLE if number == 0 else f"{BUNDLE_VARIABLE}_{number + 1}"
