"""All proposers by name. Other packages add theirs through the entry-point group `autosync.proposers`.

A name stands for a builder, `(ground) -> Proposer`.
"""

from __future__ import annotations

from autosync.registry import Registry
from autosync.search.proposers.interface import Ground, Proposer

_HERE = "autosync.search.proposers"

PROPOSERS = Registry(
    "proposer",
    {
        "evolution": f"{_HERE}.evolution:Evolution",
        "learned": f"{_HERE}.learned:Learned",
        "mcmc": f"{_HERE}.mcmc:Mcmc",
        "nsga2": f"{_HERE}.optuna_samplers:nsga2",
        "random": f"{_HERE}.sampled:Sampled",
        "tpe": f"{_HERE}.optuna_samplers:tpe",
    },
)


def proposer_names() -> tuple[str, ...]:
    """Return the names of all known proposers, sorted."""
    return PROPOSERS.names()


def open_proposer(name: str, ground: Ground) -> Proposer:
    """Return the proposer of this name on a ground. The error for an unknown name lists the known ones."""
    proposer: Proposer = PROPOSERS.get(name)(ground)
    return proposer
