"""The table of synchronisers, with one file for each kind; all other code iterates this table.

Other packages add kinds through the entry-point group `autosync.synchronisers`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from autosync.registry import Registry
from autosync.strategy.synchronisers.base import Synchroniser

_HERE = "autosync.strategy.synchronisers"

_SHIPPED = {
    "all_reduce": f"{_HERE}.all_reduce:AllReduce",
    "parameter_server": f"{_HERE}.parameter_server:ParameterServer",
    "sharded": f"{_HERE}.sharded:Sharded",
    "sparse_gather": f"{_HERE}.sparse_gather:SparseGather",
    "sufficient_factors": f"{_HERE}.sufficient_factors:SufficientFactors",
    "periodic": f"{_HERE}.periodic:Periodic",
}
SHIPPED_KINDS = tuple(_SHIPPED)
"""The shipped kinds, in the order in which the shipped learned simulators read their features."""

SYNCHRONISERS = Registry("synchroniser", _SHIPPED)


@functools.cache
def synchroniser_kinds() -> Mapping[str, type[Synchroniser]]:
    """Return the class of each kind: our own in the order of the table, then those of other packages by name."""
    return SYNCHRONISERS.variants()


def shipped_classes() -> list[type[Synchroniser]]:
    """Return the classes of the shipped kinds."""
    return [synchroniser_kinds()[kind] for kind in SHIPPED_KINDS]


def any_synchroniser() -> Any:
    """Return the type by which pydantic reads a synchroniser from a file; its field `kind` names the class."""
    from pydantic import Field

    union: Any = functools.reduce(operator.or_, synchroniser_kinds().values())
    return Annotated[union, Field(discriminator="kind")]


def any_kind() -> Any:
    """Return the type by which pydantic reads the name of a kind from a file."""
    names: Any = tuple(synchroniser_kinds())
    return Literal[names]
