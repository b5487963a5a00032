"""autosync finds the fastest way to synchronise gradients for a model on a cluster.

Importing this package imports nothing heavy: the names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosync.inputs.loader import loader
    from autosync.inputs.share_sampler import share_sampler
    from autosync.loops.declarations import Table, loop
    from autosync.runtime.checkpoints.calls import consolidate, load, save
    from autosync.runtime.parallelize import describe, drain, no_sync, parallelize, release, weigh
    from autosync.runtime.trainer import trainer
    from autosync.search.tune import tune
    from autosync.specs.task import Task

__version__ = "0.1.0"

__all__ = [
    "Table",
    "Task",
    "__version__",
    "consolidate",
    "describe",
    "drain",
    "load",
    "loader",
    "loop",
    "no_sync",
    "parallelize",
    "release",
    "save",
    "share_sampler",
    "trainer",
    "tune",
    "weigh",
]

_LAZY = {
    "Table": "autosync.loops.declarations",
    "Task": "autosync.specs.task",
    "consolidate": "autosync.runtime.checkpoints.calls",
    "describe": "autosync.runtime.parallelize",
    "drain": "autosync.runtime.parallelize",
    "load": "autosync.runtime.checkpoints.calls",
    "loader": "autosync.inputs.loader",
    "loop": "autosync.loops.declarations",
    "no_sync": "autosync.runtime.parallelize",
    "parallelize": "autosync.runtime.parallelize",
    "release": "autosync.runtime.parallelize",
    "save": "autosync.runtime.checkpoints.calls",
    "share_sampler": "autosync.inputs.share_sampler",
    "trainer": "autosync.runtime.trainer",
    "tune": "autosync.search.tune",
    "weigh": "autosync.runtime.parallelize",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    # Stored, so that the next use is a plain attribute.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
