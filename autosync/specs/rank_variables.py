"""The variables of the environment by which launchers tell ranks what torch has no variable for."""

from __future__ import annotations

import os

NODE_VARIABLE = "AUTOSYNC_NODE"
"""The name of the rank's node in the cluster file."""

BUNDLE_VARIABLE = "AUTOSYNC_BUNDLE"
"""The path of the bundle; see `bundle_variable`."""

THREADS_VARIABLE = "OMP_NUM_THREADS"


def rank_threads() -> int:
    """Return the number of threads with which a rank computes: what the user's environment says, otherwise one.

    Profiles, trials and trainings have the same number: with others, compute hides another part of communication.
    """
    stated = os.environ.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    return max(int(stated), 1) if stated.isdecimal() else 1


def bundle_variable(number: int) -> str:
    """Return the variable of a script's bundle by its number from 0: `AUTOSYNC_BUNDLE`, `AUTOSYNC_BUNDLE_2` …"""
    return BUNDLE_VARIABLE if number == 0 else f"{BUNDLE_VARIABLE}_{number + 1}"
