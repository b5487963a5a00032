"""The prior of a simulator: records of other models and clusters, from which it learns beforehand."""

from __future__ import annotations

from pathlib import Path

from autosync.errors import InputError
from autosync.near_files import near_path_hint

PRIOR_SIMULATOR = "learned"
"""The simulator of a study with a prior, if the user names no simulator."""

SHIPPED_PRIOR = "shipped"
"""The name of the shipped prior, which learned from the shipped records."""

NON_LEARNING = frozenset({"analytical", "timeline"})
"""Our simulators that learn nothing from a prior."""


def prior_path(prior: str | None) -> Path | None:
    """Return the path of a prior's records; None without a prior and for the shipped prior."""
    return None if prior in {None, SHIPPED_PRIOR} else Path(str(prior))


def prior_ships() -> bool:
    """Return whether a prior ships that fits the simulators of this version."""
    # Loads XGBoost.
    from autosync.simulators.learned.boosted import UNTAUGHT
    from autosync.simulators.learned.simulators import shipped_ranker

    return shipped_ranker() is not UNTAUGHT


def check_prior(prior: str, simulator: str) -> None:
    """Refuse a prior that does not exist, or from which the simulator cannot learn."""
    if simulator in NON_LEARNING:
        rule = f"a prior needs a simulator that learns, such as {PRIOR_SIMULATOR}"
        hint = f"--simulator {PRIOR_SIMULATOR}"
        raise InputError(f"the simulator {simulator} learns nothing from --prior", rule=rule, hint=hint)
    if prior != SHIPPED_PRIOR:
        if not Path(prior).exists():
            rule = f"a dataset, a folder that training has saved, or {SHIPPED_PRIOR}"
            raise InputError(f"--prior {prior}: there is no such file or folder", rule=rule, hint=near_path_hint(prior))
        return
    if simulator != PRIOR_SIMULATOR:
        raise InputError(f"nothing ships for the simulator {simulator}", rule=f"--prior {SHIPPED_PRIOR} is for learned")
    if not prior_ships():
        rule = "what ships was learned with the simulators that it corrects"
        raise InputError("nothing ships that fits this version", rule=rule, hint="--prior RECORDS")
