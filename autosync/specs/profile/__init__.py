"""Profiling: runs a task's real model and writes a model spec from what was recorded.

`profile` imports torch, so it is loaded when it is first used: the warnings about a profile are read without torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosync.specs.profile.run import profile

__all__ = ["profile"]


def __getattr__(name: str) -> object:
    if name != "profile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autosync.specs.profile import run

    return run.profile
